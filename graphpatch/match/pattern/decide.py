"""How a pattern lies in a neighbourhood: networkx's VF2, once for each shape of neighbourhood.

L. P. Cordella, P. Foggia, C. Sansone, M. Vento, "A (sub)graph isomorphism algorithm for matching
large graphs" (2004). It is a monomorphism that is looked for: the neighbourhood may have more
edges than the pattern, as that of `Mul(x, x)` has for `x -> mul`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from graphpatch.match.spec import Pattern

if TYPE_CHECKING:
    import networkx as nx

    Graph = nx.MultiDiGraph[int]

REMEMBERED = 1 << 12  # shapes of neighbourhoods


class Shape(NamedTuple):
    """A neighbourhood without its names, so that equal ones are decided once.

    Of each vertex: the numbers of the pattern's nodes that it can be (as bits), and its place in
    the file's order. Of each pair of vertices that are linked: for each link, the numbers of the
    pattern's edges that it can be (as bits).
    """

    roles: tuple[int, ...]
    places: tuple[int, ...]
    links: tuple[tuple[int, int, tuple[int, ...]], ...]


class Decider:
    """Lays one pattern, in which nothing is optional, into neighbourhoods.

    `names` are its ops and then its tensors, by number; `edges` its edges between those that are
    there, of which `leaving` has, as bits, those that leave each; `before` the pairs of which the
    first is bound to what comes earlier in the file. It `is_plain` where there are no such pairs
    and no two edges between the same two nodes.
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
        self.leaving = [
            sum(1 << at for at, edge in enumerate(self.edges) if edge[0] == node)
            for node in range(len(self.names))
        ]
        self.before = [(number[one], number[two]) for one, two in before]
        self.is_plain = not before and len({edge[:2] for edge in self.edges}) == len(self.edges)
        self.assignments = functools.lru_cache(REMEMBERED)(self._assignments)

    def _assignments(self, shape: Shape) -> tuple[tuple[int, ...], ...]:
        """Every way in which the pattern lies there: a vertex for each of its nodes."""
        found = _matcher()(_neighbourhood(shape), self._graph, self.before)
        count = range(len(self.names))
        return tuple(
            sorted(
                tuple(vertex[number] for number in count)
                for vertex in map(_inverse, found.subgraph_monomorphisms_iter())
            )
        )

    @functools.cached_property
    def _graph(self) -> Graph:
        import networkx as nx

        graph: Graph = nx.MultiDiGraph()
        for number in range(len(self.names)):
            graph.add_node(number, role=1 << number)
        for number, (source, target, _) in enumerate(self.edges):
            graph.add_edge(source, target, role=1 << number)
        return graph


def _neighbourhood(shape: Shape) -> Graph:
    import networkx as nx

    graph: Graph = nx.MultiDiGraph()
    for vertex, (roles, place) in enumerate(zip(shape.roles, shape.places, strict=True)):
        graph.add_node(vertex, roles=roles, place=place)
    for source, target, links in shape.links:
        for roles in links:
            graph.add_edge(source, target, roles=roles)
    return graph


def _inverse(mapping: Mapping[int, int]) -> dict[int, int]:
    return {number: vertex for vertex, number in mapping.items()}


@functools.cache
def _matcher() -> Any:
    """The matcher of networkx, which here also keeps to the order of what could be swapped."""
    from networkx.algorithms.isomorphism import MultiDiGraphMatcher

    class Matcher(MultiDiGraphMatcher):
        def __init__(self, shape: Graph, pattern: Graph, before: list[tuple[int, int]]) -> None:
            super().__init__(
                shape,
                pattern,
                node_match=lambda vertex, node: bool(vertex["roles"] & node["role"]),
                edge_match=lambda links, edges: _assigned(
                    [edge["role"] for edge in edges.values()],
                    [link["roles"] for link in links.values()],
                ),
            )
            self.before = before

        def semantic_feasibility(self, vertex: int, number: int) -> bool:
            if not self._in_order(vertex, number):
                return False
            return bool(super().semantic_feasibility(vertex, number))  # type: ignore[no-untyped-call]

        def _in_order(self, vertex: int, number: int) -> bool:
            bound = {**self.core_2, number: vertex}
            places = {one: self.G1.nodes[at]["place"] for one, at in bound.items()}
            return all(
                places[one] <= places[two]
                for one, two in self.before
                if one in places and two in places
            )

    return Matcher


def _assigned(edges: Sequence[int], links: Sequence[int]) -> bool:
    """Whether each edge of the pattern can be a link of its own."""
    if not edges:
        return True
    first, *rest = edges
    return any(
        bool(roles & first) and _assigned(rest, [*links[:at], *links[at + 1 :]])
        for at, roles in enumerate(links)
    )
