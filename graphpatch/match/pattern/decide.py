"""How a pattern lies in a neighbourhood: its nodes are bound one after the other, along its edges.

It is a monomorphism that is looked for: the neighbourhood may have more edges than the pattern, as
that of `Mul(x, x)` has for `x -> mul`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from graphpatch.graph.body import Body
from graphpatch.match.pattern.links import Vertex
from graphpatch.match.pattern.search_plan import LinkEnd, Plan, PlanStep
from graphpatch.match.pattern.support import LinkedVertices, LinksByEnds, Neighbourhood, supported
from graphpatch.match.spec import Pattern
from graphpatch.names import TensorName

Position = tuple[int, str, str, int]
"""Where a vertex stands in the file's order; a function's arguments stand first."""

Spend = Callable[[int], None]
"""Counts the vertices that were tried; raises where they are too many by now."""


class Decider:
    """Lays one pattern, in which nothing is optional, into neighbourhoods.

    `names` are its ops and then its tensors, by number; `edges` its edges between those that are
    there; `before` the pairs of which the first is bound to what comes earlier in the file. It
    `is_plain` where there are no such pairs and no two edges between the same two nodes.
    """

    def __init__(self, pattern: Pattern, before: Sequence[tuple[str, str]]) -> None:
        self.names = (*pattern.present, *pattern.tensors)
        self.op_count = len(pattern.present)
        number = {name: place for place, name in enumerate(self.names)}
        self.edges = tuple(
            (number[edge.source], number[edge.target], edge.link)
            for edge in pattern.edges
            if edge.source in number and edge.target in number
        )
        self.before = [(number[one], number[two]) for one, two in before]
        self.is_plain = not before and len({edge[:2] for edge in self.edges}) == len(self.edges)

    def assignments(
        self, plan: Plan, around: Neighbourhood, body: Body, spend: Spend
    ) -> list[tuple[Vertex, ...]]:
        """Every way in which the pattern lies there: a vertex for each of its nodes."""
        spend(len(around.links))
        left = supported(around, self.edges)
        if not all(left.found.values()):
            return []
        join = _Join(
            left, around.links, [*map(self._bind, range(len(plan.steps)), plan.steps)], body, spend
        )
        found: list[tuple[Vertex, ...]] = []
        for anchor in left.found[plan.anchor]:
            found += join.assignments({plan.anchor: anchor}, 0)
        found = [one for one in found if self.has_own_links(one, around.links)]
        return sorted(found, key=lambda one: [place_of_vertex(body, vertex) for vertex in one])

    def has_own_links(self, vertices: Sequence[Vertex], links: LinksByEnds) -> bool:
        """Whether edges from tensors that turn out as one and the same each have a link."""
        read = vertices[self.op_count :]
        if len(set(read)) == len(read):
            return True
        shared: dict[tuple[Vertex, Vertex], list[int]] = {}
        for number, (source, target, _) in enumerate(self.edges):
            if source >= self.op_count:
                shared.setdefault((vertices[source], vertices[target]), []).append(1 << number)
        return all(_assigned(edges, [*links[ends].values()]) for ends, edges in shared.items())

    def _bind(self, at: int, step: PlanStep) -> _Bind:
        """A step with what is asked of the vertex, given those that were bound before."""
        ends = sorted(step.ends, key=lambda end: end.other)
        groups = [(other, tuple(same)) for other, same in groupby(ends, key=lambda end: end.other)]
        earlier = [two for one, two in self.before if one == step.node]
        later = [one for one, two in self.before if two == step.node]
        return _Bind(at, step.node, step.node < self.op_count, groups, earlier, later)


class _Bind(NamedTuple):
    """The next node to bind: its links to nodes bound already, and its place beside others."""

    at: int
    node: int
    is_op: bool
    links: list[tuple[int, tuple[LinkEnd, ...]]]
    earlier_than: list[int]
    later_than: list[int]

    @property
    def checks(self) -> int:
        """What it costs to try a vertex, beside others."""
        return 1 + len(self.earlier_than) + len(self.later_than) + self.at // 8


class _Join(NamedTuple):
    left: LinkedVertices
    links: LinksByEnds
    binds: list[_Bind]
    body: Body
    spend: Spend

    def assignments(self, bound: dict[int, Vertex], at: int) -> Iterator[tuple[Vertex, ...]]:
        """Every way to bind the nodes that are left; `bound` is as before at the end."""
        if at == len(self.binds):
            self.spend(len(bound))
            yield tuple(bound[number] for number in range(len(bound)))
            return
        bind = self.binds[at]
        near = self._near(bind, bound)
        self.spend(1 + len(near) * bind.checks)
        for vertex in near:
            if vertex not in self.left.found[bind.node]:
                continue
            if bind.is_op and any(vertex == one for one in bound.values()):
                continue
            if self._linked(bind, bound, vertex) and self._in_order(bind, bound, vertex):
                bound[bind.node] = vertex
                yield from self.assignments(bound, at + 1)
                del bound[bind.node]

    def _near(self, bind: _Bind, bound: dict[int, Vertex]) -> Sequence[Vertex]:
        """What the link that leads to fewest leads to."""
        ends = (end for _, ends in bind.links for end in ends)
        after, before = self.left.after, self.left.before
        return min(
            (
                (after if end.forward else before)[end.edge].get(bound[end.other], ())
                for end in ends
            ),
            key=len,
        )

    def _linked(self, bind: _Bind, bound: dict[int, Vertex], vertex: Vertex) -> bool:
        """Whether each edge to what is bound can be a link of its own."""
        for other, ends in bind.links:
            pair = (bound[other], vertex) if ends[0].forward else (vertex, bound[other])
            links = self.links.get(pair)
            if links is None or not _assigned([1 << e.edge for e in ends], [*links.values()]):
                return False
        return True

    def _in_order(self, bind: _Bind, bound: dict[int, Vertex], vertex: Vertex) -> bool:
        if not bind.earlier_than and not bind.later_than:
            return True
        here = place_of_vertex(self.body, vertex)
        return all(
            here <= place_of_vertex(self.body, bound[two])
            for two in bind.earlier_than
            if two in bound
        ) and all(
            place_of_vertex(self.body, bound[one]) <= here
            for one in bind.later_than
            if one in bound
        )


def place_of_vertex(body: Body, vertex: Vertex) -> Position:
    """Where an op or a tensor stands: tensors by the ops that give them."""
    if isinstance(vertex, TensorName):
        return body.by_name.get(vertex.op, -1), vertex.op, vertex.arg, vertex.index
    return vertex, "", "", 0


def _assigned(edges: Sequence[int], links: Sequence[int]) -> bool:
    """Whether each edge of the pattern can be a link of its own."""
    if not edges:
        return True
    first, *rest = edges
    return any(
        bool(roles & first) and _assigned(rest, [*links[:at], *links[at + 1 :]])
        for at, roles in enumerate(links)
    )
