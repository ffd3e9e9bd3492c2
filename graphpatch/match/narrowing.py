"""Where networkx looks for a pattern: which ops each node can be, and small graphs around them.

VF2 takes longer than in proportion to a graph, so it gets no whole body. What is left out here can
be in no match; what is one is decided in `matcher.py`. Three steps, each read from the one before:
columns of the body (`Columns`), a walk along the pattern's edges (`shortest_walk`), and what is met
on it from each op that one node can be (`Neighbourhoods`).

What a node can be is a number, its vertex: an op by its index, and behind the ops, for each name of
a tensor (`x:_`), every tensor that an op reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, repeat
from math import log
from typing import Any, NamedTuple

import networkx as nx
import numpy as np

from graphpatch import names
from graphpatch.errors import ModelError
from graphpatch.graph.node import Body, Node
from graphpatch.match.select import Candidates
from graphpatch.match.spec import Link
from graphpatch.match.variant import Variant
from graphpatch.names import TensorName

Column = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]  # for each vertex whether it is meant
NOTHING = -1  # in the place of a vertex or slot: there is none, or it does not matter which


@dataclass(frozen=True)
class Links:
    """Links as columns: what is read, an op or a tensor; the op that reads it; by which slot."""

    sources: Column
    readers: Column
    slots: Column

    def where(self, is_meant: Flags) -> Links:
        """Return the links that are flagged."""
        return Links(self.sources[is_meant], self.readers[is_meant], self.slots[is_meant])

    @cached_property
    def up(self) -> Links:
        """Return the links as they are walked from readers up to sources: both change places."""
        return Links(self.readers, self.sources, self.slots)

    @cached_property
    def ends(self) -> dict[int, list[int]]:
        """Return by each source its readers; of links that are walked up the other way round."""
        ends: dict[int, list[int]] = {}
        for source, reader in zip(self.sources.tolist(), self.readers.tolist(), strict=True):
            ends.setdefault(source, []).append(reader)
        return ends


class Inputs:
    """All inputs of a body's ops as columns: what gives each, who reads it, by which slot."""

    def __init__(self, body: Body) -> None:
        self.body = body
        inputs, by_name = body.heads.inputs, body.by_name
        counts = np.fromiter(map(len, inputs), np.int64, len(inputs))
        self.texts = list(chain.from_iterable(inputs))
        # Most inputs are an op's output 0, spelled as its name: no call in Python for them.
        producers = map(by_name.get, self.texts, repeat(NOTHING))
        self.source = np.fromiter(producers, np.int64, len(self.texts))
        self.control = np.zeros(len(self.texts), np.bool_)
        for place in np.flatnonzero(self.source == NOTHING).tolist():
            self.source[place] = by_name.get(names.op_of(self.texts[place]), NOTHING)
            self.control[place] = self.texts[place][:1] == "^"
        self.reader = np.repeat(np.arange(len(inputs)), counts)
        self.slot = np.arange(len(self.texts)) - np.repeat(np.cumsum(counts) - counts, counts)

    @cached_property
    def tensors(self) -> list[TensorName]:
        """Return every tensor that an op reads, in the file's order of the ops that give them."""
        place = self.body.by_name
        every = {names.parse(text) for text in set(self.texts) if text[:1] != "^"}
        return sorted(every, key=lambda t: (place.get(t.op, NOTHING), t.op, t.arg, t.index))

    @cached_property
    def tensor(self) -> Column:
        """Return the tensor that each input reads, by its place among all; NOTHING for control."""
        places = {tensor: place for place, tensor in enumerate(self.tensors)}
        by_text = {text: places.get(names.parse(text), NOTHING) for text in set(self.texts)}
        return np.fromiter(map(by_text.__getitem__, self.texts), np.int64, len(self.texts))

    def links(
        self, link: Link, sources: Flags, readers: Flags, tensors: range | None = None
    ) -> Links:
        """Return the links of this kind from some ops, or of their vertices `tensors`, to ops."""
        source = self.source
        if tensors is not None:
            source = np.where(self.control, NOTHING, self.tensor + tensors.start)
        is_meant = (source != NOTHING) & (self.control == link.control)
        if link.input is not None:
            is_meant &= self.slot == link.input
        places = np.flatnonzero(is_meant)
        places = places[sources[source[places]] & readers[self.reader[places]]]
        if link.output is not None:
            is_output = [self._is_output(place, link.output) for place in places.tolist()]
            places = places[np.array(is_output, np.bool_)]
        return Links(source[places], self.reader[places], self.slot[places])

    def _is_output(self, place: int, output: int) -> bool:
        with suppress(IndexError, ModelError):  # the op has no such output
            tensor = Node(self.body, int(self.source[place])).tensor(output)
            return names.parse(self.texts[place]) == names.parse(tensor)
        return False


