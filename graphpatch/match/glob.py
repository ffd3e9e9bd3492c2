"""Globs over op names: `*` stays within one scope, `**` crosses `/`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable

TOKENS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")


def is_glob(text: str) -> bool:
    """Whether the text has a wildcard; without one it is a name."""
    return "*" in text or "?" in text


@functools.cache
def compiled(glob: str) -> re.Pattern[str]:
    """A pattern to be full-matched. `a/**` is all below `a`, `**/b` is `b` in any scope or none."""
    return re.compile("".join(TOKENS.get(part, re.escape(part)) for part in TOKEN.findall(glob)))


def matches(glob: str, name: str) -> bool:
    """Whether the name is one that the glob means."""
    return compiled(glob).fullmatch(name) is not None


def one_of(wanted: Iterable[str]) -> Callable[[str], bool]:
    """Whether a name is one of these, or one that a glob among them means; however many they are.

    Names without a wildcard are looked up, not tried one after the other.
    """
    wanted = tuple(wanted)
    plain = frozenset(text for text in wanted if not is_glob(text))
    globs = [compiled(text) for text in wanted if is_glob(text)]
    return lambda name: name in plain or any(one.fullmatch(name) for one in globs)
