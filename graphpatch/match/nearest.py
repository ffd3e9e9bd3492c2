"""The names of a graph that are nearest to one that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from graphpatch.errors import RulesError, nearest
from graphpatch.match import glob

NEAREST = 5
EXPRESSION = re.compile(r"\.[*+?]|[][(){}|^$+\\]|\A/.+/\Z")  # names and globs have few of these
MOST_COMPARED = 50_000  # names compared letter by letter; the rest by what they contain


def nearest_names(text: str, legal: Iterable[str]) -> list[str]:
    """The names nearest to a name or glob: those that contain its last part, else similar ones."""
    legal = list(legal)
    last = text.rpartition("/")[2].strip("*?").lower()
    holding = [name for name in legal if last and last in name.rpartition("/")[2].lower()]
    close = nearest(text, legal[:MOST_COMPARED], NEAREST)
    if not close:  # the names whose last part is nearest
        by_end = {name.rpartition("/")[2].lower(): name for name in legal[MOST_COMPARED - 1 :: -1]}
        close = [by_end[end] for end in nearest(last, by_end, NEAREST)]
    if glob.is_glob(text):
        return (holding or close)[:NEAREST]
    return list(dict.fromkeys(close + holding))[:NEAREST]


def nearest_tensors(text: str, legal: Iterable[str]) -> str:
    """Return a clause with the ops whose names are nearest to that of a tensor; or nothing."""
    near = nearest_names(text.partition(":")[0], legal)
    return f"; nearest: {', '.join(near)}" if near else ""


def elsewhere(text: str, names: Iterable[str]) -> str:
    """What a text would have to be for it to name ops, as a clause; nothing where that is unclear.

    A regular expression; a glob that is meant in any scope; a scope, or the name of a tensor,
    where an op is asked for.
    """
    names = list(names)
    if EXPRESSION.search(text) and not text.startswith(("*", "?")):
        bare = text[1:-1] if len(text) > 2 and text[0] == text[-1] == "/" else text
        expression = bare if bare == text else f".*{bare}.*"
        with suppress(RulesError):  # it is no expression
            count = sum(map(glob.whole(expression), names))
            return f"; in rules, name_regex takes expressions: {expression!r} matches {count:,}"
    op, deeper = text.rpartition(":")[0], f"**/{text}"
    if op in names:
        return f"; {text!r} is a tensor, and its op is {op!r}"
    if glob.is_glob(text):
        why = "a name is matched from its start" if "/" in text else "* stays within a scope"
        meant = {} if text.startswith("**") else {deeper: why}
    else:
        is_scope = f"{text!r} is a scope"
        meant = {f"{text}/**": is_scope, f"{deeper}/**": is_scope} if text else {}
    for wider, why in meant.items():
        if count := sum(map(glob.compiled(wider), names)):
            return f"; {why}: {wider!r} matches {count:,}"
    return ""
