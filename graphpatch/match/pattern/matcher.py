"""All matches of a pattern in a body: columns narrow, neighbourhoods are cut out, networkx decides.

Which ops a node of the pattern can be is told by conditions, and narrowed by the links of the whole
body at once. From each op that the rarest node can be, a neighbourhood is walked along the
pattern's edges; networkx's VF2 says how the pattern lies in it, once for all that are alike. It is
a monomorphism that is looked for: there may be more links than the pattern has, as in `Mul(x, x)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from heapq import nsmallest
from itertools import chain, islice, repeat
from math import log
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import networkx as nx
import numpy as np
from networkx.algorithms.isomorphism import DiGraphMatcher

from graphpatch import names
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
from graphpatch.match.select import Candidates
from graphpatch.match.spec import Edge, Link, Match, Pattern
from graphpatch.names import TensorName

LEAST, FOR_EACH = 1_000_000, 20
"""Steps that may be taken for one pattern: so many, and so many more for each op.

How often a pattern matches, and how many ops its runs have, may grow as any power of the body. A
pattern that says which ops it means takes about ten steps for each of them.
"""

TEST = 8
"""Steps that a test of networkx counts, beside one for each op that is walked to."""

TRACED = 10_000
"""From how many ops of a body a pattern that matches nothing is traced, in the file's order."""

TOO_FEW = "there are fewer such ops or links than the pattern asks for"

Conditions = Callable[[Match], Mapping[str, Condition]]
"""The conditions of a match, by key."""

T = TypeVar("T")

Vertices = tuple[int, ...]
"""What each node of a pattern is bound to."""


class Budget:
    """Counts the steps of a search."""

    def __init__(self) -> None:
        self.steps, self.most, self.label = 0, LEAST, ""
        self.task = "its matches are too many"  # what is worked on, for the message

    def spend(self, count: int) -> None:
        """Count steps. Raises MatchError where they are too many by now."""
        self.steps += count
        if self.steps > self.most:
            raise MatchError(
                f"to find the pattern in {self.label} takes more than {self.most:,} steps"
                f" ({LEAST:,}, and {FOR_EACH} for each op): {self.task}; name op types instead of"
                " *, give the input slots of links (-> add:0), and say what a run starts behind"
                " and ends before"
            )


class Neighbourhood(NamedTuple):
    """What equal neighbourhoods have in common: their vertices are numbers.

    `roles` has for each vertex the nodes of the pattern that it can be, as bits; `links` source,
    reader, slot and the edge of the pattern that it can be. Slots are 0 where none are asked for.
    """

    roles: tuple[int, ...]
    links: tuple[tuple[int, int, int, int], ...]


