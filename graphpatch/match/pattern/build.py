"""A pattern from Python: its text, and what the text cannot say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from graphpatch.arguments import wrong_argument
from graphpatch.decoding import convert
from graphpatch.errors import PatternError, did_you_mean
from graphpatch.match.pattern.check import check_pattern
from graphpatch.match.pattern.syntax import parse_pattern
from graphpatch.match.spec import Match, Pattern


def pattern(
    text: str, closed: bool | Sequence[str] = False, **ops: Match | Mapping[str, Any]
) -> Pattern:
    """A pattern from its text. `ops` has further conditions for ops that the text names.

    For `select(model, pattern=...)` and for the match of a rule.

    Args:
        text: The pattern: op types, arrows from an op to one that reads it, names before a colon.
        closed: True: its inner ops are read by nothing else; or the names of those that are not.
        **ops: By the name of an op of the text, a match of its own.

    Raises:
        PatternError: The text is not a pattern (the error points at the column), or does not name
            the op of a condition.
        TypeError: `text` is not a string.

    When not to use it: for a single op; a match with `op` says it.

    Example:
        >>> conv = {"attr": {"padding": "SAME"}}
        >>> found = graphpatch.pattern("conv:Conv2D -> BiasAdd", closed=True, conv=conv)
        >>> len(graphpatch.matches(found, "model.pb"))
        2
    """
    if not isinstance(text, str):
        raise wrong_argument("text", 'the text of a pattern, such as "c:Conv2D -> a:Relu"', text)
    found = parse_pattern(text)
    nodes = dict(found.nodes)
    for name, more in ops.items():
        if name not in nodes:
            near = did_you_mean(name, nodes) or f"; legal: {', '.join(nodes)}"
            raise PatternError(f"pattern: no op is called {name!r}{near}\n  {text}")
        nodes[name] = _asking_more(nodes[name], name, more)
    named = closed if isinstance(closed, bool) else tuple(closed)
    built = replace(found, nodes=nodes, closed=named)
    check_pattern(built)
    return built


def _asking_more(match: Match, name: str, more: Match | Mapping[str, Any]) -> Match:
    """A match that also asks for more; the op type stays on top, where an index finds it."""
    try:
        wanted = convert(more, Match)
    except msgspec.ValidationError as error:
        raise PatternError(f"pattern, node {name!r}: {error}") from None
    return replace(match, all=(*(match.all or ()), wanted))
