"""Ops of a pattern that can be swapped: matches that differ only by that are one.

J. A. Grochow and M. Kellis, "Network motif discovery using subgraph enumeration and
symmetry-breaking" (2007): with one condition for each op that can take another's place, "is bound
to an earlier op of the file", every match is found exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from graphpatch.match.spec import Edge, Pattern

if TYPE_CHECKING:
    import networkx as nx

    Graph = nx.MultiDiGraph[str]


Swap = Mapping[str, str]
"""A way in which a pattern can be laid on itself: which node comes to lie on which."""


class Symmetry(msgspec.Struct, frozen=True):
    """Pairs of names of which the first is bound to what comes earlier in the file.

    Every way in which the pattern can be laid on itself is made of some of the `swaps`.
    """

    before: Sequence[tuple[str, str]] = ()
    swaps: Sequence[Swap] = ()

    def images(self, names: frozenset[str]) -> set[frozenset[str]]:
        """The sets of names on which these can come to lie; their own is one."""
        found, stack = {names}, [names]
        while stack:
            one = stack.pop()
            for swap in self.swaps:
                image = frozenset(swap[name] for name in one)
                if image not in found:
                    found.add(image)
                    stack.append(image)
        return found


def symmetry(pattern: Pattern) -> Symmetry:
    """Which nodes of a pattern, in which all is there, can be swapped.

    Ops first: where all of them stay, the tensors from outside that could still be swapped have
    no op of their own, and one order of them is as good as another.
    """
    names = [*pattern.present, *pattern.tensors]
    kinds = _refined(pattern, _node_labels(pattern))
    before: list[tuple[str, str]] = []
    swaps: list[Swap] = []
    fixed: list[str] = []
    for name in names:
        others = [other for other in names if other not in fixed and kinds[other] == kinds[name]]
        for other in others:
            swap = None if other == name else _swap(pattern, kinds, fixed, name, other)
            if swap is not None:
                before.append((name, other))
                swaps.append(swap)
        fixed.append(name)
    return Symmetry(before, swaps)


def _node_labels(pattern: Pattern) -> dict[str, bytes]:
    """What tells a node from others, apart from its edges."""
    closed = pattern.closed if isinstance(pattern.closed, tuple) else ()
    kinds = dict.fromkeys(pattern.tensors, b"tensor")
    for name, match in pattern.nodes.items():
        marks = [name in pattern.absent, name in closed, name in pattern.optional]
        kinds[name] = msgspec.json.encode([match, marks], order="deterministic")
    return kinds


def _refined(pattern: Pattern, kinds: Mapping[str, bytes]) -> dict[str, bytes]:
    """The kinds told apart by the kinds around them, as long as that tells more apart.

    What can be swapped has equal kinds (B. Weisfeiler and A. Leman, 1968); in a pattern without
    symmetries most nodes come to differ, and no way to lay it on itself is looked for.
    """
    links = [(edge.source, edge.target, _words(edge)) for edge in pattern.edges]
    found = dict(kinds)
    while True:
        around: dict[str, list[tuple[bytes, bytes, bytes]]] = {name: [] for name in found}
        for source, target, link in links:
            around[source].append((b"to", link, found[target]))
            around[target].append((b"from", link, found[source]))
        told = {name: (kind, *sorted(around[name])) for name, kind in found.items()}
        numbers = {
            one: str(number).encode() for number, one in enumerate(sorted(set(told.values())))
        }
        if len(numbers) == len(set(found.values())):
            return found
        found = {name: numbers[one] for name, one in told.items()}


def _swap(
    pattern: Pattern, kinds: dict[str, bytes], fixed: list[str], name: str, other: str
) -> Swap | None:
    """How the pattern can be laid on itself so that `name` comes to lie on `other`, if it can."""
    if _links_of(pattern, name) == _links_of(pattern, other):  # twins: all others stay
        return {**dict(zip(kinds, kinds, strict=True)), name: other, other: name}
    from networkx.algorithms.isomorphism import MultiDiGraphMatcher

    here = {**kinds, **{one: f"{one} stays".encode() for one in fixed}, name: b"moves"}
    there = {**kinds, **{one: f"{one} stays".encode() for one in fixed}, other: b"moves"}
    matcher = MultiDiGraphMatcher(
        _as_networkx(pattern, here),
        _as_networkx(pattern, there),
        node_match=lambda one, two: one["kind"] == two["kind"],
        edge_match=_same_links,
    )
    return next(matcher.isomorphisms_iter(), None)


def _as_networkx(pattern: Pattern, kinds: dict[str, bytes]) -> Graph:
    import networkx as nx

    graph: Graph = nx.MultiDiGraph()
    for name, kind in kinds.items():
        graph.add_node(name, kind=kind)
    for edge in pattern.edges:
        graph.add_edge(edge.source, edge.target, link=_words(edge))
    return graph


def _links_of(pattern: Pattern, name: str) -> list[tuple[str, str, bytes]]:
    mine = (edge for edge in pattern.edges if name in (edge.source, edge.target))
    return sorted(
        ("", edge.target, _words(edge)) if edge.source == name else (edge.source, "", _words(edge))
        for edge in mine
    )


def _words(edge: Edge) -> bytes:
    return msgspec.json.encode(edge.link)


def _same_links(one: dict[int, Any], two: dict[int, Any]) -> bool:
    return sorted(edge["link"] for edge in one.values()) == sorted(
        edge["link"] for edge in two.values()
    )
