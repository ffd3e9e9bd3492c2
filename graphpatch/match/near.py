"""In words: how near a pattern came that matches nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from graphpatch.errors import nearest
from graphpatch.graph import attrs
from graphpatch.graph.body import Body, Node
from graphpatch.graph.tensor import constant
from graphpatch.match import glob
from graphpatch.match.conditions import conditions
from graphpatch.match.forms import Wanted, forms
from graphpatch.match.pattern.candidates import candidates
from graphpatch.match.pattern.trace import NearMiss, Rejected, near_misses
from graphpatch.match.spec import Match, Pattern, texts

MOST = 3
SHOWN = 3  # of the ops that stand where one should
LONG = 60  # letters of a value


def near_lines(bodies: Sequence[Body], wanted: Wanted) -> list[str]:
    """Of each form of a pattern: what its nodes alone could be, and the nearest misses."""
    lines: list[str] = []
    every = forms(wanted)
    for number, pattern in enumerate(every, 1):
        counts = {name: _count(bodies, match) for name, match in pattern.nodes.items()}
        form = f"form {number}: " if len(every) > 1 else ""
        lines.append(f"    {form}alone, " + ", ".join(f"{one}: {n}" for one, n in counts.items()))
        for name, match in pattern.nodes.items():
            if not counts[name] and name not in pattern.absent:
                lines += _unfound_types(bodies, name, match)
        lines += [f"    near: {words(miss, pattern)}" for miss in nearest_places(bodies, pattern)]
    return lines


def nearest_places(bodies: Iterable[Body], pattern: Pattern, most: int = MOST) -> list[NearMiss]:
    """The places in all of these bodies where a pattern came furthest."""
    found = [miss for body in bodies for miss in near_misses(body, pattern, conditions, most)]
    return sorted(found, key=lambda miss: -len(miss.reached))[:most]


def words(miss: NearMiss, pattern: Pattern) -> str:
    """A near miss as one line: what was found, what was not, and which condition failed there."""
    found = ", ".join(f"{name} is {node}" for name, node in miss.reached.items())
    if not miss.missing:
        return f"{found}; {miss.reason}"
    match = pattern.nodes.get(miss.missing, Match())
    parts = [f"not {one.node}, {failed(one, match)}" for one in miss.rejected[:SHOWN]]
    if len(miss.rejected) > SHOWN:
        parts.append(f"nor {len(miss.rejected) - SHOWN} more")
    if miss.reason:
        parts.append(miss.reason)
    return f"{found}; no {miss.missing!r}: {'; '.join(parts)}"


def failed(rejected: Rejected, match: Match) -> str:
    """Which condition an op does not meet, and what it has instead."""
    node, key = rejected.node, rejected.key
    if key == "op":
        return f"which is no {' or '.join(texts(match.op or ()))}"
    if key == "value":
        return (
            f"of which the value is {_value(node)}" if node.op == "Const" else "which is no Const"
        )
    if key == "dtype":
        dtypes = [arg.dtype or "unknown" for arg in (node.outputs or [])[:1]]
        return f"of which the dtype is {', '.join(dtypes) or 'unknown'}"
    if key == "attr":
        return f"of which {', '.join(_attr(node, one) for one in match.attr or {})}"
    return f"for which {key!r} does not hold"


def _attr(node: Node, key: str) -> str:
    value = node.attr(key)
    return f"{key} is " + ("left out" if value is None else _short(repr(attrs.plain(value))))


def _value(node: Node) -> str:
    """The first elements of a Const."""
    tensor = constant(node)
    if tensor is None:
        return "unknown"
    first: list[object] = next((piece[:SHOWN].tolist() for piece, _ in tensor.pieces()), [])
    more = ", ..." if tensor.size > len(first) else ""
    return _short(f"[{', '.join(map(str, first))}{more}]" if tensor.shape else f"{first[0]}")


def _short(text: str) -> str:
    return text if len(text) <= LONG else f"{text[: LONG - 3]}..."


def _count(bodies: Iterable[Body], match: Match) -> int:
    found = conditions(match)
    return sum(len(candidates(body, match, found).indices()) for body in bodies)


def _unfound_types(bodies: Iterable[Body], name: str, match: Match) -> Iterator[str]:
    """The nearest of the bodies' op types for each that is in none of them."""
    legal = sorted({op for body in bodies for op in body.by_type})
    for text in texts(match.op or ()):
        if not any(glob.matches(text, op) for op in legal):
            near = nearest(text, legal)
            yield f"    no op is a {text} ({name!r})" + (
                f"; nearest: {', '.join(near)}" if near else ""
            )
