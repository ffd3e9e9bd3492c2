"""All matches of a pattern in a body. networkx decides each; what is here says where it looks.

For each variant of a pattern, with and without its optional ops, in this order:

1. Conditions say which ops each node of the pattern can be, and columns of the whole body leave out
   what lacks a link for some edge (`Search.narrowed`). A run (`->+`) is one link, from what it
   starts behind to its last op.
2. From each op that one node can be, the anchor, a walk along the pattern's edges collects what the
   other nodes can be around it: a neighbourhood (`Walk`, `Neighbourhoods`).
3. Neighbourhoods that differ in nothing but which ops they have are of one shape. networkx's VF2
   says once for each shape how the pattern lies in it (`Decision`). It looks for a monomorphism:
   there may be more links than the pattern has, as in `Mul(x, x)`.
4. Where the pattern lies, the ops of runs are filled in, and what VF2 cannot see is asked: whether
   a run goes on, an absent op is there, a closed one is read outside (`Search.completed`).
5. Of matches that differ by a swap of like nodes the first in the file counts (`Swaps`), and
   without an optional op only those that larger matches do not replace (`Finder.matches`).

A budget counts the steps of all this: a pattern that says too little ends in a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, combinations
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
from graphpatch.match.links import NOTHING, Column, Flags, Inputs, Links, Run
from graphpatch.match.select import Binding
from graphpatch.match.spec import Link, Pattern, PatternLike
from graphpatch.match.syntax import forms, variants

Assignment = tuple[int, ...]  # by the number of a pattern's node, the vertex that it is bound to
TEST = 8  # steps that a test of networkx counts, beside one for each node that is bound
# Steps that may be taken for one pattern, and how many more for each op. One that says which ops it
# means takes about ten for each; others any power of their number.
LEAST, FOR_EACH = 1_000_000, 20


class Budget:
    """Counts the steps of a search for one pattern, in all bodies."""

    def __init__(self) -> None:
        self.steps, self.most, self.label = 0, LEAST, ""

    def allow(self, body: Body) -> None:
        """Allow the steps that one more body may take."""
        self.most, self.label = self.most + FOR_EACH * len(body), body.label

    def spend(self, count: int, task: str = "its matches are too many") -> None:
        """Count steps. Raises MatchError, which names the task, where they are too many by now."""
        self.steps += count
        if self.steps > self.most:
            raise MatchError(
                f"to find the pattern in {self.label} takes more than {self.most:,} steps"
                f" ({LEAST:,}, and {FOR_EACH} for each op): {task}; name op types instead of"
                " *, give the input slots of links (-> add:0), and say what a run starts behind"
                " and ends before"
            )


class Edge(NamedTuple):
    """An edge between two nodes of a pattern, by their numbers, and how often it is there."""

    source: int
    target: int
    link: Link
    times: int


class Variant:
    """A pattern in which nothing is optional, with numbers for its nodes: ops, then tensors."""

    def __init__(self, pattern: Pattern, budget: Budget) -> None:
        self.pattern, self.budget, self.op_count = pattern, budget, len(pattern.present)
        self.names = (*pattern.present, *pattern.tensors)
        number = {name: place for place, name in enumerate(self.names)}
        counts = Counter(
            (number[edge.source], number[edge.target], edge.link)
            for edge in pattern.edges
            if edge.source in number and edge.target in number
        )
        self.edges = [Edge(*ends_and_link, count) for ends_and_link, count in counts.items()]
        self.between: dict[tuple[int, int], list[int]] = {}
        for place, edge in enumerate(self.edges):
            self.between.setdefault((edge.source, edge.target), []).append(place)
        # Nodes of which slots tell whether several edges into them are as many links: edges from
        # one op, or from several names of tensors, which may be one tensor.
        from_tensors = Counter(e.target for e in self.edges if e.source >= self.op_count)
        self.slotted = {
            target
            for source, target, _, count in self.edges
            if max(count, len(self.between[source, target]), from_tensors[target]) > 1
        }
        self.runs = [place for place, edge in enumerate(self.edges) if edge.link.repeat]
        self.is_plain = not (self.runs or pattern.tensors or pattern.absent or pattern.closed)
        self.read = {edge.source for edge in pattern.edges if edge.target not in pattern.absent}
        self.swaps = Swaps(pattern)
        self.decided: dict[Shape, list[Assignment]] = {}  # what networkx said, for all bodies


class Swaps:
    """Which nodes of a pattern can be swapped: they are asked to be the same, and so are others.

    `twins` are pairs of nodes that have all edges in common. VF2 finds these in the file's order
    alone; others that `may` be swapped are compared when they are found.
    """

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        closed = pattern.closed if isinstance(pattern.closed, tuple) else ()
        self.asked: dict[str, Hashable] = dict.fromkeys(pattern.tensors, "tensor")
        for name, match in pattern.nodes.items():
            marks = name in pattern.absent, name in closed, name in pattern.optional
            self.asked[name] = (str(match), marks)
        kinds = {self._kind(name, self.asked) for name in self.asked}
        self.may_be = len(kinds) < len(self.asked)
        itself: dict[str, Hashable] = {name: name for name in self.asked}
        alike: dict[Hashable, list[int]] = {}
        for place, name in enumerate(pattern.present):
            if name not in pattern.optional:
                alike.setdefault(self._kind(name, itself), []).append(place)
        self.twins = [pair for group in alike.values() for pair in combinations(group, 2)]

    def first_of_each(self, bindings: Iterable[Binding]) -> Iterator[Binding]:
        """Yield of matches that differ by swaps alone the first, with the others as `swapped`."""
        if not self.may_be:
            yield from bindings
            return
        alike: dict[Hashable, list[Binding]] = {}
        for binding in bindings:
            alike.setdefault(self._identity(binding), []).append(binding)
        for first, *images in alike.values():
            for twin, other in self.twins:
                bound = list(first.bound)
                bound[twin], bound[other] = bound[other], bound[twin]
                images.append(replace(first, bound=tuple(bound)))
            yield replace(first, swapped=tuple(images))

    def _identity(self, binding: Binding) -> Hashable:
        """Return the part of the body that the pattern lies on, without the names of the nodes."""
        pattern = self.pattern
        bound: tuple[Hashable, ...] = (*(ops[-1] for ops in binding.bound), *binding.read)
        ends = dict(zip((*pattern.present, *pattern.tensors), bound, strict=True))
        ends |= {name: self._kind(name, ends) for name in pattern.absent}
        parts: list[Hashable] = [(self.asked[name], end) for name, end in ends.items()]
        parts += [(edge.link, ends[edge.source], ends[edge.target]) for edge in pattern.edges]
        return frozenset(Counter(parts).items())

    def _kind(self, name: str, meant: Mapping[str, Hashable]) -> Hashable:
        """Return what a node is asked to be, and its links, as its neighbours are `meant`."""
        edges = self.pattern.edges
        read = [(edge.link, "reads", meant[edge.source]) for edge in edges if edge.target == name]
        reads = [(edge.link, "read", meant[edge.target]) for edge in edges if edge.source == name]
        return self.asked[name], frozenset(Counter(read + reads).items())


class Narrowed(NamedTuple):
    """What is left of a body for a variant: of each node the vertices, of each edge the links.

    `runs` has what those edges can be that stand for a run.
    """

    vertices: Sequence[Flags]
    links: Mapping[int, Links]
    runs: Mapping[int, Run]


def arc_consistent(variant: Variant, narrowed: Narrowed) -> Narrowed | None:
    """Leave out vertices without a link for each edge, and links without both ends, until none is.

    Returns None where nothing is left for some node.
    """
    vertices, links, before = list(narrowed.vertices), dict(narrowed.links), -1
    while before != (before := sum(len(columns.sources) for columns in links.values())):
        for edge, columns in links.items():
            source, target, *_ = variant.edges[edge]
            has_ends = vertices[source][columns.sources] & vertices[target][columns.readers]
            links[edge] = columns = columns.where(has_ends)
            for node, ends in ((source, columns.sources), (target, columns.readers)):
                has_link = np.zeros(len(vertices[node]), np.bool_)
                has_link[ends] = True
                vertices[node] = vertices[node] & has_link
    return Narrowed(vertices, links, narrowed.runs) if all(map(np.any, vertices)) else None


class Step(NamedTuple):
    """A step of a walk: from what one node is bound to, over an edge, to what another can be."""

    known: int
    node: int
    edge: int
    links: Links


@dataclass(frozen=True)
class Walk:
    """How neighbourhoods are walked: from what the anchor can be, over steps, to nodes in order."""

    anchor: int
    order: list[int]
    steps: list[Step]

    @staticmethod
    def shortest(variant: Variant, anchors: Iterable[int], narrowed: Narrowed) -> Walk:
        """Return the walk whose neighbourhoods are smallest: VF2 is worse than linear in them.

        A step costs the logarithm of how many vertices it leads to, as those of several multiply.
        It leads rather up to what an op reads, which is little, than down to who reads it.
        """
        routes: nx.DiGraph[int] = nx.DiGraph()
        routes.add_nodes_from(range(len(narrowed.vertices)))
        for edge, (source, target, *_) in enumerate(variant.edges):
            links = narrowed.links[edge]
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
        anchor = min(plans, key=lambda a: (reach[a], int(narrowed.vertices[a].sum()), a))
        costs, paths = plans[anchor]
        order = sorted(costs, key=lambda node: (costs[node], node))
        return Walk(anchor, order, [routes.edges[paths[n][-2:]]["step"] for n in order[1:]])


class LocalLink(NamedTuple):
    """A link in a neighbourhood, by the places of its vertices; `edge` is one that it can be."""

    source: int
    reader: int
    edge: int
    slot: int


class Shape(NamedTuple):
    """What equal neighbourhoods have in common: which nodes each vertex can be, and the links."""

    roles: tuple[tuple[int, ...], ...]
    links: tuple[LocalLink, ...]


class Neighbourhoods:
    """The neighbourhoods of a variant in a body: the vertices of each, and their shape."""

    def __init__(self, variant: Variant, walk: Walk, narrowed: Narrowed) -> None:
        self.variant, self.walk, self.narrowed = variant, walk, narrowed

    @cached_property
    def read(self) -> dict[int, list[tuple[int, int, int]]]:
        """Return what each op reads: the vertex, the edge that the link can be, and the slot.

        Where no two edges could take one link, slots say NOTHING, so that more shapes are equal.
        """
        read: dict[int, list[tuple[int, int, int]]] = {}
        for edge, links in self.narrowed.links.items():
            is_slotted = self.variant.edges[edge].target in self.variant.slotted
            slots = links.slots if is_slotted else np.full_like(links.slots, NOTHING)
            columns = links.sources.tolist(), links.readers.tolist(), slots.tolist()
            for source, reader, slot in zip(*columns, strict=True):
                read.setdefault(reader, []).append((source, edge, slot))
        return read

    def trees(self, starts: Column) -> tuple[Column, Shape, Column]:
        """Return those in which each node can be one vertex alone, and the starts of the others.

        They are worked out for all starts at once: a row of vertices for each, in the order of the
        walk. All have one shape. More links between these vertices make no difference to VF2.
        """
        walk, variant, order = self.walk, self.variant, self.walk.order
        links = (
            LocalLink(order.index(source), order.index(target), edge, NOTHING)
            for edge, (source, target, *_) in enumerate(variant.edges)
        )
        shape = Shape(tuple([(node,) for node in order]), tuple(links))
        if len(walk.steps) < len(variant.edges) or variant.slotted or variant.swaps.twins:
            return np.empty((0, len(order)), np.int64), shape, starts
        columns, is_tree = {walk.anchor: starts}, np.ones(len(starts), np.bool_)
        size = len(self.narrowed.vertices[walk.anchor])
        for step in walk.steps:
            lead = np.zeros(size, np.int64)
            lead[step.links.sources] = step.links.readers
            columns[step.node] = lead[columns[step.known]]
            is_tree &= np.bincount(step.links.sources, minlength=size)[columns[step.known]] == 1
        rows = np.stack([columns[node] for node in order], axis=1)
        is_tree &= (np.diff(np.sort(rows, axis=1), axis=1) > 0).all(axis=1)
        return rows[is_tree], shape, starts[~is_tree]

    def reached(self, start: int) -> dict[int, Collection[int]]:
        """Return which vertices each node can be around a start, as far as any are linked."""
        reached: dict[int, Collection[int]] = {self.walk.anchor: (start,)}
        for step in self.walk.steps:
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
            LocalLink(place[source], reader, edge, slot)
            for vertex, reader in place.items()
            for source, edge, slot in self.read.get(vertex, ())
            if source in place
        ]
        return list(roles), Shape(tuple(roles.values()), tuple(links))


class Decision(DiGraphMatcher):
    """networkx's VF2 on a shape: how the pattern lies in it. Counts its steps for a `task`.

    `furthest` is the partial match of the most nodes, for those who ask why there is none.
    """

    def __init__(self, shape: Shape, variant: Variant, order: Iterable[int], task: str) -> None:
        self.slots: dict[tuple[int, int], dict[int, list[int]]] = {}  # by the ends, of each edge
        for source, reader, edge, slot in shape.links:
            self.slots.setdefault((source, reader), {}).setdefault(edge, []).append(slot)
        graph: nx.DiGraph[int] = nx.DiGraph(self.slots.keys())
        graph.add_nodes_from(range(len(shape.roles)))
        wanted: nx.DiGraph[int] = nx.DiGraph()
        wanted.add_nodes_from(order)
        wanted.add_edges_from(variant.between)
        super().__init__(graph, wanted)
        self.roles, self.variant, self.task = shape.roles, variant, task
        self.furthest: dict[int, int] = {}

    def matches(self) -> Iterator[Assignment]:
        """Yield a vertex of the shape for each node of the pattern, in every way."""
        for mapping in self.subgraph_monomorphisms_iter():
            self.variant.budget.spend(len(mapping), self.task)
            yield tuple(sorted(mapping, key=mapping.__getitem__))

    def syntactic_feasibility(self, vertex: int, node: int) -> bool:
        """Return whether a vertex can be a node, and has its links to those that are bound."""
        self.variant.budget.spend(TEST, self.task)
        is_linked: Callable[[int, int], bool] = super().syntactic_feasibility
        return node in self.roles[vertex] and is_linked(vertex, node)

    def semantic_feasibility(self, vertex: int, node: int) -> bool:
        """Return whether each edge to a node that is bound can be a link of its own."""
        bound = {**self.core_2, node: vertex}
        self.variant.budget.spend(len(bound) + len(self.G1) // 4, self.task)
        for first, second in self.variant.swaps.twins:
            if node in (first, second) and bound.get(first, 0) > bound.get(second, vertex):
                return False
        targets = (node, *self.G2.successors(node))
        is_met = all(self._has_links(target, bound) for target in targets if target in bound)
        if is_met and len(bound) > len(self.furthest):
            self.furthest = bound
        return is_met

    def _has_links(self, target: int, bound: Mapping[int, int]) -> bool:
        """Return whether each edge into a target, from what is bound, can be a link of its own."""
        choices: list[tuple[Collection[int], int]] = []
        for source in filter(bound.__contains__, self.G2.predecessors(target)):
            slots = self.slots[bound[source], bound[target]]
            for edge in self.variant.between[source, target]:
                choices.append((slots.get(edge, ()), self.variant.edges[edge].times))
        if target in self.variant.slotted:
            return are_apart(choices)
        return all(slots for slots, _ in choices)


def are_apart(choices: Iterable[tuple[Collection[int], int]]) -> bool:
    """Return whether each edge can have a slot of its own: slots to choose from, for how many.

    What two edges can choose from is nested or apart: slot 2, all slots that read output 0, all
    that read the op. So those choose first that have the fewest.
    """
    taken: set[int] = set()
    for slots, count in sorted(choices, key=lambda choice: len(choice[0])):
        free = [slot for slot in slots if slot not in taken]
        if len(free) < count:
            return False
        taken.update(free[:count])
    return True


class Search:
    """The matches of one variant of a pattern in one body."""

    def __init__(self, inputs: Inputs, variant: Variant, ops: Mapping[str, Candidates]) -> None:
        self.inputs, self.variant, self.budget = inputs, variant, variant.budget
        self.body, self.pattern, self.names = inputs.body, variant.pattern, variant.names
        self.candidates = [ops[name] for name in self.pattern.present]
        self.absent = {name: ops[name] for name in self.pattern.absent}
        self.tensors: dict[str, range] = {}  # the vertices that each name of a tensor can be
        self.size = len(self.body)
        for name in self.pattern.tensors:
            self.tensors[name] = range(self.size, self.size + len(inputs.tensors))
            self.size += len(inputs.tensors)

    def bindings(self) -> Iterator[Binding]:
        """Yield every match; of those that differ by a swap of nodes the first, with the others."""
        narrowed = self.narrowed()
        if narrowed is not None:
            assignments = sorted(self._assignments(narrowed))
            completed = (self.completed(vertices, narrowed.runs) for vertices in assignments)
            bindings = (binding for binding in completed if isinstance(binding, Binding))
            yield from self.variant.swaps.first_of_each(bindings)

    def narrowed(self) -> Narrowed | None:
        """Return what each node and each edge can be; None where a node can be nothing.

        First by op types and names, which are looked up, and by links; what that leaves must meet
        all conditions, which read attrs. Runs are links between what is left then.
        """
        by_index = self._unnarrowed(candidates.indexed for candidates in self.candidates)
        narrowed = arc_consistent(self.variant, by_index)
        if narrowed is not None:
            for flags, candidates in zip(narrowed.vertices, self.candidates, strict=False):
                for index in np.flatnonzero(flags).tolist() if candidates.besides else ():
                    flags[index] = candidates.passes(index)
            narrowed = arc_consistent(self.variant, narrowed)
        for edge in self.variant.runs:
            if narrowed is not None:
                narrowed = arc_consistent(self.variant, self._with_run(edge, narrowed))
        return narrowed

    def by_conditions(self) -> Narrowed:
        """Return what each node and each edge can be by itself: what is missing shows there."""
        narrowed = self._unnarrowed(candidates.indices() for candidates in self.candidates)
        for edge in self.variant.runs:
            narrowed = self._with_run(edge, narrowed, is_whole=False)
        return narrowed

    def _unnarrowed(self, ops: Iterable[Sequence[int]]) -> Narrowed:
        """Return these ops for each node, every tensor, and all links but of runs between them."""
        vertices = [self.flagged(part) for part in chain(ops, self.tensors.values())]
        links = {
            edge: self.links_of(edge, vertices[source], vertices[target])
            for edge, (source, target, link, _) in enumerate(self.variant.edges)
            if not link.repeat
        }
        return Narrowed(vertices, links, {})

    def _with_run(self, edge: int, narrowed: Narrowed, is_whole: bool = True) -> Narrowed:
        """Add a run, between what its ends can be. If `is_whole`, it ends where it cannot go on."""
        source, end, link, _ = self.variant.edges[edge]
        vertices, ops = list(narrowed.vertices), self.candidates[end].indices()
        members = self.flagged(ops)
        first = self.links_of(edge, self.flagged(range(self.size)), members)
        steps = self.inputs.links(Link(input=link.input), members, members)
        run = Run(self.names[end], self.budget.spend, frozenset(ops), first, steps)
        if is_whole and self.names[end] not in self.variant.read:
            nodes = self.candidates[:end] + self.candidates[end + 1 :]
            others = self.flagged(*(candidates.indexed for candidates in nodes))
            vertices[end] = vertices[end] & ~run.surely_goes_on(others)
        run, links = run.between(vertices[source], vertices[end])
        return Narrowed(vertices, {**narrowed.links, edge: links}, {**narrowed.runs, edge: run})

    def links_of(self, edge: int, sources: Flags, readers: Flags) -> Links:
        """Return the links that an edge can be, from and to some vertices; of a run the first."""
        source, _, link, _ = self.variant.edges[edge]
        return self.inputs.links(link, sources, readers, self.tensors.get(self.names[source]))

    def flagged(self, *parts: Sequence[int]) -> Flags:
        """Return flags of these vertices."""
        flags = np.zeros(self.size, np.bool_)
        for vertices in parts:
            flags[vertices] = True
        return flags

    def _assignments(self, narrowed: Narrowed) -> Iterator[Assignment]:
        """Yield every way in which the pattern lies in the body."""
        walk = Walk.shortest(self.variant, range(self.variant.op_count), narrowed)
        neighbourhoods = Neighbourhoods(self.variant, walk, narrowed)
        trees, shape, starts = neighbourhoods.trees(np.flatnonzero(narrowed.vertices[walk.anchor]))
        if len(trees):
            for assigned in self._decided(shape, walk, trees[0].tolist()):
                self.budget.spend(len(trees) * len(assigned))
                yield from map(tuple, trees[:, assigned].tolist())
        for start in starts.tolist():
            vertices, shape = neighbourhoods.around(neighbourhoods.reached(start))
            for assigned in self._decided(shape, walk, vertices):
                self.budget.spend(len(assigned))
                yield tuple([vertices[place] for place in assigned])

    def _decided(self, shape: Shape, walk: Walk, vertices: Sequence[int]) -> list[Assignment]:
        """Return how the pattern lies in a neighbourhood; for each shape networkx is asked once."""
        decided = self.variant.decided
        if shape not in decided:
            counts = Counter(chain.from_iterable(shape.roles))
            node = max(sorted(counts), key=counts.__getitem__)
            kind = "ops" if node < self.variant.op_count else "tensors"
            can_be = f"{self.names[node]!r} can be {counts[node]:,} {kind}"
            task = f"around {Node(self.body, vertices[0])}, {can_be}"
            decided[shape] = list(Decision(shape, self.variant, walk.order, task).matches())
        return decided[shape]

    def completed(self, vertices: Assignment, runs: Mapping[int, Run]) -> Binding | str:
        """Return the match of an assignment, with all ops of its runs; or why it is none."""
        count, variant = self.variant.op_count, self.variant
        ops: list[tuple[int, ...]] = [(vertex,) for vertex in vertices[:count]]
        if variant.is_plain:
            return Binding(self.body, self.pattern, tuple(ops), (), tuple(sorted(vertices)))
        for edge, run in runs.items():
            source, target, *_ = variant.edges[edge]
            ops[target] = run.ops(vertices[source], vertices[target], vertices)
            if not ops[target]:
                return f"the run to {run.name!r} leads through another op of the match"
        bound = dict(zip(self.names, vertices, strict=True))
        read = (self.inputs.tensors[bound[n] - of.start] for n, of in self.tensors.items())
        indices = tuple(sorted(chain.from_iterable(ops)))
        binding = Binding(self.body, self.pattern, tuple(ops), tuple(read), indices)
        self.budget.spend(len(binding.indices))
        mine = set(indices)
        going_on = (self._going_on(run, bound, mine) for run in runs.values())
        present = (self._present(name, bound, mine) for name in self.absent)
        inside, outside = self._from_inside(binding, mine), self._read_outside(binding)
        return next(chain(inside, *going_on, *present, outside), binding)

    def _from_inside(self, binding: Binding, mine: set[int]) -> Iterator[str]:
        """Yield which tensors are to come from outside, and an op of the match gives them."""
        for name, tensor in zip(self.pattern.tensors, binding.read, strict=True):
            if self.body.by_name.get(tensor.op) in mine:
                yield f"{name}:_ is a tensor from outside, and an op of the match gives {tensor}"

    def _going_on(self, run: Run, bound: Mapping[str, int], mine: set[int]) -> Iterator[str]:
        """Yield with which ops a run goes on that nothing of the pattern follows."""
        is_followed = run.name in self.variant.read
        for index in () if is_followed else run.steps.ends.get(bound[run.name], ()):
            if index not in mine:
                yield f"the run {run.name!r} goes on with {Node(self.body, index)}"

    def _present(self, name: str, bound: Mapping[str, int], mine: set[int]) -> Iterator[str]:
        """Yield which ops are there that must be absent: they have all links of such a node."""
        beside = [set(ops.get(bound[end], ())) for end, ops in self._beside[name]]
        for index in sorted(set.intersection(*beside) - mine):
            if self.absent[name].passes(index):
                yield f"{Node(self.body, index)} is there, which must be absent ({name!r})"

    def _read_outside(self, binding: Binding) -> Iterator[str]:
        """Yield which ops are closed, and read outside.

        Where all are, those that something inside reads; constants apart, which may well be shared.
        """
        closed = self.pattern.closed
        for name, indices in zip(self.pattern.present, binding.bound, strict=True):
            for index in indices if closed is not False else ():
                node, is_last = Node(self.body, index), index == indices[-1]
                is_inner = bool(node.data_inputs) and (name in self.variant.read or not is_last)
                if is_inner if isinstance(closed, bool) else name in closed:
                    for _, reader in binding.readers(index):
                        yield f"{node} ({name!r}) is read outside, by {reader}"

    @cached_property
    def _beside(self) -> dict[str, list[tuple[str, Mapping[int, Sequence[int]]]]]:
        """Return of each absent op its edges: the name at the other end, and the ops beside it."""
        beside: dict[str, list[tuple[str, Mapping[int, Sequence[int]]]]] = {}
        every = self.flagged(range(self.size))
        for edge in dict.fromkeys(self.pattern.edges):
            if not self.absent.keys().isdisjoint((edge.source, edge.target)):
                links = self.inputs.links(edge.link, every, every, self.tensors.get(edge.source))
                known, name, ops = edge.source, edge.target, links.ends
                if name not in self.absent:
                    known, name, ops = edge.target, edge.source, links.up.ends
                beside.setdefault(name, []).append((known, ops))
        return beside


def matches_of(wanted: PatternLike) -> Callable[[Body], list[Binding]]:
    """Return what finds in a body all matches of a pattern, or of each of several."""
    finders = [Finder(form) for form in forms(wanted)]

    def matches(body: Body) -> list[Binding]:
        inputs_of = cache(Inputs)
        return [match for finder in finders for match in finder.matches(body, inputs_of)]

    return matches


class Finder:
    """Finds a pattern in bodies. What the pattern alone says is worked out once for all."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern, self.budget = pattern, Budget()
        self.nodes = {name: holds(match) for name, match in pattern.nodes.items()}
        self.variants = [Variant(variant, self.budget) for variant in variants(pattern)]

    def searches(
        self, body: Body, inputs_of: Callable[[Body], Inputs], whole: bool = True
    ) -> Iterator[Search]:
        """Yield a search for each variant; with `whole`, where each node could be some op."""
        self.budget.allow(body)
        candidates = {name: candidates_in(body) for name, candidates_in in self.nodes.items()}
        possible = {name for name, ops in candidates.items() if not whole or ops.indexed}
        for variant in self.variants:
            if possible.issuperset(variant.pattern.present):
                yield Search(inputs_of(body), variant, candidates)

    def matches(self, body: Body, inputs_of: Callable[[Body], Inputs] = Inputs) -> list[Binding]:
        """Return every match of the pattern in a body, in the order of their ops in the file."""
        matches: list[Binding] = []
        for search in self.searches(body, inputs_of):
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
    """Return whether ops outside of these larger matches compute with what a match's last op gives.

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