@dataclass(frozen=True)
class Run:
    """What a run (`->+`) can be made of: `members`, of which each reads the one before.

    `first` has the links from what it starts behind, `steps` those from member to member. `spend`
    counts the steps that are taken, and is told what for.
    """

    name: str
    spend: Callable[[int, str], None]
    members: Set[int]
    first: Links
    steps: Links

    def between(self, sources: Flags, ends: Flags) -> tuple[Run, Links]:
        """Return the run between some sources and ends, and as one link each pair that it joins."""
        begun = [start for start in np.flatnonzero(sources).tolist() if start in self.first.ends]
        last = set(np.flatnonzero(ends).tolist())
        can = f"can start behind {len(begun):,} and end in {len(last):,} ops"
        task = f"the run {self.name!r} {can}"
        readers, read = self.steps.ends, self.steps.up.ends
        behind = chain.from_iterable(self.first.ends[start] for start in begun)
        ahead = self._reached(behind, readers, self.members, task)
        last &= ahead
        members = self._reached(last, read, ahead, task)
        pairs: set[tuple[int, int]] = set()
        if len(begun) <= len(last):
            for start in begun:
                run = self._reached(self.first.ends[start], readers, members, task)
                pairs |= {(start, end) for end in run & last}
        else:
            for end in last:
                for index in self._reached([end], read, members, task):
                    before = self.first.up.ends.get(index, ())
                    pairs |= {(start, end) for start in before if sources[start]}
        self.spend(len(pairs), task)
        columns = np.array(sorted(pairs), np.int64).reshape(-1, 2).T
        links = Links(columns[0], columns[1], np.full(len(pairs), NOTHING))
        return replace(self, members=members), links

    def surely_goes_on(self, others: Flags) -> Flags:
        """Return the members behind which the run goes on with an op that is none of the `others`.

        Such an op does not end it. On a circle a run has to end, so those are not among them.
        """
        goes_on = np.zeros(len(others), np.bool_)
        goes_on[self.steps.sources[~others[self.steps.readers]]] = True
        steps = zip(self.steps.sources.tolist(), self.steps.readers.tolist(), strict=True)
        for part in nx.strongly_connected_components(nx.DiGraph(steps)):
            if len(part) > 1:
                goes_on[list(part)] = False
        return goes_on

    def ops(self, source: int, end: int, bound: Iterable[int]) -> tuple[int, ...]:
        """Return the ops on all paths from the source to the end, which is last.

        Without an op in which another node of the pattern is `bound`; none where one is on each.
        """
        task, taken = f"the run {self.name!r} has too many ops", set(bound) - {end}
        behind = self.first.ends.get(source, ())
        ahead = self._reached(behind, self.steps.ends, self.members, task, taken, end)
        run = self._reached([end] if end in ahead else [], self.steps.up.ends, ahead, task)
        return (*sorted(run - {end}), end) if run else ()

    def _reached(
        self,
        starts: Iterable[int],
        following: Mapping[int, Sequence[int]],
        members: Set[int],
        task: str,
        taken: Collection[int] = (),
        last: int = NOTHING,
    ) -> set[int]:
        """Return the members reached through others: not those taken, nor beyond the last."""
        marked, stack = set(taken), list(starts)
        while stack:
            index = stack.pop()
            if index not in marked and index in members:
                marked.add(index)
                stack += following.get(index, ()) if index != last else ()
        marked.difference_update(taken)
        self.spend(2 * len(marked), task)
        return marked


