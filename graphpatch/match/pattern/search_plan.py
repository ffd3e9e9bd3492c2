"""In which order a neighbourhood is walked: from the rarest op on, by the links that cost least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from graphpatch.match.spec import Link

PlanEdge = tuple[int, int, Link]


class LinkEnd(NamedTuple):
    """A link to follow: number `edge` of the pattern's edges, from node `other`, or to it."""

    edge: int
    other: int
    forward: bool


class PlanStep(NamedTuple):
    """The next node of the pattern, and the links that lead to it from those before."""

    node: int
    ends: tuple[LinkEnd, ...]


class Plan(NamedTuple):
    """Where to start, and how to go on until every node of the pattern is reached."""

    anchor: int
    steps: tuple[PlanStep, ...]


def search_order(counts: Sequence[int], op_count: int, edges: Sequence[PlanEdge]) -> Plan:
    """How to walk a pattern of which each node can be so many ops; tensors come after the ops.

    The start is the node that can be the fewest ops, but at least one.
    An op has few inputs and may have very many readers, so links are followed to what is read
    before they are followed to readers.
    """
    anchor = min(range(op_count), key=lambda number: (not counts[number], counts[number]))
    reached, steps = {anchor}, []
    while len(reached) < len(counts):
        near = [
            (_cost(edge, end, op_count), counts[node], node)
            for number, edge in enumerate(edges)
            for node, end in _link_ends(number, edge)
            if end.other in reached and node not in reached
        ]
        node = min(near)[2]
        ends = [
            end
            for number, edge in enumerate(edges)
            for one, end in _link_ends(number, edge)
            if one == node and end.other in reached
        ]
        ends.sort(key=lambda end: (_cost(edges[end.edge], end, op_count), end))
        steps.append(PlanStep(node, tuple(ends)))
        reached.add(node)
    return Plan(anchor, tuple(steps))


def _link_ends(number: int, edge: PlanEdge) -> list[tuple[int, LinkEnd]]:
    source, target, _ = edge
    return [(source, LinkEnd(number, target, False)), (target, LinkEnd(number, source, True))]


def _cost(edge: PlanEdge, end: LinkEnd, op_count: int) -> int:
    """How many ops a link may lead to, roughly: one input, any input, readers, readers of all."""
    source, _, link = edge
    cost = (2 if end.forward else 0) + (link.input is None) + 4 * link.repeat
    return cost + (2 if end.forward and source >= op_count else 0)
