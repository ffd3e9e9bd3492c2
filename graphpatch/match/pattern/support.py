"""What is left of a neighbourhood without the vertices that some edge of the pattern lacks there.

Arc consistency (A. K. Mackworth, "Consistency in networks of relations", 1977), with a count of
supports for each vertex, so that it takes time in proportion to the links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from graphpatch.match.pattern.links import Vertex
from graphpatch.match.pattern.search_plan import PlanEdge, PlanStep

LinksByEnds = dict[tuple[Vertex, Vertex], dict[int, int]]
"""Between two vertices: for each link, by its slot, the edges of the pattern that it can be, as
bits. Runs are no one link: each edge that is a run has a number below zero of its own."""

NearVertices = Mapping[Vertex, Sequence[Vertex]]
"""What each vertex is linked with, by one edge of the pattern."""


class Neighbourhood(NamedTuple):
    """The vertices that each node of the pattern can be, as far as was walked, and their links.

    `failed` is the step that led on to nothing.
    """

    found: dict[int, set[Vertex]]
    links: LinksByEnds
    failed: PlanStep | None


class LinkedVertices(NamedTuple):
    """The vertices that each node can be, and by edge what follows each and what comes before."""

    found: Mapping[int, set[Vertex]]
    after: Sequence[NearVertices]
    before: Sequence[NearVertices]


def supported(around: Neighbourhood, edges: Sequence[PlanEdge]) -> LinkedVertices:
    """The neighbourhood without what lacks an edge: each vertex left has one for each edge."""
    after, before = _links_by_end(around, edges)
    found = {node: set(vertices) for node, vertices in around.found.items()}
    sides = [
        (e, source, after[e], before[e], target) for e, (source, target, _) in enumerate(edges)
    ]
    sides += [
        (e, target, before[e], after[e], source) for e, (source, target, _) in enumerate(edges)
    ]
    left = {(e, node): {one: len(near[one]) for one in near} for e, node, near, _, _ in sides}
    gone: list[tuple[int, Vertex]] = []
    for _, node, near, _, _ in sides:
        lacking = [one for one in found[node] if one not in near]
        found[node].difference_update(lacking)
        gone += [(node, one) for one in lacking]
    while gone:
        node, vertex = gone.pop()
        for e, end, near, _, other in sides:
            for one in near.get(vertex, ()) if end == node else ():
                left[e, other][one] -= 1
                if not left[e, other][one] and one in found[other]:
                    found[other].remove(one)
                    gone.append((other, one))
    return LinkedVertices(found, after, before)


def _links_by_end(
    around: Neighbourhood, edges: Sequence[PlanEdge]
) -> tuple[list[dict[Vertex, list[Vertex]]], list[dict[Vertex, list[Vertex]]]]:
    after: list[dict[Vertex, list[Vertex]]] = [{} for _ in edges]
    before: list[dict[Vertex, list[Vertex]]] = [{} for _ in edges]
    ends = [
        (1 << e, around.found[source], around.found[target], after[e], before[e])
        for e, (source, target, _) in enumerate(edges)
    ]
    for (source, target), between in around.links.items():
        bits = 0
        for one in between.values():
            bits |= one
        for bit, sources, targets, ahead, behind in ends:
            if bits & bit and source in sources and target in targets:
                ahead.setdefault(source, []).append(target)
                behind.setdefault(target, []).append(source)
    return after, before
