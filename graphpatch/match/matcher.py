"""All matches of a pattern in a body: columns narrow, neighbourhoods are cut out, networkx decides.

Which ops a node of the pattern can be is told by conditions, and narrowed by the links of the whole
body at once. From each op that the rarest node can be, a neighbourhood is walked along the
pattern's edges; networkx's VF2 says how the pattern lies in it, once for all that are alike. It is
a monomorphism that is looked for: there may be more links than the pattern has, as in `Mul(x, x)`.

The vertices of a body are numbers: ops by their index, and behind them, for each name of a tensor
in the pattern (`x:_`), every tensor that an op reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from functools import cache, cached_property
from itertools import chain, combinations, repeat
from math import log
from operator import attrgetter
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from msgspec.structs import replace
from networkx.algorithms.isomorphism import DiGraphMatcher

from graphpatch import names
from graphpatch.differentiation.flow import lets_through
from graphpatch.errors import MatchError, ModelError
from graphpatch.graph.node import Body, Node
from graphpatch.graph.walk import data_uses
from graphpatch.match.conditions import Candidates, holds
from graphpatch.match.select import Binding
from graphpatch.match.spec import Link, Pattern, PatternLike
from graphpatch.match.syntax import forms, variants
from graphpatch.names import TensorName
from graphpatch.shown import short

_shortest: Any = nx.single_source_dijkstra
TEST = 8  # steps that a test of networkx counts, beside one for each op that is walked to
TRACED = 10_000  # ops from which a pattern that matches nothing is traced, in the file's order
Vertices = tuple[int, ...]  # what each node of a pattern is bound to
Column = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Links = Column  # three rows: an op or tensor, the op that reads it, and by which slot
# Steps that may be taken for one pattern, and how many more for each op. One that says which ops it
# means takes about ten for each; others any power of their number.
LEAST, FOR_EACH = 1_000_000, 20


class Budget:
    """Counts the steps of a search."""

    def __init__(self) -> None:
        self.steps, self.most, self.label = 0, LEAST, ""
        self.task = "its matches are too many"  # what is worked on, for the message

    def allow(self, body: Body) -> None:
        """Allow the steps that a body may take more."""
        self.most, self.label = self.most + FOR_EACH * len(body), body.label

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


class Topology:
    """The links of a body, and all tensors that its ops read."""

    def __init__(self, body: Body) -> None:
        self.body = body
        inputs, by_name = body.heads.inputs, body.by_name
        counts = np.fromiter(map(len, inputs), np.int64, len(inputs))
        self.texts = list(chain.from_iterable(inputs))
        # Most inputs are an op's output 0, spelled as its name: no call in Python for them.
        producers = map(by_name.get, self.texts, repeat(-1))
        self.source = np.fromiter(producers, np.int64, len(self.texts))
        self.control = np.zeros(len(self.texts), np.bool_)
        for place in np.flatnonzero(self.source < 0).tolist():
            self.source[place] = by_name.get(names.op_of(self.texts[place]), -1)
            self.control[place] = self.texts[place][:1] == "^"
        self.reader = np.repeat(np.arange(len(inputs)), counts)
        self.slot = np.arange(len(self.texts)) - np.repeat(np.cumsum(counts) - counts, counts)

    @cached_property
    def tensors(self) -> list[TensorName]:
        """Every tensor that an op reads, in the file's order of the ops that give them."""
        place = self.body.by_name
        every = {names.parse(text) for text in set(self.texts) if text[:1] != "^"}
        return sorted(every, key=lambda t: (place.get(t.op, -1), t.op, t.arg, t.index))

    @cached_property
    def tensor(self) -> Column:
        """Return the tensor of each link, by its place among all; -1 for a control input."""
        places = {tensor: place for place, tensor in enumerate(self.tensors)}
        by_text = {text: places.get(names.parse(text), -1) for text in set(self.texts)}
        return np.fromiter(map(by_text.__getitem__, self.texts), np.int64, len(self.texts))

    def links(self, link: Link, sources: Flags, readers: Flags, offset: int | None = None) -> Links:
        """Return the links of this kind between some ops, or tensors from `offset` on, and ops."""
        source = self.source
        if offset is not None:
            source = np.where(self.control, -1, self.tensor + offset)
        legal = (source >= 0) & (self.control == link.control)
        if link.input is not None:
            legal &= self.slot == link.input
        places = np.flatnonzero(legal)
        places = places[sources[source[places]] & readers[self.reader[places]]]
        if link.output is not None:
            fits = [self._is_output(place, link.output) for place in places.tolist()]
            places = places[np.array(fits, np.bool_)]
        return np.stack([source[places], self.reader[places], self.slot[places]])

    def _is_output(self, place: int, output: int) -> bool:
        with suppress(IndexError, ModelError):  # the op has no such output
            tensor = Node(self.body, int(self.source[place])).tensor(output)
            return names.parse(self.texts[place]) == names.parse(tensor)
        return False


