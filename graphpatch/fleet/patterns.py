"""Globs over paths, as shells have them; `**` crosses folders."""

from __future__ import annotations

import re
from collections.abc import Sequence

TOKEN = re.compile(r"\[!?\]?[^\]]*\]|.", re.S)


def is_glob(text: str) -> bool:
    """Whether a path is a glob."""
    return any(sign in text for sign in "*?[")


def halves(text: str) -> tuple[str, tuple[str, ...]]:
    """The folder that a glob starts from, and the parts of its path below that."""
    parts = text.split("/")
    first = next(place for place, part in enumerate(parts) if is_glob(part))
    base = "/".join(parts[:first])
    return base or ("/" if text.startswith("/") else "."), tuple(p for p in parts[first:] if p)


def meant(pattern: Sequence[str], path: Sequence[str]) -> bool:
    """Whether a path, or a folder that it lies in, is one that the pattern means."""
    return any(_fits(pattern, path[:end]) for end in range(1, len(path) + 1))


def reaches(pattern: Sequence[str], folder: Sequence[str]) -> bool:
    """Whether what the pattern means may lie below this folder."""
    if "**" in pattern[: len(folder)] or meant(pattern, folder):
        return True
    return len(folder) < len(pattern) and _fits(pattern[: len(folder)], folder)


def _fits(pattern: Sequence[str], path: Sequence[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        rest = pattern[1:]
        return any(_fits(rest, path[start:]) for start in range(len(path) + 1)) if rest else True
    return bool(path) and _part(pattern[0], path[0]) and _fits(pattern[1:], path[1:])


def _part(pattern: str, name: str) -> bool:
    return re.fullmatch("".join(map(_token, TOKEN.findall(pattern))), name) is not None


def _token(text: str) -> str:
    if len(text) > 1:
        inside = text[1:-1].replace("\\", "\\\\")
        return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return {"*": "[^/]*", "?": "[^/]"}.get(text, re.escape(text))
