"""The ops of two bodies, paired: by name, by what rules tell of them, or by all but the name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from graphpatch import names
from graphpatch.analysis.same import same_bytes
from graphpatch.graph import provenance
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import INPUT, NAME, Body, Node, payload_fields, with_attr
from graphpatch.graph.provenance import name_in_model
from graphpatch.graph.wire import Span, entry

COMPARED_BYTES = 1 << 20  # bytes of nodes that are compared in one go


@dataclass
class PairedOps:
    """Indices of ops: pairs, those of the first body alone, those of the second alone."""

    both: list[tuple[int, int]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    second: list[int] = field(default_factory=list)


def paired_ops(one: Body, other: Body) -> PairedOps:
    """Pair the ops of two bodies, in the order of the first."""
    ours, theirs = _op_keys(one), _op_keys(other)
    index = dict(zip(theirs, range(len(theirs)), strict=True))
    found = PairedOps()
    for at, key in enumerate(ours):
        if key in index:
            found.both.append((at, index.pop(key)))
        else:
            found.first.append(at)
    found.second = sorted(index.values())
    if found.first and found.second:
        _pair_renamed(one, other, found)
    return found


def _op_keys(body: Body) -> list[str]:
    """What an op is known by: its name before any rule; what a rule added, apart from those."""
    keys = list(body.heads.names)
    for node in provenance.touched(body):
        keys[node.index] = f"+{node.name}" if provenance.is_added(node) else name_in_model(node)
    return keys


def _pair_renamed(one: Body, other: Body, found: PairedOps) -> None:
    """Pair what differs in its name alone; of several alike, none is paired."""
    by_look: dict[object, list[int]] = {}
    for at in found.second:
        by_look.setdefault(_look(Node(other, at), {}), []).append(at)
    renamed: dict[str, str] = {}
    left, taken = [], set()
    for at in found.first:
        like = by_look.get(_look(Node(one, at), renamed), [])
        if len(like) == 1 and like[0] not in taken:
            taken.add(like[0])
            found.both.append((at, like[0]))
            renamed[one.heads.names[at]] = other.heads.names[like[0]]
        else:
            left.append(at)
    found.first = left
    found.second = [at for at in found.second if at not in taken]


def _look(node: Node, renamed: dict[str, str]) -> object:
    """An op without its name; of a large field its length alone."""
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


def unlike_by_name(one: Graph, other: Graph) -> Differences:
    """The ops of two graphs that differ, of those that have one name in one body."""
    found: dict[Body, dict[int, int]] = {}
    for body in one.bodies:
        there = other.counterpart(body)
        if there is not None:
            at = there.by_name
            pairs = [(first, at[name]) for name, first in body.by_name.items() if name in at]
            found[body] = dict(unlike_pairs(body, there, pairs))
    return found


def unlike_pairs(one: Body, other: Body, pairs: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The pairs whose NodeDefs are not the same bytes, found by comparing whole runs of them."""
    for run in _stretches_of_pairs(one, pairs):
        if not same_bytes(
            _stretch(one, run[0][0], run[-1][0]), _stretch(other, run[0][1], run[-1][1])
        ):
            yield from (pair for pair in run if len(run) == 1 or not _alike_pair(one, other, pair))


def _alike_pair(one: Body, other: Body, pair: tuple[int, int]) -> bool:
    return same_bytes(_stretch(one, pair[0], pair[0]), _stretch(other, pair[1], pair[1]))


def _stretches_of_pairs(one: Body, pairs: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Pairs that follow each other in both bodies."""
    run: list[tuple[int, int]] = []
    for pair in pairs:
        follows = run and (pair[0] - run[-1][0], pair[1] - run[-1][1]) == (1, 1)
        if run and (
            not follows or one.heads.starts[pair[0]] - one.heads.starts[run[0][0]] > COMPARED_BYTES
        ):
            yield run
            run = []
        run.append(pair)
    if run:
        yield run


def _stretch(body: Body, first: int, last: int) -> Span:
    starts = body.heads.starts
    return Span(body.source, starts[first], entry(body.source, starts[last])[1])