def grouped(keys: Column, values: Column) -> dict[int, list[int]]:
    """Return the values by their keys."""
    groups: dict[int, list[int]] = {}
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        groups.setdefault(key, []).append(value)
    return groups


class Run:
    """A run in a body: ops of which each reads the one before, and that all are `members`."""

    def __init__(self, search: Search, edge: int) -> None:
        source, target, link = search.edges[edge]
        self.name, self.budget, self.edge = search.names[target], search.budget, edge
        self.members = frozenset(search.candidates[target].indices())
        passing = np.zeros(search.size, np.bool_)
        passing[list(self.members)] = True
        first, readers, _ = search.links_of(link, search.every, passing, source)
        self.first, self.before = grouped(first, readers), grouped(readers, first)
        self.inner = search.topology.links(Link(input=link.input), passing, passing)[:2]
        self.readers, self.read = grouped(*self.inner), grouped(*self.inner[::-1])
        self.between: Container[int] = self.members

    def links(self, starts: Flags, ends: Flags) -> Links:
        """Return what a run starts behind and its end as one link, by a slot of its own."""
        begun = [start for start in np.flatnonzero(starts).tolist() if start in self.first]
        last = set(np.flatnonzero(ends).tolist())
        self.budget.task = (
            f"the run {self.name!r} can start behind {len(begun):,} and end in {len(last):,} ops"
        )
        behind = (index for start in begun for index in self.first[start])
        ahead = self._reached(behind, self.readers, self.members)
        last &= ahead
        self.between = between = self._reached(last, self.read, ahead)
        pairs: set[tuple[int, int]] = set()
        if len(begun) <= len(last):
            for start in begun:
                run = self._reached(self.first[start], self.readers, between)
                pairs |= {(start, end) for end in run & last}
        else:
            for end in last:
                for index in self._reached([end], self.read, between):
                    pairs |= {(start, end) for start in self.before.get(index, ()) if starts[start]}
        self.budget.spend(len(pairs))
        rows = [(start, end, -1 - self.edge) for start, end in sorted(pairs)]
        return np.array(rows, np.int64).reshape(-1, 3).T

    def surely_goes_on(self, others: Flags) -> Flags:
        """Return the ops, but on a circle, behind which it goes on with one of no `others`."""
        sources, readers = self.inner
        graph: nx.DiGraph[int] = nx.DiGraph(self.inner.T.tolist())
        flags = np.zeros(len(others), np.bool_)
        flags[sources[~others[readers]]] = True
        for part in nx.strongly_connected_components(graph):
            if len(part) > 1:
                flags[list(part)] = False
        return flags

    def ops(self, start: int, end: int, bound: Iterable[int]) -> tuple[int, ...]:
        """Return the ops on all paths to the end, which is last; none where another is on each."""
        self.budget.task = f"the run {self.name!r} has too many ops"
        taken = {vertex for vertex in bound if vertex != end}
        ahead = self._reached(self.first.get(start, ()), self.readers, self.between, taken, end)
        run = self._reached([end] if end in ahead else [], self.read, ahead)
        return (*sorted(run - {end}), end) if run else ()

    def _reached(
        self,
        starts: Iterable[int],
        following: Mapping[int, Sequence[int]],
        members: Container[int],
        taken: Collection[int] = (),
        last: int = -1,
    ) -> set[int]:
        """Return the members reached through others: not those taken, nor beyond the last."""
        marked, stack = set(taken), list(starts)
        while stack:
            index = stack.pop()
            if index not in marked and index in members:
                marked.add(index)
                stack += following.get(index, ()) if index != last else ()
        marked.difference_update(taken)
        self.budget.spend(2 * len(marked))
        return marked


