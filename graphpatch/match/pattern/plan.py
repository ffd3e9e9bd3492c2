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
    ways: tuple[LinkEnd, ...]


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
            (_cost(edge, way, op_count), counts[node], node)
            for number, edge in enumerate(edges)
            for node, way in _link_ends(number, edge)
            if way.other in reached and node not in reached
        ]
        node = min(near)[2]
        ways = [
            way
            for number, edge in enumerate(edges)
            for end, way in _link_ends(number, edge)
            if end == node and way.other in reached
        ]
        ways.sort(key=lambda way: (_cost(edges[way.edge], way, op_count), way))
        steps.append(PlanStep(node, tuple(ways)))
        reached.add(node)
    return Plan(anchor, tuple(steps))


def _link_ends(number: int, edge: PlanEdge) -> list[tuple[int, LinkEnd]]:
    source, target, _ = edge
    return [(source, LinkEnd(number, target, False)), (target, LinkEnd(number, source, True))]


def _cost(edge: PlanEdge, way: LinkEnd, op_count: int) -> int:
    """How many ops a link may lead to, roughly: one input, any input, readers, readers of all."""
    source, _, link = edge
    cost = (2 if way.forward else 0) + (link.input is None) + 4 * link.repeat
    return cost + (2 if way.forward and source >= op_count else 0)