class Matcher(DiGraphMatcher):
    """networkx's VF2 on a neighbourhood, which counts its steps and remembers how far it came."""

    def __init__(
        self,
        around: Neighbourhood,
        pattern: PatternTopology,
        order: Sequence[int],
        budget: Budget,
    ) -> None:
        # Between two vertices: by its slot, the edges that each link can be, as bits.
        self.links: dict[tuple[int, int], dict[int, int]] = {}
        for source, reader, slot, edge in around.links:
            between = self.links.setdefault((source, reader), {})
            between[slot] = between.get(slot, 0) | 1 << edge
        graph: nx.DiGraph[int] = nx.DiGraph(self.links.keys())
        graph.add_nodes_from(range(len(around.roles)))
        wanted: nx.DiGraph[int] = nx.DiGraph()
        wanted.add_nodes_from(order)
        wanted.add_edges_from(pattern.between)
        super().__init__(graph, wanted)
        self.roles, self.pattern, self.budget = around.roles, pattern, budget
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
        bound = {**self.core_2, node: vertex}
        for (source, target), edges in self.pattern.between.items():
            if node in (source, target) and source in bound and target in bound:
                links = self.links[bound[source], bound[target]]
                if not _assigned(edges, [*links.values()]):
                    return False
        self.budget.spend(len(bound) + len(self.G1) // 4)
        return not any(
            node in pair
            and pair[0] in bound
            and pair[1] in bound
            and bound[pair[0]] > bound[pair[1]]
            for pair in self.pattern.before
        )

    def matches(self) -> Iterator[Vertices]:
        """Yield a vertex for each node of the pattern, in every way."""
        for mapping in self.subgraph_monomorphisms_iter():
            self.budget.spend(len(mapping))
            yield tuple(sorted(mapping, key=mapping.__getitem__))


def _assigned(edges: Sequence[int], links: Sequence[int]) -> bool:
    """Return whether each edge of the pattern can be a link of its own."""
    if len(edges) == 1:
        return any(link & edges[0] for link in links)
    return not edges or any(
        link & edges[0] and _assigned(edges[1:], [*links[:at], *links[at + 1 :]])
        for at, link in enumerate(links)
    )


class _Step(NamedTuple):
    """The next node to walk to: by which edge, from which node that was reached before."""

    known: int
    node: int
    edge: int


class _Walk(NamedTuple):
    """From which node to which each step leads, and from where; what each vertex reads.

    That is by source, slot and the edge of the pattern that the link can be.
    """

    along: list[tuple[int, int, dict[int, list[int]]]]
    into: dict[int, list[tuple[int, int, int]]]


def _grouped(keys: Column, values: Iterable[T], groups: dict[int, list[T]]) -> dict[int, list[T]]:
    for key, value in zip(keys.tolist(), values, strict=True):
        groups.setdefault(key, []).append(value)
    return groups


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
        self.size = ops + tensors * each
        self.has_slots = any(len(links) > 1 for links in variant.between.values())

    def bindings(self) -> Iterator[Binding]:
        """Every match. Raises MatchError where it takes too many steps to find them."""
        for vertices in sorted(self._assignments()):
            binding, reason = self.with_runs(vertices)
            if binding is not None and not reason:
                yield binding

    # Narrowing: columns.

    def _masks(self, by_index: bool) -> list[Flags]:
        """Return the vertices that each node can be: by the index alone, or by all conditions."""
        masks = [np.zeros(self.size, np.bool_) for _ in self.variant.names]
        for mask, narrowed in zip(masks, self.candidates, strict=False):
            mask[narrowed.indexed if by_index else narrowed.indices()] = True
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
        self.budget.task = (
            f"the run {self.variant.names[target]!r} can start behind {len(starts):,} and end in"
            f" {len(ends):,} ops"
        )

        def readers(vertex: int, link: Link = on) -> list[int]:
            uses = list(topology.readers(vertex, link))
            self.budget.spend(2 + 2 * len(uses))
            return uses

        def read(index: int) -> list[int]:
            self.budget.spend(4)
            return list(topology.read(index, on))

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
                    pairs |= {(start, end) for start in giving if start in wanted}
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
        masks = self._masks(by_index=True)
        runs = [number for number, edge in enumerate(self.edges) if edge[2].repeat]
        links: dict[int, tuple[Column, ...]] = {
            number: self._links(number, masks)
            for number in range(len(self.edges))
            if number not in runs
        }
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
                    others[self.candidates[node].indexed] = True
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
        order, decided = [anchor, *(step.node for step in steps)], self.variant.decided
        walk = self._walk(steps, links)
        for start in np.flatnonzero(masks[anchor]).tolist():
            vertices, around = self._around(self._reached(start, anchor, walk), walk)
            matches = decided.get(around)
            if matches is None:
                self.budget.task = self._most_meant(start, around)
                matches = list(Matcher(around, self.variant, order, self.budget).matches())
                decided[around] = matches
            self.budget.spend(len(matches) * len(order))
            for assigned in matches:
                yield tuple([vertices[number] for number in assigned])

    def _walk(self, steps: Iterable[_Step], links: Mapping[int, tuple[Column, ...]]) -> _Walk:
        """Return where each step leads to, and what each vertex reads."""
        along = []
        for known, node, edge in steps:
            ends = links[edge][:2] if known == self.edges[edge][0] else links[edge][1::-1]
            along.append((known, node, _grouped(ends[0], ends[1].tolist(), {})))
        into: dict[int, list[tuple[int, int, int]]] = {}
        for edge, (sources, readers, slots) in links.items():
            of_edge = zip(sources.tolist(), slots.tolist(), repeat(edge), strict=False)
            _grouped(readers, of_edge, into)
        return _Walk(along, into)

    def _reached(self, start: int, anchor: int, walk: _Walk) -> dict[int, Collection[int]]:
        """Return which vertices each node can be around a start, as far as any are linked."""
        reached: dict[int, Collection[int]] = {anchor: (start,)}
        for known, node, leads in walk.along:
            if len(reached[known]) == 1:
                (vertex,) = reached[known]
                vertices: Collection[int] = leads.get(vertex, ())
            else:
                linked = chain.from_iterable(leads.get(vertex, ()) for vertex in reached[known])
                vertices = dict.fromkeys(linked)
            if not vertices:
                break
            if len(vertices) > 1:
                self.budget.task = f"{self.variant.names[node]!r} can be too many ops"
                self.budget.spend(len(vertices))
            reached[node] = vertices
        return reached

    def _around(
        self, reached: Mapping[int, Iterable[int]], walk: _Walk
    ) -> tuple[list[int], Neighbourhood]:
        """Return the vertices of a neighbourhood, and what it is like.

        Where nodes could be swapped, the vertices are numbered in the file's order.
        """
        roles: dict[int, int] = {}
        for node, vertices in reached.items():
            for vertex in vertices:
                roles[vertex] = roles.get(vertex, 0) | 1 << node
        if self.variant.before:
            roles = dict(sorted(roles.items(), key=lambda role: self._rank(role[0])))
        number = {vertex: place for place, vertex in enumerate(roles)}
        links = [
            (number[source], place, slot if self.has_slots else 0, edge)
            for vertex, place in number.items()
            if vertex in walk.into
            for source, slot, edge in walk.into[vertex]
            if source in number
        ]
        return list(roles), Neighbourhood(tuple(roles.values()), tuple(links))

    def _rank(self, vertex: int) -> tuple[int, int]:
        """Return the place of an op in the file, or of a tensor; then that of the tensor's name."""
        size = len(self.body)
        return vertex if vertex < size else (vertex - size) % len(self.topology.tensors), vertex

    def _most_meant(self, start: int, around: Neighbourhood) -> str:
        """Return which node of the pattern can be the most ops, in words."""
        nodes = range(len(self.variant.names))
        counts = [sum(role >> node & 1 for role in around.roles) for node in nodes]
        node = max(nodes, key=counts.__getitem__)
        what = f"{counts[node]:,} {'tensors' if node in self.offsets else 'ops'}"
        return f"around {Node(self.body, start)}, {self.variant.names[node]!r} can be {what}"

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
        yield self._read_twice(bound)
        yield _outside(binding)
        for edge in self.variant.runs:
            yield self._goes_on(edge, binding)
        for name in self.pattern.absent:
            yield self._present(name, bound, binding)
        yield _closed(binding)

    def _read_twice(self, bound: Mapping[str, int]) -> str:
        """Return why a match is none where several names are one tensor: it is read too seldom."""
        tensors = self.pattern.tensors
        links: dict[tuple[TensorName, int], list[Link]] = {}
        for edge in self.pattern.edges if len(tensors) > 1 else ():
            if edge.source in tensors and edge.target in bound and not edge.link.repeat:
                tensor = self.topology.tensor_of(bound[edge.source])
                links.setdefault((tensor, bound[edge.target]), []).append(edge.link)
        for (tensor, reader), wanted in links.items():
            slots = [
                sum(1 << place for place, link in enumerate(wanted) if link.input in (None, slot))
                for slot, text in enumerate(self.body.heads.inputs[reader])
                if text[:1] != "^" and names.parse(text) == tensor
            ]
            if not _assigned([1 << place for place in range(len(wanted))], slots):
                return TOO_FEW
        return ""

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

        def read(index: int) -> Iterable[int]:
            return topology.read(index, on)

        def readers(index: int) -> Iterable[int]:
            return () if index == end else topology.readers(index, on)

        self.budget.task = f"the run {edge.target!r} has too many ops"
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
                ends.append(set(self.topology.read(bound[edge.target], edge.link)))
        for index in sorted(set.intersection(*ends) - set(binding.indices)):
            if self.ready[name].passes(index):
                return f"{Node(self.body, index)} is there, which must be absent ({name!r})"
        return ""

    # Why there is no match: the same walk and the same matcher, before anything is narrowed.

    def near_misses(self, most: int) -> Iterator[NearMiss]:
        """How far the pattern came from the ops that its rarest node can be, the furthest first."""
        rarest = min(
            range(self.variant.op_count),
            key=lambda node: len(self.candidates[node].indexed) or len(self.body) + 1,
        )
        masks = self._masks(by_index=False)
        with suppress(MatchError):
            links = {
                edge: (self._run_links if link.repeat else self._links)(edge, masks)
                for edge, (_, _, link) in enumerate(self.edges)
            }
            anchor, steps = self._plan([rarest], [int(mask.sum()) for mask in masks], links)
            order = [anchor, *(step.node for step in steps)]
            walk = self._walk(steps, links)
            starts = np.flatnonzero(masks[anchor])[:TRACED].tolist()
            every = [self._reached(start, anchor, walk) for start in starts]
            refused: Counter[Neighbourhood] = Counter()
            for reached in sorted(every, key=len, reverse=True):
                if len(reached) < len(order):
                    yield self._where_it_stopped(reached, steps, walk)
                    continue
                vertices, around = self._around(reached, walk)
                refused[around] += 1
                if refused[around] <= most:
                    yield from self._refused(vertices, around, order)

    def _where_it_stopped(
        self,
        reached: Mapping[int, Iterable[int]],
        steps: Sequence[_Step],
        walk: _Walk,
    ) -> NearMiss:
        """Return what stood where the next op should, and which condition it does not meet."""
        chosen = {node: next(iter(vertices)) for node, vertices in list(reached.items())[:1]}
        for known, node, leads in walk.along[: len(reached) - 1]:
            chosen[node] = next(iter(leads.get(chosen[known], reached[node])))
        known, node, edge = steps[len(reached) - 1]
        source, _, link = self.edges[edge]
        beside: set[int] = set()
        for vertex in reached[known]:
            beside.update(
                self.topology.readers(vertex, link)
                if known == source
                else self.topology.read(vertex, link, self.offsets.get(source))
            )
        rejected = [
            RejectedOp(Node(self.body, index), self.candidates[node].failing(index))
            for index in sorted(beside)
            if index < len(self.body)
        ]
        known_name = self.variant.names[known]
        reason = ""
        if not rejected:
            how = "reads" if known == source else "is read by"
            reason = f"nothing {how} {known_name!r} there"
        elif any(not op.key for op in rejected):
            reason = f"none that is linked with {known_name!r} has the other links too"
        met = tuple(op for op in rejected if op.key)
        return self._near_miss(chosen, self.variant.names[node], reason, met)

    def _refused(
        self, vertices: Sequence[int], around: Neighbourhood, order: Sequence[int]
    ) -> Iterator[NearMiss]:
        """Yield why a neighbourhood that has an op for each node holds no match."""
        matcher = Matcher(around, self.variant, order, self.budget)
        assigned = next(matcher.matches(), None)
        if assigned is None:
            bound = {node: vertices[vertex] for node, vertex in matcher.furthest.items()}
            missing = "" if matcher.refused is None else self.variant.names[matcher.refused]
            yield self._near_miss(bound, missing, TOO_FEW)
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
        ops = enumerate(self.pattern.present)
        reached = {name: Node(self.body, bound[n]) for n, name in ops if n in bound}
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
        self.budget.label = body.label
        ready = {
            name: Candidates(body, match, self.conditions[name])
            for name, match in self.pattern.nodes.items()
        }
        possible = {name for name, narrowed in ready.items() if not whole or narrowed.indexed}
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
