"""A pattern with and without its optional ops: each as a pattern of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from msgspec.structs import replace

from graphpatch.match.spec import Edge, Pattern


def variants(pattern: Pattern) -> Iterator[Pattern]:
    """The pattern, then with ever more of its optional ops left out.

    Those that are left are there, and `optional` still names them. What falls apart without an
    op is not a variant.
    """
    for count in range(len(pattern.optional) + 1):
        for left_out in combinations(pattern.optional, count):
            found = pattern
            for name in left_out:
                found = without_op(found, name)
            if found.present and len(linked_groups(found)) == 1:
                yield found


def without_op(pattern: Pattern, name: str) -> Pattern:
    """The pattern without one op: what comes before it is linked to what comes after.

    Where several ops come before it, it is the one that its first edge is from. What is linked
    to it alone goes with it, if it is not an op of the match: tensors from outside, absent ops.
    """
    edges = [edge for edge in pattern.edges if name not in (edge.source, edge.target)]
    before = [
        edge for edge in pattern.edges if edge.target == name and _is_edge_present(pattern, edge)
    ]
    after = [edge for edge in pattern.edges if edge.source == name]
    edges += [_joined_edge(before[0], edge) for edge in after if before and _joins(before[0], edge)]
    linked = {end for edge in edges for end in (edge.source, edge.target)}
    gone = {one for one in (*pattern.tensors, *pattern.absent) if one not in linked} | {name}
    closed = pattern.closed
    return replace(
        pattern,
        nodes={one: match for one, match in pattern.nodes.items() if one not in gone},
        edges=tuple(edges),
        tensors=tuple(one for one in pattern.tensors if one not in gone),
        optional=tuple(one for one in pattern.optional if one not in gone),
        absent=tuple(one for one in pattern.absent if one not in gone),
        closed=tuple(one for one in closed if one not in gone)
        if isinstance(closed, tuple)
        else closed,
    )


def linked_groups(pattern: Pattern) -> list[list[str]]:
    """The ops and tensors of a match, in groups of those that are linked with each other."""
    near: dict[str, list[str]] = {name: [] for name in (*pattern.present, *pattern.tensors)}
    for edge in pattern.edges:
        if edge.source in near and edge.target in near:
            near[edge.source].append(edge.target)
            near[edge.target].append(edge.source)
    found: list[list[str]] = []
    seen: set[str] = set()
    for name in near:
        if name not in seen:
            found.append(_ends_near(name, near, seen))
    return found


def _ends_near(name: str, near: dict[str, list[str]], seen: set[str]) -> list[str]:
    seen.add(name)
    found = [name]
    for one in found:
        for other in near[one]:
            if other not in seen:
                seen.add(other)
                found.append(other)
    return found


def _is_edge_present(pattern: Pattern, edge: Edge) -> bool:
    return edge.source not in pattern.absent


def _joins(before: Edge, after: Edge) -> bool:
    return not before.link.control and not after.link.control


def _joined_edge(before: Edge, after: Edge) -> Edge:
    link = replace(after.link, output=before.link.output)
    return Edge(before.source, after.target, link)
