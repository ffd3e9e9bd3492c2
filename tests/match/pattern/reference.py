"""What a pattern matches, found the slow way: networkx's VF2 over a whole body, without an index.

Written for small bodies and to be read beside the README, not to share code with the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

import networkx as nx
from networkx.algorithms.isomorphism import MultiDiGraphMatcher

from graphpatch.graph.node import Body
from graphpatch.match.spec import Link, Match, Pattern
from graphpatch.names import glob_test, texts

Canonical = tuple[tuple[str, Any], ...]
Tensor = tuple[str, str, int]


@dataclass(frozen=True)
class Small:
    """A pattern without optional ops: nodes with their op types, edges, marks."""

    ops: dict[str, Match]
    tensors: frozenset[str]
    absent: dict[str, Match]
    edges: tuple[tuple[str, str, Link], ...]
    closed: bool | tuple[str, ...]
    optional: frozenset[str]


def matches(body: Body, pattern: Pattern) -> set[Canonical]:
    """Each match once, its first symmetric image in the file: what each name is bound to."""
    found: list[tuple[Small, dict[str, Any], dict[str, Any]]] = []
    for small in every_variant(pattern):
        mine = [
            bound
            for bound in bindings(body, small)
            if is_first(small, bound) and not is_replaced(body, small, bound, found)
        ]
        found += [(small, image, bound) for bound in mine for image in images(small, bound)]
    return {canonical(small, bound) for small, _, bound in found}


def images(small: Small, bound: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: bound[image[name]] for name in bound} for image in symmetries(small)]


def is_first(small: Small, bound: dict[str, Any]) -> bool:
    """Whether no symmetric image has its ops, of a run its last one, before these in the file."""
    ends = [bound[name][-1] for name in small.ops]
    return all(ends <= [image[name][-1] for name in small.ops] for image in images(small, bound))


def is_replaced(
    body: Body,
    small: Small,
    bound: dict[str, Any],
    found: list[tuple[Small, dict[str, Any], dict[str, Any]]],
) -> bool:
    """Whether larger matches have all its ops, and leave nobody who computes with what it gives."""
    larger = [
        (other, first)
        for other, image, first in found
        if small.ops.keys() < other.ops.keys()
        and {op for name in small.ops for op in image[name]} == all_ops(small, bound)
    ]
    last = last_of(small, bound)
    if not larger or any(last_of(other, others) == last for other, others in larger):
        return bool(larger)
    theirs = set().union(*(all_ops(other, others) for other, others in larger))
    name = body.heads.names[last]
    # Of the op types of random bodies gradients flow through all that read something.
    beside = {r for r, _, t in reads(body) if t and t[0] == name} - theirs - all_ops(small, bound)
    return not beside and name not in {text.split(":")[0] for text in body.ret.values()}


def last_of(small: Small, bound: dict[str, Any]) -> int:
    sources = {a for a, b, _ in small.edges if b in small.ops}
    found: int = bound[[name for name in small.ops if name not in sources][-1]][-1]
    return found


def all_ops(small: Small, bound: dict[str, Any]) -> set[int]:
    return {op for name in small.ops for op in bound[name]}


def every_variant(pattern: Pattern) -> Iterator[Small]:
    for count in range(len(pattern.optional) + 1):
        for gone in combinations(pattern.optional, count):
            small = Small(
                {n: m for n, m in pattern.nodes.items() if n not in pattern.absent},
                frozenset(pattern.tensors),
                {n: m for n, m in pattern.nodes.items() if n in pattern.absent},
                tuple((edge.source, edge.target, edge.link) for edge in pattern.edges),
                pattern.closed,
                frozenset(pattern.optional),
            )
            for name in gone:
                small = drop(small, name)
            if small.ops and connected(small):
                yield small


def drop(small: Small, name: str) -> Small:
    into = [e for e in small.edges if e[1] == name and e[0] not in small.absent]
    out = [e for e in small.edges if e[0] == name]
    edges = [e for e in small.edges if name not in e[:2]]
    if into and not into[0][2].control:
        for _, target, link in out:
            if not link.control:
                joined = Link(input=link.input, output=into[0][2].output, repeat=link.repeat)
                edges.append((into[0][0], target, joined))
    used = {end for e in edges for end in e[:2]}
    return Small(
        {n: m for n, m in small.ops.items() if n != name},
        small.tensors & used,
        {n: m for n, m in small.absent.items() if n in used},
        tuple(edges),
        small.closed,
        small.optional - {name},
    )


def connected(small: Small) -> bool:
    graph: Any = nx.Graph()
    graph.add_nodes_from([*small.ops, *small.tensors])
    graph.add_edges_from((a, b) for a, b, _ in small.edges if a in graph and b in graph)
    return bool(nx.is_connected(graph))


def bindings(body: Body, small: Small) -> list[dict[str, Any]]:
    whole, wanted = whole_graph(body, small), pattern_graph(small)
    matcher: Any = MultiDiGraphMatcher(
        whole,
        wanted,
        node_match=lambda one, two: two["name"] in one["roles"],
        edge_match=lambda one, two: assigned(
            [edge["number"] for edge in two.values()], [edge["roles"] for edge in one.values()]
        ),
    )
    found = []
    for mapping in matcher.subgraph_monomorphisms_iter():
        names = {
            name: vertex[1] if isinstance(vertex, tuple) else vertex
            for vertex, name in mapping.items()
        }
        bound = completed(body, small, names) if is_read_apart(body, small, names) else None
        if bound is not None and not open_or_present(body, small, bound):
            found.append(bound)
    return found


def is_read_apart(body: Body, small: Small, names: dict[str, Any]) -> bool:
    """Whether edges from several names of one tensor can each be a use of their own."""
    wanted: dict[tuple[Any, int], list[Link]] = {}
    for source, target, link in small.edges:
        if source in small.tensors and target in small.ops and not link.repeat:
            wanted.setdefault((names[source], names[target]), []).append(link)
    return all(
        any(
            all(fits(body, use, tensor, link) for use, link in zip(order, edges, strict=True))
            for order in permutations([use for use in reads(body) if use[0] == reader], len(edges))
        )
        for (tensor, reader), edges in wanted.items()
    )


def whole_graph(body: Body, small: Small) -> Any:
    """All ops, and of each tensor a copy for each name of one; edges with those they can be."""
    graph: Any = nx.MultiDiGraph()
    for index in range(len(body)):
        graph.add_node(index, roles={n for n, m in small.ops.items() if is_such(body, index, m)})
    every = sorted({read for _, _, read in reads(body) if read})
    for name in small.tensors:
        graph.add_nodes_from(((name, one), {"roles": {name}}) for one in every)
    for use in reads(body):
        sources: list[Any] = list(range(len(body)))
        for vertex in [*sources, *((name, one) for name in small.tensors for one in every)]:
            source = vertex[1] if isinstance(vertex, tuple) else vertex
            roles = {
                number
                for number, (start, _, link) in enumerate(small.edges)
                if not link.repeat
                and (start == vertex[0] if isinstance(vertex, tuple) else start in small.ops)
                and fits(body, use, source, link)
            }
            if roles:
                graph.add_edge(vertex, use[0], roles=roles)
    add_runs(body, small, graph)
    return graph


def add_runs(body: Body, small: Small, graph: Any) -> None:
    for number, (start, target, link) in enumerate(small.edges):
        if not link.repeat:
            continue
        for vertex in list(graph):
            if isinstance(vertex, tuple) != (start in small.tensors):
                continue
            if isinstance(vertex, tuple) and vertex[0] != start:
                continue
            source = vertex[1] if isinstance(vertex, tuple) else vertex
            for end in range(len(body)):
                if runs(body, source, end, link, small.ops[target], set()):
                    graph.add_edge(vertex, end, roles={number})


def pattern_graph(small: Small) -> Any:
    graph: Any = nx.MultiDiGraph()
    graph.add_nodes_from((name, {"name": name}) for name in (*small.ops, *small.tensors))
    for number, (source, target, _) in enumerate(small.edges):
        if source in graph and target in graph:
            graph.add_edge(source, target, number=number)
    return graph


def assigned(edges: list[int], links: list[set[int]]) -> bool:
    return any(
        all(edge in roles for edge, roles in zip(edges, order, strict=True))
        for order in permutations(links, len(edges))
    )


def completed(body: Body, small: Small, names: dict[str, Any]) -> dict[str, Any] | None:
    """The binding with all ops of its runs; None where a run leads through another op."""
    bound: dict[str, Any] = {n: (v,) if n in small.ops else v for n, v in names.items()}
    for source, target, link in small.edges:
        if link.repeat:
            taken = {v for n, v in names.items() if n != target}
            match = small.ops[target]
            run = runs(body, names[source], names[target], link, match, taken)
            if run is None:
                return None
            bound[target] = (*sorted(run - {names[target]}), names[target])
    return bound


def open_or_present(body: Body, small: Small, bound: dict[str, Any]) -> bool:
    mine = all_ops(small, bound)
    if any(body.by_name.get(bound[name][0]) in mine for name in small.tensors):
        return True  # an op of the match gives a tensor that is to come from outside
    inner = {a for a, b, _ in small.edges if b in small.ops}
    for _, target, link in small.edges:
        if link.repeat and target not in inner:
            on = followers(body, bound[target][-1], Link(input=link.input))
            if any(is_such(body, i, small.ops[target]) and i not in mine for i in on):
                return True
    for name, match in small.absent.items():
        if any(
            index not in mine
            and is_such(body, index, match)
            and linked(body, small, name, index, bound)
            for index in range(len(body))
        ):
            return True
    return is_open(body, small, bound, mine, inner)


def linked(body: Body, small: Small, name: str, index: int, bound: dict[str, Any]) -> bool:
    """Whether this op has all the edges that the absent one would have."""
    for source, target, link in small.edges:
        if source == name and bound[target][-1] not in followers(body, index, link):
            return False
        if target == name:
            start = bound[source][-1] if source in small.ops else bound[source]
            if index not in followers(body, start, link):
                return False
    return True


def is_open(
    body: Body, small: Small, bound: dict[str, Any], mine: set[int], inner: set[str]
) -> bool:
    if not small.closed:
        return False
    for name in small.ops if small.closed is True else small.closed:
        for index in bound.get(name, ()):
            if small.closed is True:
                last = index == bound[name][-1]
                if (last and name not in inner) or not any(
                    text[0] != "^" for text in body.heads.inputs[index]
                ):
                    continue
            used = {r for r, _, t in reads(body) if t and t[0] == body.heads.names[index]}
            returned = any(
                text.split(":")[0] == body.heads.names[index] for text in body.ret.values()
            )
            if used - mine or returned:
                return True
    return False


def canonical(small: Small, bound: dict[str, Any]) -> Canonical:
    """The least of the images of a binding under the symmetries of its pattern."""
    return min(
        tuple(sorted((name, bound[image[name]]) for name in bound)) for image in symmetries(small)
    )


def symmetries(small: Small) -> Iterable[dict[str, str]]:
    graph: Any = nx.MultiDiGraph()
    closed = small.closed if isinstance(small.closed, tuple) else ()
    for name, match in {**small.ops, **small.absent}.items():
        marks = (name in small.absent, name in closed, name in small.optional)
        graph.add_node(name, kind=(str(match), *marks))
    graph.add_nodes_from((name, {"kind": "tensor"}) for name in small.tensors)
    for source, target, link in small.edges:
        graph.add_edge(source, target, link=link)
    matcher: Any = MultiDiGraphMatcher(
        graph,
        graph,
        node_match=lambda one, two: one["kind"] == two["kind"],
        edge_match=lambda one, two: (
            sorted(str(e["link"]) for e in one.values())
            == sorted(str(e["link"]) for e in two.values())
        ),
    )
    return list(matcher.isomorphisms_iter())


# The links of a body, read plainly.


def reads(body: Body) -> list[tuple[int, int, Tensor | None]]:
    """(reader, slot, tensor); None where it is a control input."""
    found = []
    for reader, inputs in enumerate(body.heads.inputs):
        for slot, text in enumerate(inputs):
            found.append((reader, slot, None if text[0] == "^" else tensor(body, text)))
    return found


def tensor(body: Body, text: str) -> Tensor:
    op, *rest = text.split(":")
    if len(rest) == 2:
        return op, rest[0], int(rest[1])
    return op, "", int(rest[0]) if rest else 0


def output_number(body: Body, read: Tensor) -> int | None:
    if body.is_main:
        return read[2]
    index = body.by_name.get(read[0])
    if index is None:
        return None
    flat = next(node for node in body if node.index == index).outputs or []
    return [(one.name, one.index) for one in flat].index(read[1:])


def is_such(body: Body, index: int, match: Match) -> bool:
    return any(glob_test(text)(body.heads.ops[index]) for text in texts(match.op or "*"))


def fits(body: Body, use: tuple[int, int, Tensor | None], source: int | Tensor, link: Link) -> bool:
    """Whether this use is one of the op or tensor by such a link."""
    reader, slot, read = use
    if isinstance(source, tuple):
        return read == source and link.input in (None, slot)
    if link.control:
        return read is None and body.heads.inputs[reader][slot] == "^" + body.heads.names[source]
    if read is None or read[0] != body.heads.names[source] or link.input not in (None, slot):
        return False
    return link.output is None or output_number(body, read) == link.output


def followers(body: Body, source: int | Tensor, link: Link) -> list[int]:
    return [use[0] for use in reads(body) if fits(body, use, source, link)]


def runs(
    body: Body, source: int | Tensor, end: int, link: Link, match: Match, taken: set[Any]
) -> set[int] | None:
    """The ops on all ways from the source to the end of a run; None where there is no way.

    In a circle a way may come to an op twice, and to the end once: there it ends.
    """
    graph: Any = nx.DiGraph()
    on = Link(input=link.input)
    such = [i for i in range(len(body)) if i not in taken and is_such(body, i, match)]
    graph.add_nodes_from(["source", *such])
    graph.add_edges_from(("source", i) for i in followers(body, source, link) if i in graph)
    for one in such:
        if one != end:
            graph.add_edges_from((one, i) for i in followers(body, one, on) if i in graph)
    if end not in graph or not nx.has_path(graph, "source", end):
        return None
    return {end} | (nx.descendants(graph, "source") & nx.ancestors(graph, end))