class PatternGraph:
    """A pattern in which nothing is optional: its ops and then its tensors, by number."""

    def __init__(self, pattern: Pattern, budget: Budget) -> None:
        self.pattern, self.budget, self.op_count = pattern, budget, len(pattern.present)
        self.names = (*pattern.present, *pattern.tensors)
        number = {name: place for place, name in enumerate(self.names)}
        self.edges = [
            (number[edge.source], number[edge.target], edge.link)
            for edge in pattern.edges
            if edge.source in number and edge.target in number
        ]
        self.between: dict[tuple[int, int], list[int]] = {}
        for place, (source, target, _) in enumerate(self.edges):
            self.between.setdefault((source, target), []).append(place)
        # Several edges into these may be one link, or two names of one tensor: slots tell.
        tensors = Counter(target for source, target, _ in self.edges if source >= self.op_count)
        self.slotted = {target for target, count in tensors.items() if count > 1}
        self.slotted |= {target for (_, target), edges in self.between.items() if len(edges) > 1}
        has_runs = any(edge.link.repeat for edge in pattern.edges)
        self.is_plain = not (has_runs or pattern.tensors or pattern.absent or pattern.closed)
        # What equal neighbourhoods are decided to hold, for all bodies.
        self.decided: dict[Hashable, list[Vertices]] = {}
        closed = pattern.closed if isinstance(pattern.closed, tuple) else ()
        self.asked: dict[str, Hashable] = dict.fromkeys(pattern.tensors, "tensor")
        for name, match in pattern.nodes.items():
            marks = name in pattern.absent, name in closed, name in pattern.optional
            self.asked[name] = (str(match), marks)
        # Nodes that can be swapped are asked to be the same, and so are those beside them.
        kinds = {self._kind(name, self.asked) for name in self.asked}
        self.may_be_swapped = len(kinds) < len(self.asked)
        # Twins have their edges in common: the first is bound to what stands first in the file.
        itself: dict[str, Hashable] = {name: name for name in self.asked}
        alike: dict[Hashable, list[int]] = {}
        for place, name in enumerate(pattern.present):
            if name not in pattern.optional:
                alike.setdefault(self._kind(name, itself), []).append(place)
        self.twins = [pair for group in alike.values() for pair in combinations(group, 2)]

    def _kind(self, name: str, meant: Mapping[str, Hashable]) -> Hashable:
        """Return what a node is asked to be, and its links, as its neighbours are `meant`."""
        edges = self.pattern.edges
        read = [(edge.link, "reads", meant[edge.source]) for edge in edges if edge.target == name]
        reads = [(edge.link, "read", meant[edge.target]) for edge in edges if edge.source == name]
        return self.asked[name], _as_set(read + reads)

    def identity(self, binding: Binding) -> Hashable:
        """Return the part of the body that the pattern lies on, without the names of the nodes."""
        bound: tuple[Hashable, ...] = (*(ops[-1] for ops in binding.bound), *binding.read)
        ends = dict(zip(self.names, bound, strict=True))
        ends |= {name: self._kind(name, ends) for name in self.pattern.absent}
        parts: list[Hashable] = [(self.asked[name], end) for name, end in ends.items()]
        parts += [(edge.link, ends[edge.source], ends[edge.target]) for edge in self.pattern.edges]
        return _as_set(parts)


def _as_set(items: Iterable[Hashable]) -> Hashable:
    return frozenset(Counter(items).items())


class Shape(NamedTuple):
    """What equal neighbourhoods have in common: the nodes that each vertex can be, as bits.

    And their links: source, reader, slot and the edge of the pattern that each can be.
    """

    roles: tuple[int, ...]
    links: tuple[tuple[int, int, int, int], ...]


