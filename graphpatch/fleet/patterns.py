"""Globs over paths, as shells have them; `**` crosses folders."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

from graphpatch.errors import FleetError, RulesError
from graphpatch.match import regex
from graphpatch.match.glob import QUOTED

TOKEN = re.compile(r"\[!?\]?[^\]]*\]|.", re.S)


def is_pattern(text: str) -> bool:
    """Whether a path is a glob."""
    return any(sign in text for sign in "*?[")


def halves(text: str) -> tuple[str, tuple[str, ...]]:
    """The folder that a glob starts from, and the parts of its path below that."""
    parts = text.split("/")
    first = next(place for place, part in enumerate(parts) if is_pattern(part))
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
    """Whether the whole path fits: the parts of the pattern in turn, each place of it once."""
    places = {0}
    for part in pattern:
        if part == "**":
            places = set(range(min(places), len(path) + 1))
        else:
            fits = _part(part)
            places = {at + 1 for at in places if at < len(path) and fits(path[at])}
        if not places:
            return False
    return len(path) in places


@functools.cache
def _part(pattern: str) -> Callable[[str], bool]:
    try:
        regex.refuse_long(pattern)
        return regex.whole("(?s)" + "".join(map(_token, TOKEN.findall(pattern))))
    except RulesError as error:
        raise FleetError(f"the glob {pattern[:QUOTED]!r}: {error}") from None


def _token(text: str) -> str:
    if len(text) > 1:
        inside = text[1:-1].replace("\\", "\\\\")
        return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return {"*": "[^/]*", "?": "[^/]"}.get(text, re.escape(text))
