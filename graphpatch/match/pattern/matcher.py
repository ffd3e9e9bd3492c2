"""All matches of a pattern in a body: columns narrow, neighbourhoods are cut out, networkx decides.

Which ops a node of the pattern can be is told by conditions, and narrowed by the links of the whole
body at once. From each op that the rarest node can be, a neighbourhood is walked along the
pattern's edges; networkx's VF2 says how the pattern lies in it, once for all that are alike. It is
a monomorphism that is looked for: there may be more links than the pattern has, as in `Mul(x, x)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nsmallest
from itertools import islice
from math import log
from operator import attrgetter
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from networkx.algorithms.isomorphism import DiGraphMatcher

from graphpatch.differentiation.flow import lets_through
from graphpatch.errors import MatchError
from graphpatch.graph.node import Body, Node
from graphpatch.graph.walk import data_uses
from graphpatch.match.keys import Condition
from graphpatch.match.pattern.overlaps import Binding
from graphpatch.match.pattern.syntax import variants
from graphpatch.match.pattern.topology import (
    Column,
    Flags,
    PatternTopology,
    Topology,
    reached,
)
from graphpatch.match.select import Candidates, candidates
from graphpatch.match.spec import Edge, Link, Match, Pattern

LEAST, FOR_EACH = 1_000_000, 20
"""Steps that may be taken for one pattern: so many, and so many more for each op.

How often a pattern matches, and how many ops its runs have, may grow as any power of the body. A
pattern that says which ops it means takes about ten steps for each of them.
"""

TEST = 8
"""Steps that a test of networkx counts, beside one for each op that is walked to."""

TRACED = 10_000
"""From how many ops of a body a pattern that matches nothing is traced, in the file's order."""

Conditions = Callable[[Match], Mapping[str, Condition]]
"""The conditions of a match, by key."""

Vertices = tuple[int, ...]
"""What each node of a pattern is bound to."""


class _OutOfSteps(Exception):
    """The pattern means too much."""


class Budget:
    """Counts the steps of a search."""

    def __init__(self) -> None:
        self.steps, self.most = 0, LEAST

    def spend(self, count: int) -> None:
        """Count steps; raise where they are too many by now."""
        self.steps += count
        if self.steps > self.most:
            raise _OutOfSteps