class Columns:
    """What is left of a body for a variant: of each node the vertices, of each edge the links.

    `runs` has what those edges can be that stand for a run (`->+`): such an edge is one link, from
    what the run starts behind to its last op. Of an absent op there is no column.
    """

    def __init__(self, inputs: Inputs, variant: Variant, ops: Mapping[str, Candidates]) -> None:
        self.inputs, self.variant = inputs, variant
        self.candidates = [ops[name] for name in variant.pattern.present]
        self.tensors: dict[str, range] = {}  # the vertices that each name of a tensor can be
        self.size = len(inputs.body)
        for name in variant.pattern.tensors:
            self.tensors[name] = range(self.size, self.size + len(inputs.tensors))
            self.size += len(inputs.tensors)
        self.every = self.flagged(range(self.size))
        self.vertices: list[Flags] = []
        self.links: dict[int, Links] = {}
        self.runs: dict[int, Run] = {}

    def narrow(self) -> bool:
        """Leave out what can be in no match; return whether something is left for each node.

        An op can be in one if it has the type and name, a link for each edge, and all that is asked
        of it: in this order, as indexes tell the first, columns the second, and attrs, which are
        read from the file, the last. Runs lead between what is left then.
        """
        self.fill(candidates.indexed for candidates in self.candidates)
        possible = self._drop_unlinked()
        if possible:
            for flags, candidates in zip(self.vertices, self.candidates, strict=False):
                for index in np.flatnonzero(flags).tolist() if candidates.besides else ():
                    flags[index] = candidates.passes(index)
            possible = self._drop_unlinked()
        for edge in self.variant.runs:
            if possible:
                self.add_run(edge)
                possible = self._drop_unlinked()
        return possible

    def fill(self, ops: Iterable[Sequence[int]]) -> None:
        """Let each node be these ops, or any tensor, with all links between them but runs."""
        self.vertices = [self.flagged(part) for part in chain(ops, self.tensors.values())]
        for edge, (source, target, link, _) in enumerate(self.variant.edges):
            if not link.repeat:
                self.links[edge] = self.linked(edge, self.vertices[source], self.vertices[target])

    def add_run(self, edge: int, is_whole: bool = True) -> None:
        """Add a run, between what its ends can be. If `is_whole`, it ends where it cannot go on."""
        source, end, link, _ = self.variant.edges[edge]
        ops, name = self.candidates[end].indices(), self.variant.names[end]
        members = self.flagged(ops)
        first = self.linked(edge, self.every, members)
        steps = self.inputs.links(Link(input=link.input), members, members)
        run = Run(name, self.variant.budget.spend, frozenset(ops), first, steps)
        if is_whole and name not in self.variant.read:
            nodes = self.candidates[:end] + self.candidates[end + 1 :]
            others = self.flagged(*(candidates.indexed for candidates in nodes))
            self.vertices[end] = self.vertices[end] & ~run.surely_goes_on(others)
        self.runs[edge], self.links[edge] = run.between(self.vertices[source], self.vertices[end])

    def linked(self, edge: int, sources: Flags, readers: Flags) -> Links:
        """Return the links that an edge can be, from and to some vertices; of a run the first."""
        source, _, link, _ = self.variant.edges[edge]
        tensors = self.tensors.get(self.variant.names[source])
        return self.inputs.links(link, sources, readers, tensors)

    def flagged(self, *parts: Sequence[int] | Column) -> Flags:
        """Return flags of these vertices."""
        flags = np.zeros(self.size, np.bool_)
        for vertices in parts:
            flags[vertices] = True
        return flags

    def _drop_unlinked(self) -> bool:
        """Drop vertices without a link for each edge, and links without both ends, until none is.

        Return whether something is left for each node.
        """
        before = -1
        while before != (before := sum(len(links.sources) for links in self.links.values())):
            for edge, links in self.links.items():
                source, target, *_ = self.variant.edges[edge]
                has_ends = self.vertices[source][links.sources]
                links = links.where(has_ends & self.vertices[target][links.readers])
                self.links[edge] = links
                for node, ends in ((source, links.sources), (target, links.readers)):
                    self.vertices[node] = self.vertices[node] & self.flagged(ends)
        return all(map(np.any, self.vertices))


class Step(NamedTuple):
    """A step of a walk: from what one node is bound to, over an edge, to what another can be."""

    known: int
    node: int
    edge: int
    links: Links


def shortest_walk(columns: Columns, anchors: Iterable[int]) -> tuple[list[int], list[Step]]:
    """Return the nodes in order, from one of the anchors, and the steps that lead to the others.

    Those of which neighbourhoods are smallest. A step costs the logarithm of how many vertices it
    leads to, as those of several multiply: rather up to what an op reads than down to its readers.
    """
    routes: nx.DiGraph[int] = nx.DiGraph()
    routes.add_nodes_from(range(len(columns.vertices)))
    for edge, (source, target, *_) in enumerate(columns.variant.edges):
        links = columns.links[edge]
        up, down = Step(target, source, edge, links.up), Step(source, target, edge, links)
        for step, least in ((up, 0.01), (down, 0.02)):
            starts = step.links.sources
            fan_out = max(1, len(starts)) / max(1, int(np.count_nonzero(np.bincount(starts))))
            cost, ends = log(fan_out) + least, (step.known, step.node)
            if ends not in routes.edges or routes.edges[ends]["cost"] > cost:
                routes.add_edge(*ends, cost=cost, step=step)
    shortest: Any = nx.single_source_dijkstra
    plans = {anchor: shortest(routes, anchor, weight="cost") for anchor in anchors}
    reach = {a: round(max(costs.values()), 1) for a, (costs, _) in plans.items()}
    costs, paths = plans[min(plans, key=lambda a: (reach[a], int(columns.vertices[a].sum()), a))]
    order = sorted(costs, key=lambda node: (costs[node], node))
    return order, [routes.edges[paths[node][-2:]]["step"] for node in order[1:]]


