"""All matches of a pattern in a body: columns narrow, neighbourhoods are cut out, networkx decides.

Which ops a node of the pattern can be is told by conditions, and narrowed by the links of the whole
body at once. From each op that the rarest node can be, a neighbourhood is walked along the
pattern's edges; networkx's VF2 says how the pattern lies in it, once for all that are alike. It is
a monomorphism that is looked for: there may be more links than the pattern has, as in `Mul(x, x)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from heapq import nsmallest
from itertools import chain, islice, repeat
from math import log
from operator import attrgetter
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from msgspec.structs import replace
from networkx.algorithms.isomorphism import DiGraphMatcher

from graphpatch.differentiation.flow import lets_through
from graphpatch.errors import MatchError
from graphpatch.graph.node import Body, Node
from graphpatch.graph.walk import data_uses
from graphpatch.match.conditions import Candidates, holds
from graphpatch.match.glob import texts
from graphpatch.match.pattern.overlaps import Binding
from graphpatch.match.pattern.runs import Run
from graphpatch.match.pattern.syntax import variants
from graphpatch.match.pattern.topology import (
    Budget,
    Column,
    Flags,
    Links,
    PatternGraph,
    Topology,
    grouped,
)
from graphpatch.match.spec import Edge, Pattern
from graphpatch.table import IN_MESSAGE, and_more

TEST = 8
"""Steps that a test of networkx counts, beside one for each op that is walked to."""

TRACED = 10_000
"""From how many ops of a body a pattern that matches nothing is traced, in the file's order."""

TOO_FEW = "there are fewer such ops or links than the pattern asks for"

Vertices = tuple[int, ...]
"""What each node of a pattern is bound to."""


class Shape(NamedTuple):
    """What equal neighbourhoods have in common: their vertices are numbers.

    `roles` has for each vertex the nodes of the pattern that it can be, as bits; `links` source,
    reader, slot and the edge of the pattern that it can be.
    """

    roles: tuple[int, ...]
    links: tuple[tuple[int, int, int, int], ...]


