"""The ops of two bodies, paired: by name, by what rules tell of them, or by all but the name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from graphpatch import names
from graphpatch.analysis.same import same_bytes
from graphpatch.graph import provenance
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import INPUT, NAME, Body, Node, payload_fields, with_attr
from graphpatch.graph.provenance import name_in_model
from graphpatch.graph.wire import Span


@dataclass
class PairedOps:
    """Indices of ops: pairs, those of the first body alone, those of the second alone."""

    both: list[tuple[int, int]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    second: list[int] = field(default_factory=list)


def paired_ops(before: Body, after: Body) -> PairedOps:
    """Pair the ops of two bodies, in the order of the first."""
    ours, theirs = _op_keys(before), _op_keys(after)
    index = dict(zip(theirs, range(len(theirs)), strict=True))
    paired = PairedOps()
    for at, key in enumerate(ours):
        if key in index:
            paired.both.append((at, index.pop(key)))
        else:
            paired.first.append(at)
    paired.second = sorted(index.values())
    if paired.first and paired.second:
        _pair_renamed(before, after, paired)
    return paired


def _op_keys(body: Body) -> list[str]:
    """What an op is known by: its name before any rule; what a rule added, apart from those."""
    keys = list(body.heads.names)
    for index, record in body.touched().items():
        is_added, node = record.is_added, Node(body, index)
        keys[index] = f"+{node.name}" if is_added else name_in_model(node)
    return keys


def _pair_renamed(before: Body, after: Body, paired: PairedOps) -> None:
    """Pair what differs in its name alone; of several alike, none is paired."""
    by_look: dict[object, list[int]] = {}
    for at in paired.second:
        by_look.setdefault(_look(Node(after, at), {}), []).append(at)
    renamed: dict[str, str] = {}
    unpaired, taken = [], set()
    for at in paired.first:
        like = by_look.get(_look(Node(before, at), renamed), [])
        if len(like) == 1 and like[0] not in taken:
            taken.add(like[0])
            paired.both.append((at, like[0]))
            renamed[before.heads.names[at]] = after.heads.names[like[0]]
        else:
            unpaired.append(at)
    paired.first = unpaired
    paired.second = [at for at in paired.second if at not in taken]


def _look(node: Node, renamed: dict[str, str]) -> object:
    """Return an op without its name; of a large field its length alone."""
    inputs = tuple(_under(text, renamed) for text in node.inputs)
    payload = with_attr(node.body.payload(node.index), provenance.PROVENANCE_ATTR, None)
    rest = [
        piece.end - piece.start if isinstance(piece, Span) else piece
        for number, piece in payload_fields(payload)
        if number not in (NAME, INPUT)
    ]
    return node.op, inputs, tuple(sorted(map(repr, rest)))


def _under(text: str, renamed: dict[str, str]) -> str:
    op = names.op_of(text)
    return text.replace(op, renamed[op], 1) if op in renamed else text


Differences = Mapping[Body, Mapping[int, int]]
"""By the body of the first graph, pairs of ops of one name whose NodeDefs are not the same."""


def unlike_by_name(before: Graph, after: Graph) -> Differences:
    """Return the ops of two graphs that differ, of those that have one name in one body."""
    unlike: dict[Body, dict[int, int]] = {}
    for body in before.bodies:
        body_after = after.counterpart(body)
        if body_after is not None:
            at = body_after.by_name
            pairs = ((first, at[name]) for name, first in body.by_name.items() if name in at)
            unlike[body] = dict(unlike_pairs(body, body_after, pairs))
    return unlike


def unlike_pairs(
    before: Body, after: Body, pairs: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the pairs whose NodeDefs are not the same bytes."""
    for pair in pairs:
        old, new = before.payload(pair[0]), after.payload(pair[1])
        if old != new and not (len(old) == len(new) and all(map(same_bytes, old, new))):
            yield pair