class Matcher(DiGraphMatcher):
    """networkx's VF2 on a neighbourhood, which counts its steps and remembers how far it came."""

    def __init__(self, shape: Shape, walk: Walk) -> None:
        # Between two vertices the links: a slot, and the edge of the pattern that it can be.
        self.links: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for source, reader, slot, edge in shape.links:
            self.links.setdefault((source, reader), []).append((slot, edge))
        graph: nx.DiGraph[int] = nx.DiGraph(self.links.keys())
        graph.add_nodes_from(range(len(shape.roles)))
        wanted: nx.DiGraph[int] = nx.DiGraph()
        wanted.add_nodes_from(walk.order)
        wanted.add_edges_from(walk.pattern.between)
        super().__init__(graph, wanted)
        self.roles, self.pattern, self.budget = shape.roles, walk.pattern, walk.pattern.budget
        self.furthest: dict[int, int] = {}  # the partial match of the most nodes

    def syntactic_feasibility(self, vertex: int, node: int) -> bool:
        """Return whether a vertex can be a node, and has its links to those that are bound."""
        self.budget.spend(TEST)
        is_linked: Callable[[int, int], bool] = super().syntactic_feasibility
        return bool(self.roles[vertex] >> node & 1) and is_linked(vertex, node)

    def semantic_feasibility(self, vertex: int, node: int) -> bool:
        """Return whether each edge to a node that is bound can be a link of its own."""
        bound = {**self.core_2, node: vertex}
        self.budget.spend(len(bound) + len(self.G1) // 4)
        for first, second in self.pattern.twins:
            if node in (first, second) and bound.get(first, 0) > bound.get(second, vertex):
                return False
        targets = (node, *self.G2.successors(node))
        is_met = all(self._has_slots(target, bound) for target in targets if target in bound)
        if is_met and len(bound) > len(self.furthest):
            self.furthest = bound
        return is_met

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


def are_apart(choices: Sequence[Sequence[int]]) -> bool:
    """Return whether each of these can have a choice of its own: Kuhn's bipartite matching."""
    owners: dict[int, int] = {}
    if len(set[int]().union(*choices)) < len(choices):
        return False

    def finds_one(place: int, tried: set[int]) -> bool:
        for choice in sorted(choices[place], key=owners.__contains__):  # what is free first
            if choice not in tried:
                tried.add(choice)
                if choice not in owners or finds_one(owners[choice], tried):
                    owners[choice] = place
                    return True
        return False

    return all(finds_one(place, set()) for place in range(len(choices)))


class Step(NamedTuple):
    """A step of a walk: from what one node is bound to, over an edge, to what another can be."""

    known: int
    node: int
    edge: int
    here: Column
    linked: Column


class Walk:
    """How neighbourhoods are walked: from an op that one node can be, over the pattern's edges.

    `masks` tell which vertices each node can be, `links` what each edge can be. Many small ones
    are better than a large one: of the `anchors` it takes that which reaches the fewest vertices.
    """

    def __init__(
        self,
        pattern: PatternGraph,
        anchors: Iterable[int],
        masks: Sequence[Flags],
        links: Sequence[Links],
    ) -> None:
        self.pattern, self.links, self.size = pattern, links, len(masks[0])
        routes: nx.DiGraph[int] = nx.DiGraph()
        routes.add_nodes_from(range(len(masks)))
        for edge, (source, target, _) in enumerate(pattern.edges):
            sources, readers, _ = links[edge]
            up = Step(target, source, edge, readers, sources)
            down = Step(source, target, edge, sources, readers)
            for step, least in ((up, 0.01), (down, 0.02)):
                fan_out = len(step.here) / max(1, len(np.unique(step.here)))
                cost, ends = log(max(1.0, fan_out)) + least, (step.known, step.node)
                if ends not in routes.edges or routes.edges[ends]["cost"] > cost:
                    routes.add_edge(*ends, cost=cost, step=step)
        plans = []
        for anchor in anchors:
            costs, paths = _shortest(routes, anchor, weight="cost")
            far = round(max(costs.values()), 1)
            plans.append((far, int(masks[anchor].sum()), anchor, costs, paths))
        _, _, self.anchor, costs, paths = min(plans, key=lambda plan: plan[:3])
        self.order = sorted(costs, key=lambda node: (costs[node], node))
        self.steps: list[Step] = [routes.edges[paths[n][-2:]]["step"] for n in self.order[1:]]

    @cached_property
    def leads(self) -> list[dict[int, list[int]]]:
        """Return for each step where it leads to from each vertex."""
        return [grouped(step.here, step.linked) for step in self.steps]

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

        They are alike: the vertices of each, and their shape; then the starts of the others.
        """
        place, edges = {node: k for k, node in enumerate(self.order)}, self.pattern.edges
        links = ((place[a], place[b], -1 - edge, edge) for edge, (a, b, _) in enumerate(edges))
        shape = Shape(tuple(1 << node for node in self.order), tuple(links))
        if len(self.steps) < len(edges) or self.pattern.slotted or self.pattern.twins:
            return [], shape, starts.tolist()
        columns, is_tree = {self.anchor: starts}, np.ones(len(starts), np.bool_)
        for step in self.steps:
            lead = np.zeros(self.size, np.int64)
            lead[step.here] = step.linked
            columns[step.node] = lead[columns[step.known]]
            is_tree &= np.bincount(step.here, minlength=self.size)[columns[step.known]] == 1
        rows = np.stack([columns[node] for node in self.order], axis=1)
        is_tree &= (np.diff(np.sort(rows, axis=1), axis=1) > 0).all(axis=1)
        return rows[is_tree].tolist(), shape, starts[~is_tree].tolist()

    def reached(self, start: int) -> dict[int, Collection[int]]:
        """Return which vertices each node can be around a start, as far as any are linked."""
        reached: dict[int, Collection[int]] = {self.anchor: (start,)}
        for step, leads in zip(self.steps, self.leads, strict=True):
            linked = (leads.get(vertex, ()) for vertex in reached[step.known])
            vertices = dict.fromkeys(chain.from_iterable(linked))
            if not vertices:
                break
            if len(vertices) > 1:
                self.pattern.budget.task = f"{self.pattern.names[step.node]!r} can be too many ops"
                self.pattern.budget.spend(len(vertices))
            reached[step.node] = vertices
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
            for source, slot, edge in self.read.get(vertex, ())
            if source in number
        ]
        return list(roles), Shape(tuple(roles.values()), tuple(links))


class Search:
    """The matches of one variant of a pattern, in which nothing is optional, in one body."""

    def __init__(
        self, topology: Topology, variant: PatternGraph, ready: Mapping[str, Candidates]
    ) -> None:
        self.topology, self.variant, self.ready = topology, variant, ready
        self.body, self.pattern, self.names = topology.body, variant.pattern, variant.names
        self.edges, self.budget = variant.edges, variant.budget
        self.candidates = [ready[name] for name in self.pattern.present]
        ops, tensors = len(self.body), self.pattern.tensors
        each = len(topology.tensors) if tensors else 0
        self.offsets = {name: ops + place * each for place, name in enumerate(tensors)}
        self.size = ops + len(tensors) * each
        self.every = np.ones(self.size, np.bool_)

    def bindings(self) -> Iterator[Binding]:
        """Yield every match; of those that differ by a swap of nodes the first, with the others."""
        completed = map(self.completed, sorted(self._assignments()))
        bindings = (binding for binding in completed if isinstance(binding, Binding))
        if not self.variant.may_be_swapped:
            yield from bindings
        alike: dict[Hashable, list[Binding]] = {}
        for binding in bindings:
            alike.setdefault(self.variant.identity(binding), []).append(binding)
        for first, *images in alike.values():
            for twin, other in self.variant.twins:
                bound = list(first.bound)
                bound[twin], bound[other] = bound[other], bound[twin]
                images.append(replace(first, bound=tuple(bound)))
            yield replace(first, swapped=tuple(images))

    @cached_property
    def runs(self) -> dict[int, Run]:
        """Return the runs of the pattern, by the number of their edge."""
        edges = enumerate(self.edges)
        return {edge: Run(self, edge) for edge, (_, _, link) in edges if link.repeat}

    def links_of(self, link: Link, sources: Flags, readers: Flags, source: int) -> Links:
        """Return the links of this kind, from what a node of the pattern can be."""
        return self.topology.links(link, sources, readers, self.offsets.get(self.names[source]))

    def _masks(self, by_index: bool) -> list[Flags]:
        """Return the vertices that each node can be: by the index alone, or by all conditions."""
        masks = [np.zeros(self.size, np.bool_) for _ in self.names]
        for mask, candidates in zip(masks, self.candidates, strict=False):
            mask[candidates.indexed if by_index else candidates.indices()] = True
        for mask, offset in zip(masks[self.variant.op_count :], self.offsets.values(), strict=True):
            mask[offset : offset + len(self.topology.tensors)] = True
        return masks

    def _links(self, edge: int, masks: Sequence[Flags]) -> Links:
        """Return what an edge can be; of a run what is before it and its end, each pair once."""
        source, target, link = self.edges[edge]
        if link.repeat:
            return self.runs[edge].links(masks[source], masks[target])
        return self.links_of(link, masks[source], masks[target], source)

    def _narrow(self, masks: Sequence[Flags], links: dict[int, Links]) -> bool:
        """Leave out vertices without a link for each edge, and links without both ends."""
        before = -1
        while before != (before := sum(columns.shape[1] for columns in links.values())):
            for edge, columns in links.items():
                source, target, _ = self.edges[edge]
                is_legal = masks[source][columns[0]] & masks[target][columns[1]]
                links[edge] = columns = columns[:, is_legal]
                for node, ends in ((source, columns[0]), (target, columns[1])):
                    linked = np.zeros(self.size, np.bool_)
                    linked[ends] = True
                    masks[node][...] &= linked
        return all(bool(mask.any()) for mask in masks)

    def _narrowed(self) -> tuple[list[Flags], list[Links]] | None:
        """Return what each node and each edge can be; None where one can be nothing."""
        masks, edges = self._masks(by_index=True), range(len(self.edges))
        links = {edge: self._links(edge, masks) for edge in edges if not self.edges[edge][2].repeat}
        if not self._narrow(masks, links):
            return None
        for mask, candidates in zip(masks, self.candidates, strict=False):
            if candidates.besides:
                places = np.flatnonzero(mask).tolist()
                mask[[place for place in places if not candidates.passes(place)]] = False
        if not self._narrow(masks, links):
            return None
        for edge, run in self.runs.items():
            _, end, _ = self.edges[edge]
            if all(end != source for source, _, _ in self.edges):  # nothing follows the run
                others = np.zeros(self.size, np.bool_)
                for candidates in self.candidates[:end] + self.candidates[end + 1 :]:
                    others[candidates.indexed] = True
                masks[end][...] &= ~run.surely_goes_on(others)
            links[edge] = self._links(edge, masks)
            if not self._narrow(masks, links):
                return None
        return masks, [links[edge] for edge in edges]

    def _assignments(self) -> Iterator[Vertices]:
        """Yield every way in which the pattern lies in the body."""
        narrowed = self._narrowed()
        if narrowed is None:
            return
        walk = Walk(self.variant, range(self.variant.op_count), *narrowed)
        trees, tree, starts = walk.trees(np.flatnonzero(narrowed[0][walk.anchor]))
        others = (walk.around(walk.reached(start)) for start in starts)
        decided = self.variant.decided
        for vertices, shape in chain(zip(trees, repeat(tree)), others):
            matches = decided.get(shape)
            if matches is None:
                roles = [sum(r >> n & 1 for r in shape.roles) for n in range(len(self.names))]
                name, start = self.names[roles.index(max(roles))], Node(self.body, vertices[0])
                kind = "ops" if name in self.pattern.present else "tensors"
                self.budget.task = f"around {start}, {name!r} can be {max(roles):,} {kind}"
                decided[shape] = matches = list(Matcher(shape, walk).matches())
            self.budget.spend(len(matches) * len(walk.order))
            for assigned in matches:
                yield tuple([vertices[number] for number in assigned])

    def completed(self, vertices: Vertices) -> Binding | str:
        """Return the match of an assignment, with its runs; or why it is none."""
        count = self.variant.op_count
        ops: list[tuple[int, ...]] = [(vertex,) for vertex in vertices[:count]]
        if self.variant.is_plain:
            return Binding(self.body, self.pattern, tuple(ops), (), tuple(sorted(vertices)))
        for edge, run in self.runs.items():
            source, target, _ = self.edges[edge]
            ops[target] = run.ops(vertices[source], vertices[target], vertices)
            if not ops[target]:
                return f"the run to {run.name!r} leads through another op of the match"
        every = self.topology.tensors if self.pattern.tensors else []
        read = tuple([every[(vertex - len(self.body)) % len(every)] for vertex in vertices[count:]])
        indices = tuple(sorted(chain.from_iterable(ops)))
        binding = Binding(self.body, self.pattern, tuple(ops), read, indices)
        self.budget.spend(len(binding.indices))
        bound = dict(zip(self.names, vertices, strict=True))
        return next(self._reasons(binding, bound), binding)

    def _reasons(self, binding: Binding, bound: Mapping[str, int]) -> Iterator[str]:
        """Yield why a match is none."""
        mine, pattern = set(binding.indices), self.pattern
        for name, tensor in zip(pattern.tensors, binding.read, strict=True):
            if self.body.by_name.get(tensor.op) in mine:
                yield f"{name}:_ is a tensor from outside, and an op of the match gives {tensor}"
        read_inside = {edge.source for edge in pattern.edges if edge.target not in pattern.absent}
        for run in self.runs.values():
            following = () if run.name in read_inside else run.readers.get(bound[run.name], ())
            for index in following:
                if index not in mine:
                    yield f"the run {run.name!r} goes on with {Node(self.body, index)}"
        for name, ends in self._in_place_of.items():
            linked = (set(ops.get(bound[known], ())) for known, ops in ends)
            for index in sorted(set.intersection(*linked) - mine):
                if self.ready[name].passes(index):
                    yield f"{Node(self.body, index)} is there, which must be absent ({name!r})"
        # Closed: of all its ops those inside that read something, as a constant may well be shared.
        for name, indices in zip(pattern.present, binding.bound, strict=True):
            for index in indices if pattern.closed is not False else ():
                node, is_last = Node(self.body, index), index == indices[-1]
                is_inner = bool(node.data_inputs) and (name in read_inside or not is_last)
                if is_inner if isinstance(pattern.closed, bool) else name in pattern.closed:
                    for _, reader in binding.readers(index):
                        yield f"{node} ({name!r}) is read outside, by {reader}"

    @cached_property
    def _in_place_of(self) -> dict[str, list[tuple[str, dict[int, list[int]]]]]:
        """Return for each absent op its edges: the name that is there, and the ops beside it."""
        places: dict[str, list[tuple[str, dict[int, list[int]]]]] = {}
        for edge in self.pattern.edges:
            ends, absent = (edge.source, edge.target), self.pattern.absent
            if edge.source in absent or edge.target in absent:
                every, offset = self.every, self.offsets.get(edge.source)
                source, reader, _ = self.topology.links(edge.link, every, every, offset)
                known, name = ends if edge.target in absent else ends[::-1]
                columns = (source, reader) if known == edge.source else (reader, source)
                places.setdefault(name, []).append((known, grouped(*columns)))
        return places

    def near_misses(self, most: int) -> Iterator[tuple[int, str]]:
        """Yield how many ops were bound around one of the rarest node, the most first; and why."""
        counts = [len(candidates.indexed) or len(self.body) + 1 for candidates in self.candidates]
        rarest, masks = counts.index(min(counts)), self._masks(by_index=False)
        with suppress(MatchError):
            links = [self._links(edge, masks) for edge in range(len(self.edges))]
            walk = Walk(self.variant, [rarest], masks, links)
            starts = np.flatnonzero(masks[rarest])[:TRACED].tolist()
            counted: Counter[Shape] = Counter()
            for reached in sorted(map(walk.reached, starts), key=len, reverse=True):
                vertices, shape = walk.around(reached)
                counted[shape] += 1
                if counted[shape] > most:
                    continue
                matcher = Matcher(shape, walk)
                assigned = next(matcher.matches(), None)
                bound = {node: vertices[vertex] for node, vertex in matcher.furthest.items()}
                if assigned is None:
                    reason: Binding | str = self._missing(walk, bound)
                else:
                    reason = self.completed(tuple([vertices[vertex] for vertex in assigned]))
                if isinstance(reason, str):
                    present = [node for node in range(self.variant.op_count) if node in bound]
                    ops = (f"{self.names[n]} is {Node(self.body, bound[n])}" for n in present)
                    yield len(present), f"{', '.join(ops)}; {reason}"

    def _missing(self, walk: Walk, bound: Mapping[int, int]) -> str:
        """Return which node came next, and why each op that is linked as it should be is not it."""
        steps = (step for step in walk.steps if step.known in bound and step.node not in bound)
        known, node, edge, *_ = next(steps)
        source, _, link = self.edges[edge]
        here = np.zeros(self.size, np.bool_)
        here[bound[known]] = True
        is_read, name = known == source, self.names[known]
        ends = (here, self.every) if is_read else (self.every, here)
        links = self.links_of(link, *ends, source)
        linked = np.unique(links[int(is_read)]).tolist()
        taken = {vertex: self.names[number] for number, vertex in bound.items()}
        rejections = list[str]()
        for op in (Node(self.body, index) for index in linked if index < len(self.body)):
            is_taken = f"{op} is {taken[op.index]!r} already" if op.index in taken else ""
            rejections += filter(None, [self.candidates[node].why_not(op) or is_taken])
        words = [short(rejections, by="; ")] if rejections else []
        if not linked:
            words = [f"nothing {'reads' if is_read else 'is read by'} {name!r} there"]
        elif len(rejections) < len(linked):
            words.append(f"none that is linked with {name!r} has the other links too")
        return f"{self.names[node]} is missing: {'; '.join(words)}"


def matches_of(wanted: PatternLike) -> Callable[[Body], list[Binding]]:
    """Return what finds in a body all matches of a pattern, or of each of several."""
    finders = [Finder(form) for form in forms(wanted)]

    def matches(body: Body) -> list[Binding]:
        topology_of = cache(Topology)
        return [match for finder in finders for match in finder.matches(body, topology_of)]

    return matches


class Finder:
    """Finds a pattern in bodies. What the pattern alone says is worked out once for all."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern, self.budget = pattern, Budget()
        self.nodes = {name: holds(match) for name, match in pattern.nodes.items()}
        self.variants = [PatternGraph(variant, self.budget) for variant in variants(pattern)]

    def searches(
        self, body: Body, topology_of: Callable[[Body], Topology], whole: bool = True
    ) -> Iterator[Search]:
        """Yield a search for each variant; with `whole`, where each node could be some op."""
        self.budget.allow(body)
        ready = {name: candidates_in(body) for name, candidates_in in self.nodes.items()}
        possible = {name for name, narrowed in ready.items() if not whole or narrowed.indexed}
        for variant in self.variants:
            if possible.issuperset(variant.pattern.present):
                yield Search(topology_of(body), variant, ready)

    def matches(
        self, body: Body, topology_of: Callable[[Body], Topology] = Topology
    ) -> list[Binding]:
        """Return every match of the pattern in a body, in the order of their ops in the file."""
        matches: list[Binding] = []
        for search in self.searches(body, topology_of):
            larger = _within(matches, search.pattern)
            for binding in search.bindings():
                # Without an optional op that is there: for those alone that read beside it.
                around = larger.get(frozenset(binding.indices), []) if larger else []
                if not around or is_read_beside(binding, around):
                    matches.append(binding)
        return sorted(matches, key=attrgetter("indices"))


def _within(matches: Iterable[Binding], pattern: Pattern) -> dict[frozenset[int], list[Binding]]:
    """Return the matches of larger variants, by the ops that they have for the nodes of this."""
    present = frozenset(pattern.present)
    within: dict[frozenset[int], list[Binding]] = {}
    for binding in matches:
        if present < frozenset(binding.pattern.present):
            images = (binding, *binding.swapped)
            for ops in dict.fromkeys(frozenset(image.of(present)) for image in images):
                within.setdefault(ops, []).append(binding)
    return within


def is_read_beside(binding: Binding, larger: Sequence[Binding]) -> bool:
    """Whether ops outside of these larger matches compute with what the last op of a match gives.

    What does not let gradients through, as Shape does not, is no such reader.
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
