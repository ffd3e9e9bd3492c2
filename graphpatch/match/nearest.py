"""The names of a graph that are nearest to one that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterable

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
    expression = _expression(text)
    if expression:
        count = sum(map(glob.whole(expression), names))
        return f"; in rules, name_regex takes expressions: {expression!r} matches {count:,}"
    if not glob.is_glob(text):
        op = text.rpartition(":")[0]
        if op in names:
            return f"; {text!r} is a tensor, and its op is {op!r}"
        for scope in (text, f"**/{text}"):
            inside = glob.compiled(f"{scope}/**")
            if text and (below := sum(map(inside, names))):
                return f"; {text!r} is a scope, and {scope + '/**'!r} matches {below:,}"
        return ""
    deeper = f"**/{text}"
    deeper_names = (
        [] if text.startswith("**") else [name for name in names if glob.matches_glob(deeper, name)]
    )
    why = "a name is matched from its start" if "/" in text else "* stays within a scope"
    return f"; {why}: {deeper!r} matches {len(deeper_names):,}" if deeper_names else ""


def _expression(text: str) -> str:
    """The regular expression that a text is meant as: `.*relu`, `relu$`, `/relu/`; or nothing."""
    if not EXPRESSION.search(text) or text.startswith(("*", "?")):
        return ""
    bare = text[1:-1] if len(text) > 2 and text[0] == text[-1] == "/" else text
    meant = bare if bare == text else f".*{bare}.*"
    try:
        glob.whole(meant)
    except RulesError:
        return ""
    return meant