LocalLink = tuple[int, int, int, int]  # source, reader, an edge that it can be, slot


class Shape(NamedTuple):
    """What equal neighbourhoods have in common, by the places of their vertices.

    Which nodes of the pattern each vertex can be, and what links there are.
    """

    roles: tuple[tuple[int, ...], ...]
    links: tuple[LocalLink, ...]


class Neighbourhoods:
    """What is around each op that one node can be, the first in `order`; it is one of `anchors`."""

    def __init__(self, columns: Columns, anchors: Iterable[int]) -> None:
        self.columns, self.variant = columns, columns.variant
        self.order, self.steps = shortest_walk(columns, anchors)

    def by_shape(self) -> Iterator[tuple[Shape, Sequence[Sequence[int]]]]:
        """Yield each shape, with a column for each place of it: a vertex for each neighbourhood."""
        starts = np.flatnonzero(self.columns.vertices[self.order[0]])
        trees, starts = self._trees(starts)
        yield from trees
        by_shape: dict[Shape, list[list[int]]] = {}
        for start in starts.tolist():
            vertices, shape = self.around(self.reached(start))
            by_shape.setdefault(shape, []).append(vertices)
        yield from ((shape, list(zip(*every, strict=True))) for shape, every in by_shape.items())

    def reached(self, start: int) -> dict[int, Collection[int]]:
        """Return which vertices each node can be around a start, as far as any are linked."""
        reached: dict[int, Collection[int]] = {self.order[0]: (start,)}
        for step in self.steps:
            linked = (step.links.ends.get(vertex, ()) for vertex in reached[step.known])
            vertices = dict.fromkeys(chain.from_iterable(linked))
            if not vertices:
                break
            if len(vertices) > 1:
                task = f"{self.variant.names[step.node]!r} can be too many ops"
                self.variant.budget.spend(len(vertices), task)
            reached[step.node] = vertices
        return reached

    def around(self, reached: Mapping[int, Iterable[int]]) -> tuple[list[int], Shape]:
        """Return the vertices of a neighbourhood, and its shape."""
        roles: dict[int, tuple[int, ...]] = {}
        for node, vertices in reached.items():
            for vertex in vertices:
                roles[vertex] = (*roles.get(vertex, ()), node)
        if self.variant.swaps.twins:
            roles = dict(sorted(roles.items()))  # the places of vertices are in the file's order
        place = {vertex: number for number, vertex in enumerate(roles)}
        links = [
            (place[source], reader, edge, slot)
            for vertex, reader in place.items()
            for source, edge, slot in self._read.get(vertex, ())
            if source in place
        ]
        return list(roles), Shape(tuple(roles.values()), tuple(links))

    @cached_property
    def _read(self) -> dict[int, list[tuple[int, int, int]]]:
        """Return what each op reads: the vertex, the edge that the link can be, and the slot.

        Where no two edges could take one link, slots say NOTHING, so that more shapes are equal.
        """
        read: dict[int, list[tuple[int, int, int]]] = {}
        for edge, links in self.columns.links.items():
            is_slotted = self.variant.edges[edge].target in self.variant.slotted
            slots = links.slots if is_slotted else np.full_like(links.slots, NOTHING)
            columns = links.sources.tolist(), links.readers.tolist(), slots.tolist()
            for source, reader, slot in zip(*columns, strict=True):
                read.setdefault(reader, []).append((source, edge, slot))
        return read

    def _trees(self, starts: Column) -> tuple[list[tuple[Shape, list[list[int]]]], Column]:
        """Return those in which each node can be one vertex alone, and the starts of the others.

        They have one shape, and are walked all at once, as columns. More links between these
        vertices make no difference to VF2.
        """
        variant, order = self.variant, self.order
        if len(self.steps) < len(variant.edges) or variant.slotted or variant.swaps.twins:
            return [], starts
        columns, is_tree = {order[0]: starts}, np.ones(len(starts), np.bool_)
        size = self.columns.size
        for step in self.steps:
            lead = np.zeros(size, np.int64)
            lead[step.links.sources] = step.links.readers
            columns[step.node] = lead[columns[step.known]]
            is_tree &= np.bincount(step.links.sources, minlength=size)[columns[step.known]] == 1
        vertices = np.stack([columns[node] for node in order])
        is_tree &= (np.diff(np.sort(vertices, axis=0), axis=0) > 0).all(axis=0)
        if not is_tree.any():
            return [], starts
        place = {node: number for number, node in enumerate(order)}
        ends = enumerate(variant.edges)
        links = tuple([(place[e.source], place[e.target], edge, NOTHING) for edge, e in ends])
        shape = Shape(tuple([(node,) for node in order]), links)
        return [(shape, vertices[:, is_tree].tolist())], starts[~is_tree]