class Matcher(DiGraphMatcher):
    """networkx's VF2 on a neighbourhood, which counts its steps and remembers how far it came."""

    def __init__(self, around: Shape, places: Neighbourhoods) -> None:
        # Between two vertices the links: a slot, and the edge of the pattern that it can be.
        self.links: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for source, reader, slot, edge in around.links:
            self.links.setdefault((source, reader), []).append((slot, edge))
        graph: nx.DiGraph[int] = nx.DiGraph(self.links.keys())
        graph.add_nodes_from(range(len(around.roles)))
        wanted: nx.DiGraph[int] = nx.DiGraph()
        wanted.add_nodes_from(places.order)
        wanted.add_edges_from(places.pattern.between)
        super().__init__(graph, wanted)
        self.roles, self.pattern, self.budget = around.roles, places.pattern, places.budget
        self.furthest: dict[int, int] = {}
        self.refused: int | None = None  # the node for which the furthest partial match had no op

    def syntactic_feasibility(self, vertex: int, node: int) -> bool:
        """Return whether a vertex can be a node, and has its links to those that are bound."""
        self.budget.spend(TEST)
        if not self.roles[vertex] >> node & 1:
            return False
        if len(self.core_2) >= len(self.furthest):
            self.furthest, self.refused = dict(self.core_2), node
        return bool(super().syntactic_feasibility(vertex, node))  # type: ignore[no-untyped-call]

    def semantic_feasibility(self, vertex: int, node: int) -> bool:
        """Return whether each edge to a node that is bound can be a link of its own."""
        bound = {**self.core_2, node: vertex}
        self.budget.spend(len(bound) + len(self.G1) // 4)
        for first, second in self.pattern.twins:
            if node in (first, second) and bound.get(first, -1) > bound.get(
                second, len(self.roles)
            ):
                return False
        targets = (node, *self.G2.successors(node))
        return all(self._has_slots(target, bound) for target in targets if target in bound)

    def _has_slots(self, target: int, bound: Mapping[int, int]) -> bool:
        slots: dict[int, list[int]] = {}  # those that each edge can enter by
        for source in self.G2.predecessors(target):
            if source in bound:
                edges = self.pattern.between[source, target]
                slots |= {edge: [] for edge in edges}
                for slot, edge in self.links[bound[source], bound[target]]:
                    if edge in edges:
                        slots[edge].append(slot)
        return are_apart([*slots.values()])

    def matches(self) -> Iterator[Vertices]:
        """Yield a vertex for each node of the pattern, in every way."""
        for mapping in self.subgraph_monomorphisms_iter():
            self.budget.spend(len(mapping))
            yield tuple(sorted(mapping, key=mapping.__getitem__))


def are_apart(choices: Sequence[Sequence[int]], taken: Collection[int] = ()) -> bool:
    """Return whether each of these can have a choice of its own."""
    if not choices:
        return True
    return any(
        are_apart(choices[1:], (*taken, choice)) for choice in choices[0] if choice not in taken
    )


class Neighbourhoods:
    """The parts of a body that could hold a match, each around an op that one node can be.

    `masks` tell which vertices each node can be, `links` what each edge can be. VF2 is worse
    than linear, so that many small ones are better than a large one: of the `anchors` it takes the
    node from which the walk over the pattern's edges reaches the fewest.
    """

    def __init__(
        self,
        pattern: PatternGraph,
        anchors: Iterable[int],
        masks: Sequence[Flags],
        links: Sequence[Links],
        budget: Budget,
    ) -> None:
        self.pattern, self.links, self.budget = pattern, links, budget
        self.size, counts = len(masks[0]), [int(mask.sum()) for mask in masks]
        walks: nx.DiGraph[int] = nx.DiGraph()
        walks.add_nodes_from(range(len(counts)))
        for edge, (source, target, _) in enumerate(pattern.edges):
            ends = links[edge].source, links[edge].reader
            for known, node, column, least in (
                (target, source, ends[1], 0.01),
                (source, target, ends[0], 0.02),
            ):
                cost = log(max(1.0, len(column) / max(1, len(np.unique(column))))) + least
                if not walks.has_edge(known, node) or walks[known][node]["cost"] > cost:
                    walks.add_edge(known, node, cost=cost, edge=edge)
        plans = []
        for anchor in anchors:
            routes: Any = nx.single_source_dijkstra(walks, anchor, weight="cost")
            costs, paths = routes
            plans.append((round(max(costs.values()), 1), counts[anchor], anchor, costs, paths))
        _, _, self.anchor, costs, paths = min(plans, key=lambda plan: plan[:3])
        self.order = sorted(costs, key=lambda node: (costs[node], node))
        # The next node to walk to: from which node that was reached before, by which edge.
        self.steps: list[tuple[int, int, int]] = [
            (*paths[node][-2:], walks.edges[paths[node][-2:]]["edge"]) for node in self.order[1:]
        ]
        self.ends: list[tuple[Column, Column]] = []  # of each step: from where to where
        for known, _, edge in self.steps:
            columns = links[edge].source, links[edge].reader
            self.ends.append(columns if known == pattern.edges[edge][0] else columns[::-1])

    @cached_property
    def leads(self) -> list[dict[int, list[int]]]:
        """Return for each step where it leads to from each vertex."""
        return [grouped(known, linked.tolist()) for known, linked in self.ends]

    @cached_property
    def read(self) -> dict[int, list[tuple[int, int, int]]]:
        """Return what each op reads: the vertex, the slot, and the edge that the link can be."""
        read: dict[int, list[tuple[int, int, int]]] = {}
        for edge, (sources, readers, slots) in enumerate(self.links):
            is_slotted = self.pattern.edges[edge][1] in self.pattern.slotted
            entered = slots.tolist() if is_slotted else repeat(-1 - edge)
            for reader, *link in zip(readers.tolist(), sources.tolist(), entered, repeat(edge)):
                read.setdefault(reader, []).append(tuple(link))
        return read

    def trees(self, starts: Column) -> tuple[list[list[int]], Shape, list[int]]:
        """Return the neighbourhoods that are trees, in which each node can be one vertex alone.

        They are all alike: the vertices of each, in the order of the walk; their shape. The starts
        of the others come last.
        """
        place = {node: number for number, node in enumerate(self.order)}
        edges = [(place[source], place[end]) for source, end, _ in self.pattern.edges]
        links = ((*ends, -1 - edge, edge) for edge, ends in enumerate(edges))
        shape = Shape(tuple(1 << node for node in self.order), tuple(links))
        # Where slots or the file's order decide, neighbourhoods with the same links may differ.
        if len(self.steps) < len(edges) or self.pattern.slotted or self.pattern.twins:
            return [], shape, starts.tolist()
        columns, is_tree = {self.anchor: starts}, np.ones(len(starts), np.bool_)
        for (known, node, _), (ends, linked) in zip(self.steps, self.ends, strict=True):
            lead = np.zeros(self.size, np.int64)
            lead[ends] = linked
            columns[node] = lead[columns[known]]
            is_tree &= np.bincount(ends, minlength=self.size)[columns[known]] == 1
        rows = np.stack([columns[node] for node in self.order], axis=1)
        is_tree &= (np.diff(np.sort(rows, axis=1), axis=1) > 0).all(axis=1)
        return rows[is_tree].tolist(), shape, starts[~is_tree].tolist()

    def reached(self, start: int) -> dict[int, Collection[int]]:
        """Return which vertices each node can be around a start, as far as any are linked."""
        reached: dict[int, Collection[int]] = {self.anchor: (start,)}
        for (known, node, _), leads in zip(self.steps, self.leads, strict=True):
            vertices: Collection[int]
            if len(reached[known]) == 1:
                (vertex,) = reached[known]
                vertices = leads.get(vertex, ())
            else:
                linked = chain.from_iterable(leads.get(vertex, ()) for vertex in reached[known])
                vertices = dict.fromkeys(linked)
            if not vertices:
                break
            if len(vertices) > 1:
                self.budget.task = f"{self.pattern.names[node]!r} can be too many ops"
                self.budget.spend(len(vertices))
            reached[node] = vertices
        return reached

    def around(self, reached: Mapping[int, Iterable[int]]) -> tuple[list[int], Shape]:
        """Return the vertices of a neighbourhood, and what it is like."""
        roles: dict[int, int] = {}
        for node, vertices in reached.items():
            for vertex in vertices:
                roles[vertex] = roles.get(vertex, 0) | 1 << node
        if self.pattern.twins:
            roles = dict(sorted(roles.items()))  # numbered in the file's order
        number = {vertex: place for place, vertex in enumerate(roles)}
        links = [
            (number[source], place, slot, edge)
            for vertex, place in number.items()
            if vertex in self.read
            for source, slot, edge in self.read[vertex]
            if source in number
        ]
        return list(roles), Shape(tuple(roles.values()), tuple(links))

    def most_meant(self, shape: Shape) -> str:
        """Return which node of the pattern can be the most ops, in words."""
        nodes = range(len(self.pattern.names))
        counts = [sum(role >> node & 1 for role in shape.roles) for node in nodes]
        node = max(nodes, key=counts.__getitem__)
        what = "ops" if node < self.pattern.op_count else "tensors"
        return f"{self.pattern.names[node]!r} can be {counts[node]:,} {what}"


class NearMiss(NamedTuple):
    """How far a pattern came at one place: the ops that were found, by name; why not further."""

    reached: dict[str, Node]
    reason: str

    def __str__(self) -> str:
        return "; ".join(
            [", ".join(f"{name} is {node}" for name, node in self.reached.items()), self.reason]
        )


class Search:
    """The matches of one variant of a pattern, in which nothing is optional, in one body."""

    def __init__(
        self,
        topology: Topology,
        variant: PatternGraph,
        ready: Mapping[str, Candidates],
        budget: Budget,
    ) -> None:
        self.topology, self.variant, self.ready, self.budget = topology, variant, ready, budget
        self.body, self.pattern, self.edges = topology.body, variant.pattern, variant.edges
        self.candidates = [ready[name] for name in variant.pattern.present]
        ops, tensors = len(self.body), len(variant.pattern.tensors)
        each = len(topology.tensors) if tensors else 0
        self.offsets = {variant.op_count + k: ops + k * each for k in range(tensors)}
        self.size = ops + tensors * each
        self.runs: dict[str, Run] = {}

    def bindings(self) -> Iterator[Binding]:
        """Yield every match. Raises MatchError where it takes too many steps to find them."""
        for vertices in sorted(self._assignments()):
            binding = self.completed(vertices)
            if isinstance(binding, Binding):
                yield binding

    # Narrowing: columns.

    def _masks(self, by_index: bool) -> list[Flags]:
        """Return the vertices that each node can be: by the index alone, or by all conditions."""
        masks = [np.zeros(self.size, np.bool_) for _ in self.variant.names]
        for mask, candidates in zip(masks, self.candidates, strict=False):
            mask[candidates.indexed if by_index else candidates.indices()] = True
        for node, offset in self.offsets.items():
            masks[node][offset : offset + len(self.topology.tensors)] = True
        return masks

    def _links(self, edge: int, masks: Sequence[Flags]) -> Links:
        """Return what an edge can be; of a run what is before it and its end, each pair once."""
        source, target, link = self.edges[edge]
        offset = self.offsets.get(source)
        if not link.repeat:
            return self.topology.links(link, masks[source], masks[target], offset)
        return self._run(edge, masks[source]).links(masks[source], masks[target], -1 - edge)

    def _run(self, edge: int, starts: Flags) -> Run:
        source, target, link = self.edges[edge]
        name = self.variant.names[target]
        if name not in self.runs:
            run = Edge(self.variant.names[source], name, link)
            self.runs[name] = Run(
                self.topology, run, self.ready[name], starts, self.offsets.get(source), self.budget
            )
        return self.runs[name]

    def _narrow(self, masks: Sequence[Flags], links: dict[int, Links]) -> bool:
        """Leave out vertices without a link for each edge, and links without both ends."""
        before = -1
        while before != (before := sum(len(columns.source) for columns in links.values())):
            for edge, columns in links.items():
                source, target, _ = self.edges[edge]
                columns = columns.where(masks[source][columns.source])
                links[edge] = columns = columns.where(masks[target][columns.reader])
                for node, ends in ((source, columns.source), (target, columns.reader)):
                    linked = np.zeros(self.size, np.bool_)
                    linked[ends] = True
                    masks[node][...] &= linked
        return all(bool(mask.any()) for mask in masks)

    def _narrowed(self) -> tuple[list[Flags], list[Links]] | None:
        """Return what each node and each edge can be; None where one can be nothing."""
        masks = self._masks(by_index=True)
        plain = [number for number, edge in enumerate(self.edges) if not edge[2].repeat]
        runs = [number for number, edge in enumerate(self.edges) if edge[2].repeat]
        links = {edge: self._links(edge, masks) for edge in plain}
        if not self._narrow(masks, links):
            return None
        for mask, candidates in zip(masks, self.candidates, strict=False):
            if candidates.besides:
                places = np.flatnonzero(mask).tolist()
                mask[[place for place in places if not candidates.passes(place)]] = False
        if not self._narrow(masks, links):
            return None
        for edge in runs:
            source, end, _ = self.edges[edge]
            if all(end != source for source, _, _ in self.edges):  # nothing follows the run
                others = np.zeros(self.size, np.bool_)
                for candidates in self.candidates[:end] + self.candidates[end + 1 :]:
                    others[candidates.indexed] = True
                masks[end][...] &= ~self._run(edge, masks[source]).surely_goes_on(others)
            links[edge] = self._links(edge, masks)
            if not self._narrow(masks, links):
                return None
        return masks, [links[edge] for edge in range(len(links))]

    def _assignments(self) -> Iterator[Vertices]:
        """Every way in which the pattern lies in the body."""
        narrowed = self._narrowed()
        if narrowed is None:
            return
        masks, links = narrowed
        places = Neighbourhoods(
            self.variant, range(self.variant.op_count), masks, links, self.budget
        )
        trees, tree, starts = places.trees(np.flatnonzero(masks[places.anchor]))
        others = (places.around(places.reached(start)) for start in starts)
        decided = self.variant.decided
        for vertices, shape in chain(zip(trees, repeat(tree)), others):
            matches = decided.get(shape)
            if matches is None:
                around = Node(self.body, vertices[0])
                self.budget.task = f"around {around}, {places.most_meant(shape)}"
                decided[shape] = matches = list(Matcher(shape, places).matches())
            self.budget.spend(len(matches) * len(places.order))
            for assigned in matches:
                yield tuple([vertices[number] for number in assigned])

    # What a match must keep to besides its edges: the answer is a reason, or nothing.

    def completed(self, vertices: Vertices) -> Binding | str:
        """Return the match of an assignment, with its runs; or why it is none."""
        variant, count = self.variant, self.variant.op_count
        ops: list[tuple[int, ...]] = [(vertex,) for vertex in vertices[:count]]
        if variant.is_plain:
            return Binding(self.body, self.pattern, tuple(ops), (), tuple(sorted(vertices)))
        bound = dict(zip(variant.names, vertices, strict=True))
        for name, run in self.runs.items():
            run_ops = run.ops(bound)
            if not run_ops:
                return f"the run to {name!r} leads through another op of the match"
            ops[variant.names.index(name)] = run_ops
        read = tuple([self.topology.tensor_of(vertex) for vertex in vertices[count:]])
        indices = tuple(sorted(chain.from_iterable(ops)))
        binding = Binding(self.body, self.pattern, tuple(ops), read, indices)
        self.budget.spend(len(binding.indices))
        return next(self._reasons(binding, bound), binding)

    def _reasons(self, binding: Binding, bound: Mapping[str, int]) -> Iterator[str]:
        """Yield why a match is none."""
        mine, pattern = set(binding.indices), self.pattern
        for name, tensor in zip(pattern.tensors, binding.read, strict=True):
            if self.body.by_name.get(tensor.op) in mine:
                yield f"{name}:_ is a tensor from outside, and an op of the match gives {tensor}"
        read_inside = {edge.source for edge in pattern.edges if edge.target not in pattern.absent}
        for name in self.runs.keys() - read_inside:
            for index in self.runs[name].readers.get(bound[name], ()):
                if index not in mine:
                    yield f"the run {name!r} goes on with {Node(self.body, index)}"
        for name, ends in self._in_place_of.items():
            linked = (set(ops.get(bound[known], ())) for known, ops in ends)
            for index in sorted(set.intersection(*linked) - mine):
                if self.ready[name].passes(index):
                    yield f"{Node(self.body, index)} is there, which must be absent ({name!r})"
        if pattern.closed is not False:
            yield from _read_outside(binding, read_inside)

    @cached_property
    def _in_place_of(self) -> dict[str, list[tuple[str, dict[int, list[int]]]]]:
        """Return for each absent op its edges: the name that is there, and the ops beside it."""
        places: dict[str, list[tuple[str, dict[int, list[int]]]]] = {}
        number, every = self.variant.names.index, np.ones(self.size, np.bool_)
        for edge in self.pattern.edges:
            if edge.target in self.pattern.absent:
                offset = self.offsets.get(number(edge.source))
                links = self.topology.links(edge.link, every, every, offset)
                beside = grouped(links.source, links.reader.tolist())
                places.setdefault(edge.target, []).append((edge.source, beside))
            elif edge.source in self.pattern.absent:
                links = self.topology.links(edge.link, every, every)
                beside = grouped(links.reader, links.source.tolist())
                places.setdefault(edge.source, []).append((edge.target, beside))
        return places

    # Why there is no match: the same walk and the same matcher, before anything is narrowed.

    def near_misses(self, most: int) -> Iterator[NearMiss]:
        """Yield how far the pattern came from the ops of its rarest node, the furthest first."""
        rarest = min(
            range(self.variant.op_count),
            key=lambda node: len(self.candidates[node].indexed) or len(self.body) + 1,
        )
        masks = self._masks(by_index=False)
        with suppress(MatchError):
            links = [self._links(edge, masks) for edge in range(len(self.edges))]
            places = Neighbourhoods(self.variant, [rarest], masks, links, self.budget)
            starts = np.flatnonzero(masks[rarest])[:TRACED].tolist()
            refused: Counter[Shape] = Counter()
            for reached in sorted(map(places.reached, starts), key=len, reverse=True):
                if len(reached) < len(places.order):
                    yield self._where_it_stopped(reached, places)
                    continue
                vertices, shape = places.around(reached)
                refused[shape] += 1
                if refused[shape] <= most:
                    yield from self._refused(vertices, Matcher(shape, places))

    def _where_it_stopped(
        self, reached: Mapping[int, Collection[int]], places: Neighbourhoods
    ) -> NearMiss:
        """Return what stood where the next op should, and which condition it does not meet."""
        bound = {places.anchor: next(iter(reached[places.anchor]))}
        walked = zip(places.steps[: len(reached) - 1], places.leads, strict=False)
        for (known, node, _), leads in walked:
            bound[node] = next(iter(leads.get(bound[known], reached[node])))
        known, node, edge = places.steps[len(reached) - 1]
        source, _, link = self.edges[edge]
        here, anywhere = np.zeros(self.size, np.bool_), np.ones(self.size, np.bool_)
        here[list(reached[known])] = True
        if known == source:
            linked = self.topology.links(link, here, anywhere, self.offsets.get(source)).reader
        else:
            linked = self.topology.links(link, anywhere, here).source
        reasons = [
            _why_not(self.candidates[node], Node(self.body, op))
            for op in np.unique(linked).tolist()
            if node < self.variant.op_count
        ]
        rejections = [reason for reason in reasons if reason]
        words = [*rejections[:IN_MESSAGE], and_more(rejections, IN_MESSAGE)]
        name = self.variant.names[known]
        if not reasons:
            how = "reads" if known == source else "is read by"
            words.append(f"nothing {how} {name!r} there")
        elif len(rejections) < len(reasons):
            words.append(f"none that is linked with {name!r} has the other links too")
        missing = f"{self.variant.names[node]} is missing: {'; '.join(filter(None, words))}"
        return NearMiss(self._named(bound), missing)

    def _refused(self, vertices: Sequence[int], matcher: Matcher) -> Iterator[NearMiss]:
        """Yield why a neighbourhood that has an op for each node holds no match."""
        assigned = next(matcher.matches(), None)
        if assigned is not None:
            bound = tuple(vertices[vertex] for vertex in assigned)
            reason = self.completed(bound)
            if isinstance(reason, str):
                yield NearMiss(self._named(dict(enumerate(bound))), reason)
            return
        missing = "" if matcher.refused is None else self.variant.names[matcher.refused]
        furthest = {node: vertices[vertex] for node, vertex in matcher.furthest.items()}
        reason = f"{missing} is missing: {TOO_FEW}" if missing else TOO_FEW
        yield NearMiss(self._named(furthest), reason)

    def _named(self, bound: Mapping[int, int]) -> dict[str, Node]:
        present = enumerate(self.pattern.present)
        return {name: Node(self.body, bound[node]) for node, name in present if node in bound}


def _why_not(candidates: Candidates, node: Node) -> str:
    """Return the first thing that an op has instead of what is asked for; nothing where all is."""
    failing = candidates.failing(node)[:1]
    if failing == ["op"]:
        return f"{node} is not {' or '.join(texts(candidates.match.op or ()))}"
    return f"of {node} {candidates.instead(node, failing)}" if failing else ""


def _read_outside(binding: Binding, read_inside: Collection[str]) -> Iterator[str]:
    """Yield why a match is not closed: an op of it that others of it read is read outside too.

    Ops that read nothing are left out: a constant may well be shared. With names it is these ops
    that nothing outside may read.
    """
    closed = binding.pattern.closed
    for name in binding.pattern.present:
        indices = binding.of([name])
        for index in indices:
            node = Node(binding.body, index)
            is_inner = name in read_inside or index != indices[-1]
            if is_inner and node.data_inputs if isinstance(closed, bool) else name in closed:
                for _, reader in binding.readers(index):
                    yield f"{node} ({name!r}) is read outside, by {reader}"


class Finder:
    """Finds a pattern in bodies. What the pattern alone says is worked out once, for all of them.

    Raises RulesError where a match in the pattern means nothing.
    """

    def __init__(self, pattern: Pattern) -> None:
        self.pattern, self.budget = pattern, Budget()
        self.nodes = {name: holds(match) for name, match in pattern.nodes.items()}

    @cached_property
    def variants(self) -> list[PatternGraph]:
        """Return the pattern with and without its optional ops."""
        return [PatternGraph(variant) for variant in variants(self.pattern)]

    def searches(
        self, body: Body, topology_of: Callable[[Body], Topology], whole: bool = True
    ) -> Iterator[Search]:
        """Yield a search for each variant of the pattern, those with more optional ops first.

        With `whole`, only where each node could be an op of the body, by the index.
        """
        self.budget.allow(body)
        ready = {name: candidates_in(body) for name, candidates_in in self.nodes.items()}
        possible = {name for name, narrowed in ready.items() if not whole or narrowed.indexed}
        for variant in self.variants:
            if possible.issuperset(variant.pattern.present):
                yield Search(topology_of(body), variant, ready, self.budget)

    def matches(
        self, body: Body, topology_of: Callable[[Body], Topology] = Topology
    ) -> list[Binding]:
        """Return every match of the pattern in a body, in the order of their ops in the file.

        Of those that differ by a swap of nodes it is the first, which knows the others. Where an
        optional op is there, the match without it is one for those alone that read its last op
        beside the optional one. Matches may share ops. Raises MatchError where it takes too many
        steps to find them, as their number may be exponential.
        """
        matches: list[Binding] = []
        for search in self.searches(body, topology_of):
            larger = _within(matches, search.pattern)
            for binding in _apart_from_swaps(search):
                around = larger.get(frozenset(binding.indices), []) if larger else []
                if not around or is_read_beside(binding, around):
                    matches.append(binding)
        return sorted(matches, key=attrgetter("indices"))

    def near_misses(
        self, body: Body, topology_of: Callable[[Body], Topology], most: int
    ) -> list[NearMiss]:
        """Return where a pattern that matches nothing came furthest; then the file's order."""
        misses: list[tuple[int, int, int, NearMiss]] = []
        for rank, search in enumerate(self.searches(body, topology_of, whole=False)):
            for place, miss in enumerate(islice(search.near_misses(most), most)):
                missing = search.variant.op_count - len(miss.reached)
                misses.append((missing, rank, place, miss))
        return [ranked[-1] for ranked in nsmallest(most, misses, key=lambda ranked: ranked[:3])]


def _apart_from_swaps(search: Search) -> Iterable[Binding]:
    """Return the matches of a search; of those that differ by a swap the first, with the others."""
    if not search.variant.may_be_swapped:
        return search.bindings()
    alike: dict[Hashable, list[Binding]] = {}
    for binding in search.bindings():
        alike.setdefault(search.variant.identity(binding), []).append(binding)
    twins = search.variant.twins
    return [
        replace(first, swapped=(*rest, *(_with_twins_swapped(first, *pair) for pair in twins)))
        for first, *rest in alike.values()
    ]


def _with_twins_swapped(binding: Binding, first: int, second: int) -> Binding:
    bound = list(binding.bound)
    bound[first], bound[second] = bound[second], bound[first]
    return replace(binding, bound=tuple(bound))


def _within(matches: Iterable[Binding], pattern: Pattern) -> dict[frozenset[int], list[Binding]]:
    """Return the matches of larger variants, by the ops that they have for the nodes of this."""
    present = frozenset(pattern.present)
    within: dict[frozenset[int], list[Binding]] = {}
    for binding in matches:
        if present < frozenset(binding.pattern.present):
            for image in (binding, *binding.swapped):
                ops = within.setdefault(frozenset(image.of(present)), [])
                ops += [] if binding in ops[-1:] else [binding]
    return within


def is_read_beside(binding: Binding, larger: Sequence[Binding]) -> bool:
    """Whether ops outside of these larger matches compute with what the last op of a match gives.

    A larger match that ends in the same op leaves nobody beside. What does not let gradients
    through, as Shape does not, is no such reader.
    """
    body, last = binding.body, binding.last
    if any(larger_match.last == last for larger_match in larger):
        return False
    mine = {index for larger_match in (binding, *larger) for index in larger_match.indices}
    name = body.heads.names[last]
    return bool(body.returned.get(name)) or any(
        index not in mine and lets_through(Node(body, index))
        for index, _, _ in data_uses(body, name)
    )