class Matcher(DiGraphMatcher):
    """networkx's VF2 on a neighbourhood, which counts its steps and remembers how far it came."""

    def __init__(
        self, around: _Around, pattern: PatternTopology, order: Sequence[int], budget: Budget
    ) -> None:
        self.roles: dict[int, int] = {}
        for vertex, node in _rows(around.roles, 2):
            self.roles[vertex] = self.roles.get(vertex, 0) | 1 << node
        self.ranks = [rank for (rank,) in _rows(around.ranks, 1)]
        # Between two vertices: by its slot, the edges that each link can be, as bits.
        self.links: dict[tuple[int, int], dict[int, int]] = {}
        for source, reader, slot, edge in _rows(around.links, 4):
            between = self.links.setdefault((source, reader), {})
            between[slot] = between.get(slot, 0) | 1 << edge
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(self.roles)
        graph.add_edges_from(self.links)
        super().__init__(graph, pattern.graph(order))
        self.pattern, self.budget = pattern, budget
        self.furthest: dict[int, int] = {}
        self.refused: int | None = None  # the node for which the furthest partial match had no op

    def syntactic_feasibility(self, vertex: int, node: int) -> bool:
        """Whether a vertex can be a node, and has its links to those that are bound already."""
        self.budget.spend(TEST)
        if not self.roles[vertex] >> node & 1:
            return False
        if len(self.core_2) >= len(self.furthest):
            self.furthest, self.refused = dict(self.core_2), node
        return bool(super().syntactic_feasibility(vertex, node))  # type: ignore[no-untyped-call]

    def semantic_feasibility(self, vertex: int, node: int) -> bool:
        """Whether each edge can be a link of its own, and swapped nodes are in the file's order."""
        bound, ranks = {**self.core_2, node: vertex}, self.ranks
        for (source, target), edges in self.pattern.between.items():
            if node in (source, target) and source in bound and target in bound:
                links = self.links[bound[source], bound[target]]
                if not _assigned(edges, [*links.values()]):
                    return False
        for first, second in self.pattern.before:
            both = node in (first, second) and first in bound and second in bound
            if both and ranks[bound[first]] > ranks[bound[second]]:
                return False
        self.budget.spend(len(bound) + len(self.G1) // 4)
        return True

    def matches(self) -> Iterator[Vertices]:
        """Yield a vertex for each node of the pattern, in every way."""
        for mapping in self.subgraph_monomorphisms_iter():
            bound = {node: vertex for vertex, node in mapping.items()}
            vertices = tuple(bound[node] for node in range(len(bound)))
            self.budget.spend(len(vertices))
            if self._tensors_apart(vertices):
                yield vertices

    def _tensors_apart(self, vertices: Vertices) -> bool:
        """Return whether edges from names of one and the same tensor each have a link."""
        ranks, ops = self.ranks, self.pattern.op_count
        read = [ranks[vertex] for vertex in vertices[ops:]] if ranks else []
        if len(set(read)) == len(read):
            return True
        edges: dict[tuple[int, int], list[int]] = {}
        for (source, target), bits in self.pattern.between.items():
            if source >= ops:
                edges.setdefault((ranks[vertices[source]], vertices[target]), []).extend(bits)
        links: dict[tuple[int, int], dict[int, int]] = {}
        for (source, reader), slots in self.links.items():
            between = links.setdefault((ranks[source], reader), {})
            for slot, bits_here in slots.items():
                between[slot] = between.get(slot, 0) | bits_here
        return all(_assigned(wanted, [*links[ends].values()]) for ends, wanted in edges.items())


def _assigned(edges: Sequence[int], links: Sequence[int]) -> bool:
    """Return whether each edge of the pattern can be a link of its own."""
    if len(edges) == 1:
        return any(link & edges[0] for link in links)
    return not edges or any(
        link & edges[0] and _assigned(edges[1:], [*links[:at], *links[at + 1 :]])
        for at, link in enumerate(links)
    )


class _Around(NamedTuple):
    """A neighbourhood, with its vertices by number: what equal ones have in common, as bytes.

    `roles` are pairs of a vertex and a node that it can be; `links` have source, reader, slot and
    the edge of the pattern that they can be; `ranks` the place of each vertex in the file. Slots
    and ranks are there where the pattern asks for them.
    """

    roles: bytes
    links: bytes
    ranks: bytes


def _rows(data: bytes, width: int) -> list[tuple[int, ...]]:
    return [tuple(row) for row in np.frombuffer(data, np.int64).reshape(-1, width).tolist()]


class _Step(NamedTuple):
    """The next node to walk to: by which edge, from which node that was reached before."""

    known: int
    node: int
    edge: int


class Search:
    """The matches of one variant of a pattern, in which nothing is optional, in one body."""

    def __init__(
        self,
        topology: Topology,
        variant: PatternTopology,
        ready: Mapping[str, Candidates],
        budget: Budget,
    ) -> None:
        self.topology, self.variant, self.ready, self.budget = topology, variant, ready, budget
        self.body, self.pattern, self.edges = topology.body, variant.pattern, variant.edges
        self.candidates = [ready[name] for name in variant.pattern.present]
        ops, tensors = len(self.body), len(variant.pattern.tensors)
        each = len(topology.tensors) if tensors else 0
        self.offsets = {variant.op_count + k: ops + k * each for k in range(tensors)}
        self.size, self.each = ops + tensors * each, each
        self.is_ranked = bool(variant.before) or tensors > 1
        self.has_slots = tensors > 1 or any(len(links) > 1 for links in variant.between.values())
        self.step = "its matches are too many"  # what is worked on, for the message of the budget

    def bindings(self) -> Iterator[Binding]:
        """Every match. Raises MatchError where it takes too many steps to find them."""
        try:
            for vertices in sorted(self._assignments()):
                binding, reason = self.with_runs(vertices)
                if binding is not None and not reason:
                    yield binding
        except _OutOfSteps:
            most, label = self.budget.most, self.body.label
            raise MatchError(
                f"to find the pattern in {label} takes more than {most:,} steps ({LEAST:,}, and"
                f" {FOR_EACH} for each op): {self.step}; name op types instead of *, give the"
                " input slots of links (-> add:0), and say what a run starts behind and ends before"
            ) from None

    # Narrowing: columns.

    def _masks(self) -> list[Flags]:
        """Return the vertices that each node can be, by the index."""
        masks = [np.zeros(self.size, np.bool_) for _ in self.variant.names]
        for mask, narrowed in zip(masks, self.candidates, strict=False):
            mask[narrowed.indexed()] = True
        for node, offset in self.offsets.items():
            masks[node][offset : offset + len(self.topology.tensors)] = True
        return masks

    def _links(self, edge: int, masks: Sequence[Flags]) -> tuple[Column, Column, Column]:
        """Return the links that an edge can be: source, reader, slot."""
        source, target, link = self.edges[edge]
        topology = self.topology
        sources = topology.source
        if source in self.offsets:
            sources = np.where(topology.control, -1, topology.tensor + self.offsets[source])
        legal = (sources >= 0) & (topology.control == link.control)
        if link.input is not None:
            legal &= topology.slot == link.input
        places = np.flatnonzero(legal)
        fits = masks[source][sources[places]] & masks[target][topology.reader[places]]
        places = places[fits]
        if link.output is not None:
            is_output, texts = topology.is_output, topology.texts
            fit = [is_output(texts[place], int(sources[place]), link.output) for place in places]
            places = places[np.array(fit, np.bool_)]
        return sources[places], topology.reader[places], topology.slot[places]

    def _run_links(self, edge: int, masks: Sequence[Flags]) -> tuple[Column, Column, Column]:
        """Return the pairs of what a run starts behind and of its end, each once."""
        source, target, link = self.edges[edge]
        on, passes, topology = Link(input=link.input), self.candidates[target].passes, self.topology
        offset = self.offsets.get(source)
        starts, ends = (np.flatnonzero(masks[node]).tolist() for node in (source, target))
        self.step = f"the run {self.variant.names[target]!r} can start behind {len(starts):,} and"
        self.step += f" end in {len(ends):,} ops"

        def readers(vertex: int, link: Link = on) -> list[int]:
            uses = list(topology.readers(vertex, link))
            self.budget.spend(2 + 2 * len(uses))
            return uses

        def read(index: int) -> list[int]:
            self.budget.spend(4)
            return [producer for producer, _ in topology.read(index, on)]

        behind = (index for start in starts for index in readers(start, link))
        ahead = reached(behind, readers, passes)
        ends = [end for end in ends if end in ahead]
        between = reached(ends, read, ahead.__contains__).__contains__
        pairs = set[tuple[int, int]]()
        if len(starts) <= len(ends):
            wanted = set(ends)
            for start in starts:
                run = reached(readers(start, link), readers, between)
                pairs |= {(start, end) for end in run & wanted}
        else:
            wanted = set(starts)
            for end in ends:
                for index in reached([end], read, between):
                    giving = topology.read(index, link, offset)
                    pairs |= {(start, end) for start, _ in giving if start in wanted}
        self.budget.spend(len(pairs))
        columns = np.array(sorted(pairs), np.int64).reshape(-1, 2)
        return columns[:, 0], columns[:, 1], np.full(len(columns), -1 - edge)

    def _narrow(self, masks: Sequence[Flags], links: dict[int, tuple[Column, ...]]) -> bool:
        """Leave out vertices without a link for each edge, and links without both ends."""
        for _ in range(len(masks) + 1):
            before = sum(map(len, (columns[0] for columns in links.values())))
            for edge, columns in links.items():
                source, target, _ = self.edges[edge]
                fits = masks[source][columns[0]] & masks[target][columns[1]]
                links[edge] = columns = tuple(column[fits] for column in columns)
                for node, ends in ((source, columns[0]), (target, columns[1])):
                    linked = np.zeros(self.size, np.bool_)
                    linked[ends] = True
                    masks[node][...] &= linked
            if sum(map(len, (columns[0] for columns in links.values()))) == before:
                break
        return all(bool(mask.any()) for mask in masks)

    def _narrowed(self) -> tuple[list[Flags], dict[int, tuple[Column, ...]]] | None:
        """Return what each node and each edge can be; None where one can be nothing."""
        masks, runs = self._masks(), [n for n, edge in enumerate(self.edges) if edge[2].repeat]
        plain = [number for number in range(len(self.edges)) if number not in runs]
        links: dict[int, tuple[Column, ...]] = {n: self._links(n, masks) for n in plain}
        if not self._narrow(masks, links):
            return None
        for mask, narrowed in zip(masks, self.candidates, strict=False):
            if narrowed.tests:
                places = np.flatnonzero(mask).tolist()
                mask[[place for place in places if not narrowed.passes(place)]] = False
        if not self._narrow(masks, links):
            return None
        for edge in runs:
            self._leave_out_begun_runs(self.edges[edge], masks)
        for edge in runs:
            links[edge] = self._run_links(edge, masks)
            if not self._narrow(masks, links):
                return None
        return masks, links

    def _leave_out_begun_runs(self, edge: tuple[int, int, Link], masks: Sequence[Flags]) -> None:
        """Take out ends of a run that nothing follows, where the run surely goes on behind them.

        It does with an op that no other node of the pattern can be, and that is not in a loop with
        the end. Otherwise `_goes_on` looks at each match.
        """
        _, end, link = edge
        if any(source == end for source, _, _ in self.edges):
            return
        others = np.zeros(self.size, np.bool_)
        for node in range(self.variant.op_count):
            if node != end:
                others |= masks[node]
                if any(target == node and run.repeat for _, target, run in self.edges):
                    others[self.candidates[node].indexed()] = True
        order, size, passes = self.topology.order, len(self.body), self.candidates[end].passes
        on = Link(input=link.input)
        for index in np.flatnonzero(masks[end]).tolist():
            if order[index] < size and any(
                not others[reader] and passes(reader) for reader in self.topology.readers(index, on)
            ):
                masks[end][index] = False

    # Where to look: from which node to start, over which edges to go on.

    def _plan(
        self, anchors: Iterable[int], counts: Sequence[int], links: Mapping[int, tuple[Column, ...]]
    ) -> tuple[int, list[_Step]]:
        """Return where to start, and how to go on so that neighbourhoods stay small.

        VF2 is worse than linear: many small ones are better than a large one.
        """
        walks: nx.DiGraph[int] = nx.DiGraph()
        walks.add_nodes_from(range(len(counts)))
        for edge, (source, target, _) in enumerate(self.edges):
            for known, node, ends in ((target, source, 1), (source, target, 0)):
                column = links[edge][ends]
                fan_out = len(column) / max(1, len(np.unique(column)))
                cost = log(max(1.0, fan_out)) + (0.01 if ends else 0.02)
                if not walks.has_edge(known, node) or walks[known][node]["cost"] > cost:
                    walks.add_edge(known, node, cost=cost, edge=edge)
        plans = []
        for anchor in anchors:
            routes: Any = nx.single_source_dijkstra(walks, anchor, weight="cost")
            costs, paths = routes
            steps = {path[-1]: (path[-2], path[-1]) for path in paths.values() if len(path) > 1}
            ordered = [
                _Step(*steps[node], walks.edges[steps[node]]["edge"])
                for node in sorted(steps, key=lambda node: (costs[node], node))
            ]
            plans.append((round(max(costs.values()), 1), counts[anchor], anchor, ordered))
        return min(plans)[2:]

    def _assignments(self) -> Iterator[Vertices]:
        """Every way in which the pattern lies in the body."""
        narrowed = self._narrowed()
        if narrowed is None:
            return
        masks, links = narrowed
        counts = [int(mask.sum()) for mask in masks]
        anchor, steps = self._plan(range(self.variant.op_count), counts, links)
        starts, order = np.flatnonzero(masks[anchor]), [anchor, *(step.node for step in steps)]
        at = self._walk(starts, anchor, steps, links)
        decided = self.variant.decided
        for vertices, around in self._neighbourhoods(len(starts), at, links):
            matches = decided.get(around)
            if matches is None:
                self.step = self._most_meant(vertices, around)
                matches = list(Matcher(around, self.variant, order, self.budget).matches())
                decided[around] = matches
            self.budget.spend(len(matches) * len(order))
            for assigned in matches:
                yield tuple([vertices[number] for number in assigned])

    def _walk(
        self,
        starts: Column,
        anchor: int,
        steps: Iterable[_Step],
        links: Mapping[int, tuple[Column, ...]],
    ) -> dict[int, tuple[Column, Column]]:
        """By node which vertices it can be in which neighbourhood, by the number of its start."""
        at = {anchor: (np.arange(len(starts)), starts)}
        for known, node, edge in steps:
            self.step = f"{self.variant.names[node]!r} can be too many ops"
            ends = links[edge][:2] if known == self.edges[edge][0] else links[edge][1::-1]
            where, vertices = at[known]
            rows, link_rows = self._joined(vertices, ends[0])
            reached = np.unique(where[rows] * self.size + ends[1][link_rows])
            at[node] = np.divmod(reached, self.size)
        return at

    def _joined(self, vertices: Column, ends: Column) -> tuple[Column, Column]:
        """Each vertex with each link that has it at this end: their places in both columns."""
        order = np.argsort(ends, kind="stable")
        low, high = (np.searchsorted(ends[order], vertices, side) for side in ("left", "right"))
        counts = high - low
        total = int(counts.sum())
        self.budget.spend(total)
        within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(np.arange(len(vertices)), counts), order[np.repeat(low, counts) + within]

    def _neighbourhoods(
        self,
        count: int,
        at: Mapping[int, tuple[Column, Column]],
        links: Mapping[int, tuple[Column, ...]],
    ) -> Iterator[tuple[list[int], _Around]]:
        """Yield the vertices of each neighbourhood, as they were reached, and what it is like."""
        reached = np.concatenate([where * self.size + vertices for where, vertices in at.values()])
        nodes = np.repeat(list(at), [len(where) for where, _ in at.values()])
        keys, first, key = np.unique(reached, return_index=True, return_inverse=True)
        where, vertices = np.divmod(keys, self.size)
        order = np.lexsort((first, where))
        begins = np.searchsorted(where, np.arange(count + 1))
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        number -= begins[where]  # of each vertex in its neighbourhood

        edges = np.repeat(list(links), [len(columns[0]) for columns in links.values()])
        every = [np.concatenate([*some]) for some in zip(*links.values(), strict=True)]
        sources, readers, slots = every if every else [np.zeros(0, np.int64)] * 3
        rows, link = self._joined(vertices, readers)
        wanted = where[rows] * self.size + sources[link]
        source = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        inside = keys[source] == wanted
        rows, link, source = rows[inside], link[inside], source[inside]
        slot = slots[link] if self.has_slots else np.zeros_like(link)
        roles = _by_place(where[key], number[key], nodes)
        linked = _by_place(where[rows], number[source], number[rows], slot, edges[link])
        ranks = self._ranks(where, vertices)[order] if self.is_ranked else order[:0]
        ends = [np.searchsorted(table[:, 0], np.arange(count + 1)) for table in (roles, linked)]
        tables = [np.ascontiguousarray(table[:, 1:]) for table in (roles, linked)]
        listed, bounds = vertices[order].tolist(), begins.tolist()
        of_roles, of_links = (end.tolist() for end in ends)
        for place in range(count):
            here = slice(bounds[place], bounds[place + 1])
            yield (
                listed[here],
                _Around(
                    tables[0][of_roles[place] : of_roles[place + 1]].tobytes(),
                    tables[1][of_links[place] : of_links[place + 1]].tobytes(),
                    ranks[here].tobytes(),
                ),
            )

    def _ranks(self, where: Column, vertices: Column) -> Column:
        """The place of each vertex in its neighbourhood, by the file's order; tensors first."""
        size = len(self.body)
        places = vertices.copy()
        tensors = vertices >= size
        places[tensors] = (vertices[tensors] - size) % max(1, self.each) - self.each
        begin = where * (size + self.each)
        keys, number = np.unique(begin + places + self.each, return_inverse=True)
        ranks: Column = number - np.searchsorted(keys, begin)
        return ranks

    def _most_meant(self, vertices: Sequence[int], around: _Around) -> str:
        """Return which node of the pattern can be the most ops, in words."""
        counts = Counter(node for _, node in _rows(around.roles, 2))
        node, count = counts.most_common(1)[0]
        what = "tensors" if node in self.offsets else "ops"
        start = Node(self.body, vertices[0])
        return f"around {start}, {self.variant.names[node]!r} can be {count:,} {what}"

    # What a match must keep to besides its edges: the answer is a reason, or nothing.

    def with_runs(self, vertices: Vertices) -> tuple[Binding | None, str]:
        """The match of an assignment, with its runs; and why it is none, where it is none."""
        variant, count = self.variant, self.variant.op_count
        ops: list[tuple[int, ...]] = [(vertex,) for vertex in vertices[:count]]
        if variant.is_plain:
            return Binding(self.body, self.pattern, tuple(ops), ()), ""
        bound = dict(zip(variant.names, vertices, strict=True))
        for edge in variant.runs:
            run, reason = self._run(edge, bound)
            if reason:
                return None, reason
            ops[variant.names.index(edge.target)] = run
        read = tuple([self.topology.tensor_of(vertex) for vertex in vertices[count:]])
        binding = Binding(self.body, self.pattern, tuple(ops), read)
        self.budget.spend(len(binding.indices))
        return binding, next(filter(None, self._reasons(binding, bound)), "")

    def _reasons(self, binding: Binding, bound: Mapping[str, int]) -> Iterator[str]:
        """Why a match is none, each as words or nothing; in the order in which they are tried."""
        yield _outside(binding)
        for edge in self.variant.runs:
            yield self._goes_on(edge, binding)
        for name in self.pattern.absent:
            yield self._present(name, bound, binding)
        yield _closed(binding)

    def _run(self, edge: Edge, bound: Mapping[str, int]) -> tuple[tuple[int, ...], str]:
        """Return all ops of the run that an edge leads to, its last one last; or why there is none.

        They are those on every path there through such ops as are no others of the match. A path
        ends there: in a circle, it does not go round once more.
        """
        end, source, on = bound[edge.target], bound[edge.source], Link(input=edge.link.input)
        taken = {vertex for name, vertex in bound.items() if name != edge.target}
        topology, passes = self.topology, self.ready[edge.target].passes
        giver = source
        if source >= len(self.body):
            giver = self.body.by_name.get(topology.tensor_of(source).op, -1)
        least = topology.order[giver] if giver >= 0 else -1

        def free(index: int) -> bool:
            return index not in taken and topology.order[index] >= least and passes(index)

        def read(index: int) -> list[int]:
            return [producer for producer, _ in topology.read(index, on)]

        def readers(index: int) -> Iterable[int]:
            return () if index == end else topology.readers(index, on)

        self.step = f"the run {edge.target!r} has too many ops"
        before = reached([end], read, free)
        run = reached(topology.readers(source, edge.link), readers, before.__contains__)
        self.budget.spend(2 * len(before))
        if end not in run:
            return (), f"the run to {edge.target!r} leads through another op of the match"
        return (*sorted(run - {end}), end), ""

    def _goes_on(self, edge: Edge, binding: Binding) -> str:
        """Return why a run that nothing follows is not a whole one: it goes on."""
        if edge.target in _read_inside(binding.pattern):
            return ""
        mine, end = set(binding.indices), binding.captures[edge.target]
        for index in self.topology.readers(end.index, Link(input=edge.link.input)):
            if index not in mine and self.ready[edge.target].passes(index):
                return f"the run {edge.target!r} goes on with {Node(self.body, index)}"
        return ""

    def _present(self, name: str, bound: Mapping[str, int], binding: Binding) -> str:
        """Return why an op that must be absent is not: it is there, beside those of the match."""
        ends = []
        for edge in binding.pattern.edges:
            if edge.target == name:
                ends.append(set(self.topology.readers(bound[edge.source], edge.link)))
            elif edge.source == name:
                read = self.topology.read(bound[edge.target], edge.link)
                ends.append({producer for producer, _ in read})
        for index in sorted(set.intersection(*ends) - set(binding.indices)):
            if self.ready[name].passes(index):
                return f"{Node(self.body, index)} is there, which must be absent ({name!r})"
        return ""

    # Why there is no match: the same walk and the same matcher, before anything is narrowed.

    def near_misses(self, most: int) -> Iterator[NearMiss]:
        """How far the pattern came from the ops that its rarest node can be, the furthest first."""
        rarest = min(
            range(self.variant.op_count),
            key=lambda node: (not self.candidates[node].count(), self.candidates[node].count()),
        )
        try:
            masks = self._masks()
            for mask, narrowed in zip(masks, self.candidates, strict=False):
                mask[:] = False
                mask[narrowed.indices()] = True
            links = {
                edge: (self._run_links if link.repeat else self._links)(edge, masks)
                for edge, (_, _, link) in enumerate(self.edges)
            }
            counts = [int(mask.sum()) for mask in masks]
            anchor, steps = self._plan([rarest], counts, links)
            starts = np.flatnonzero(masks[anchor])[:TRACED]
            at = self._walk(starts, anchor, steps, links)
            far = np.zeros(len(starts), np.int64)  # how many steps led to anything
            for number, step in enumerate(steps):
                reached_by = np.zeros(len(starts), np.bool_)
                reached_by[at[step.node][0]] = True
                far += reached_by & (far == number)
            order = [anchor, *(step.node for step in steps)]
            around = list(self._neighbourhoods(len(starts), at, links))
            refused: dict[_Around, int] = {}
            for place in np.argsort(-far, kind="stable").tolist():
                if far[place] < len(steps):
                    yield self._where_it_stopped(around[place], steps, int(far[place]))
                elif refused.setdefault(around[place][1], 0) < most:
                    refused[around[place][1]] += 1
                    yield from self._refused(around[place], order)
        except _OutOfSteps:
            return

    def _linked(self, step: _Step, vertex: int) -> list[int]:
        """Return what an edge leads to, whatever it is; the first op of a run stands for it."""
        source, _, link = self.edges[step.edge]
        if step.known == source:
            return list(dict.fromkeys(self.topology.readers(vertex, link)))
        read = self.topology.read(vertex, link, self.offsets.get(source))
        return list(dict.fromkeys(index for index, _ in read))

    def _where_it_stopped(
        self, neighbourhood: tuple[list[int], _Around], steps: Sequence[_Step], far: int
    ) -> NearMiss:
        """Return what stood where the next op should, and which condition it does not meet."""
        vertices, around = neighbourhood
        options: dict[int, list[int]] = {}
        for vertex, node in _rows(around.roles, 2):
            options.setdefault(node, []).append(vertices[vertex])
        links = {(source, reader) for source, reader, *_ in _rows(around.links, 4)}
        number = {vertex: place for place, vertex in enumerate(vertices)}
        chosen = {node: some[0] for node, some in options.items() if some[0] == vertices[0]}
        for known, node, _ in steps[:far]:
            before = number[chosen[known]]
            linked = (
                index
                for index in options[node]
                if not links.isdisjoint({(before, number[index]), (number[index], before)})
            )
            chosen[node] = next(linked, options[node][0])
        stop = steps[far]
        beside = [index for known in options[stop.known] for index in self._linked(stop, known)]
        rejected = tuple(
            RejectedOp(Node(self.body, index), self.candidates[stop.node].failing(index))
            for index in sorted(set(beside))
            if index < len(self.body)
        )
        known_name, reads = self.variant.names[stop.known], self.edges[stop.edge][0] == stop.known
        reason = (
            "" if rejected else f"nothing {'reads' if reads else 'is read by'} {known_name!r} there"
        )
        if any(not index.key for index in rejected):
            reason = f"none that is linked with {known_name!r} has the other links too"
        met = tuple(index for index in rejected if index.key)
        return self._near_miss(chosen, self.variant.names[stop.node], reason, met)

    def _refused(
        self, neighbourhood: tuple[list[int], _Around], order: Sequence[int]
    ) -> Iterator[NearMiss]:
        """Yield why a neighbourhood that has an op for each node holds no match."""
        vertices, around = neighbourhood
        matcher = Matcher(around, self.variant, order, self.budget)
        assigned = next(matcher.matches(), None)
        if assigned is None:
            bound = {node: vertices[vertex] for node, vertex in matcher.furthest.items()}
            missing = "" if matcher.refused is None else self.variant.names[matcher.refused]
            reason = "there are fewer such ops or links than the pattern asks for"
            yield self._near_miss(bound, missing, reason)
            return
        bound = {node: vertices[vertex] for node, vertex in enumerate(assigned)}
        _, reason = self.with_runs(tuple(bound.values()))
        if reason:
            yield self._near_miss(bound, "", reason)

    def _near_miss(
        self,
        bound: Mapping[int, int],
        missing: str,
        reason: str,
        rejected: tuple[RejectedOp, ...] = (),
    ) -> NearMiss:
        ops = self.pattern.present
        reached = {ops[n]: Node(self.body, bound[n]) for n in range(len(ops)) if n in bound}
        return NearMiss(self.body, reached, missing, reason, rejected)


def _outside(binding: Binding) -> str:
    """Return why a tensor from outside is none: an op of the match gives it."""
    by_name, mine = binding.body.by_name, set(binding.indices)
    for name, tensor in zip(binding.pattern.tensors, binding.read, strict=True):
        if by_name.get(tensor.op) in mine:
            return f"{name}:_ is a tensor from outside, and an op of the match gives {tensor}"
    return ""


def _read_inside(pattern: Pattern) -> set[str]:
    """Return the ops that others of the match read."""
    return {edge.source for edge in pattern.edges if edge.target not in pattern.absent}


def _closed(binding: Binding) -> str:
    """Return why a match is not closed: an op of it that others of it read is read outside too.

    Ops that read nothing are left out: a constant may well be shared. With names it is these ops
    that nothing outside may read.
    """
    wanted, present = binding.pattern.closed, binding.pattern.present
    if wanted is False:
        return ""
    read = _read_inside(binding.pattern)
    for name in present if wanted is True else [name for name in present if name in wanted]:
        for index in binding.of([name]):
            node = Node(binding.body, index)
            inner = name in read or index != binding.of([name])[-1]
            if wanted is True and not (inner and node.data_inputs):
                continue
            for _, reader in binding.readers(index):
                return f"{node} ({name!r}) is read outside, by {reader}"
    return ""


def _by_place(where: Column, *columns: Column) -> Column:
    """Return the rows of a table, those of each neighbourhood beside each other, in one order."""
    table = np.stack([where, *columns], axis=1)
    return table[np.lexsort(table.T[::-1])]


class Finder:
    """Finds a pattern in bodies. What the pattern alone says is worked out once, for all of them.

    Raises RulesError where a match in the pattern means nothing.
    """

    def __init__(self, pattern: Pattern, conditions: Conditions) -> None:
        self.pattern, self.budget = pattern, Budget()
        self.conditions = {name: conditions(match) for name, match in pattern.nodes.items()}

    @cached_property
    def variants(self) -> list[PatternTopology]:
        """Return the pattern with and without its optional ops."""
        return [PatternTopology(variant) for variant in variants(self.pattern)]

    def searches(
        self, body: Body, topology_of: Callable[[Body], Topology], whole: bool = True
    ) -> Iterator[Search]:
        """A search for each variant of the pattern, those with more of its optional ops first.

        With `whole`, only where each node could be an op of the body, by the index.
        """
        self.budget.most += FOR_EACH * len(body)
        ready = {
            name: candidates(body, match, self.conditions[name])
            for name, match in self.pattern.nodes.items()
        }
        possible = {name for name, narrowed in ready.items() if not whole or narrowed.count()}
        for variant in self.variants:
            if possible.issuperset(variant.pattern.present):
                yield Search(topology_of(body), variant, ready, self.budget)

    def matches(
        self, body: Body, topology_of: Callable[[Body], Topology] = Topology
    ) -> list[Binding]:
        """Every match of the pattern in a body, in the order of their ops in the file.

        Nodes that could be swapped are bound in the file's order, so that each match is there
        once. Where an optional op is there, the match without it is one for those alone that read
        its last op beside the optional one. Matches may share ops. Raises MatchError where it
        takes too many steps to find them, as their number may be exponential.
        """
        matches: list[Binding] = []
        done: list[tuple[PatternTopology, list[Binding]]] = []
        for search in self.searches(body, topology_of):
            larger = _matches_within(done, search.pattern)
            mine: list[Binding] = []
            done.append((search.variant, mine))
            for binding in search.bindings():
                around = larger.get(frozenset(binding.indices), []) if larger else []
                if not around or is_read_beside(binding, around):
                    mine.append(binding)
            matches += mine
        return sorted(matches, key=attrgetter("indices"))

    def near_misses(self, body: Body, most: int) -> list[NearMiss]:
        """Return where a pattern that matches nothing came furthest; then the file's order."""
        misses: list[tuple[int, int, int, NearMiss]] = []
        for rank, search in enumerate(self.searches(body, Topology, whole=False)):
            for place, miss in enumerate(islice(search.near_misses(most), most)):
                missing = search.variant.op_count - len(miss.reached)
                misses.append((missing, rank, place, miss))
        return [ranked[-1] for ranked in nsmallest(most, misses, key=lambda ranked: ranked[:3])]


def _matches_within(
    done: Iterable[tuple[PatternTopology, list[Binding]]], pattern: Pattern
) -> dict[frozenset[int], list[Binding]]:
    """The matches of larger variants, by the ops that they have for the nodes of this one."""
    wanted = frozenset(pattern.present)
    within: dict[frozenset[int], list[Binding]] = {}
    for larger, bindings in done:
        if bindings and wanted < frozenset(larger.pattern.present):
            for image in larger.images(wanted):
                for binding in bindings:
                    within.setdefault(frozenset(binding.of(image)), []).append(binding)
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


@dataclass(frozen=True, slots=True)
class RejectedOp:
    """An op that stands where one of the pattern should, and the key that it does not meet."""

    node: Node
    key: str


@dataclass(frozen=True, slots=True)
class NearMiss:
    """How far a pattern came at one place.

    `reached` has the ops that were found, by name. Then it failed: at the op `missing`, for which
    `rejected` were looked at; or, with all ops found, for the `reason` alone.
    """

    body: Body
    reached: dict[str, Node]
    missing: str
    reason: str
    rejected: tuple[RejectedOp, ...] = ()
