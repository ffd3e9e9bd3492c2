"""Globs over op names: `*` stays within one scope, `**` crosses `/`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence

from graphpatch.errors import RulesError
from graphpatch.match import regex

TOKENS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
QUOTED = 100  # characters of a pattern in a message

Texts = str | tuple[str, ...]
"""A name or glob, or several."""

Means = Callable[[str], bool]
"""Whether a name is meant."""


def texts(value: str | Sequence[str]) -> tuple[str, ...]:
    """One text or several, as several."""
    return (value,) if isinstance(value, str) else tuple(value)


def is_glob(text: str) -> bool:
    """Whether the text has a wildcard; without one it is a name."""
    return "*" in text or "?" in text


@functools.cache
def compiled(glob: str) -> Means:
    """Whether a name is meant: `a/**` is all below `a`, `**/b` is `b` in any scope or none.

    It takes time in proportion to the name. Raises RulesError where the glob is too large.
    """
    parts = TOKEN.findall(glob)
    text = "(?s)" + "".join(TOKENS.get(part, re.escape(part)) for part in parts)
    if sum(part.startswith("*") for part in parts) <= 1:  # Python's re has nothing to go back to
        fullmatch = re.compile(text).fullmatch
        return lambda name: fullmatch(name) is not None
    try:
        return regex.whole(text)
    except RulesError as error:
        raise RulesError(f"the glob {glob[:QUOTED]!r}: {error}") from None


def matches_glob(glob: str, name: str) -> bool:
    """Whether the name is one that the glob means."""
    return compiled(glob)(name)


def one_of(wanted: Iterable[str]) -> Means:
    """Whether a name is one of these, or one that a glob among them means; however many they are.

    Names without a wildcard are looked up, not tried one after the other.
    """
    wanted = tuple(wanted)
    plain = frozenset(text for text in wanted if not is_glob(text))
    globs = [compiled(text) for text in wanted if is_glob(text)]
    if not globs:
        return plain.__contains__
    if not plain and len(globs) == 1:
        return globs[0]
    return lambda name: name in plain or any(one(name) for one in globs)
