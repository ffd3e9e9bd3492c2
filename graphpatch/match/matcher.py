"""All matches of a pattern in a body. networkx decides each; what is here asks it, and orders them.

For each variant of a pattern, with and without its optional ops:

1. Which ops are candidates, and where to look: neighbourhoods (`narrowing.py`). Those that differ
   in nothing but which ops they have are of one shape.
2. networkx's VF2 says once for each shape how the pattern lies in it (`Vf2`). It looks for a
   monomorphism: there may be more links than the pattern has, as in `Mul(x, x)`.
3. Where the pattern lies, the ops of runs are filled in, and what VF2 cannot see is asked: whether
   a run goes on, an absent op is there, a closed one is read outside (`Search.completed`).
4. Of matches that differ by a swap of like nodes the first in the file counts (`Swaps`), and
   without an optional op only those that larger matches do not replace (`Finder.matches`).

When to stop: a budget counts the steps of all this, and a pattern that says too little ends in a
message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from itertools import chain, islice
from operator import attrgetter

import networkx as nx
from networkx.algorithms.isomorphism import DiGraphMatcher

from graphpatch.differentiation.flow import lets_through
from graphpatch.errors import MatchError
from graphpatch.graph.node import Body, Node
from graphpatch.graph.walk import data_uses
from graphpatch.match.binding import Binding
from graphpatch.match.narrowing import Columns, Inputs, Neighbourhoods, Run, Shape, Step
from graphpatch.match.select import Candidates, holds
from graphpatch.match.spec import Pattern, PatternLike
from graphpatch.match.syntax import forms, variants
from graphpatch.match.variant import TEST, Budget, Variant
from graphpatch.shown import short

Assignment = tuple[int, ...]  # by the number of a pattern's node, the vertex that it is bound to
TRACED, SHOWN = 10_000, 3  # ops from which a pattern is traced that has no match; misses of a shape


class Vf2(DiGraphMatcher):
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

    def candidate_pairs_iter(self) -> Generator[tuple[int, int], None, None]:
        """Yield the pairs of a vertex and a node that VF2 tries next, if the one can be the other.

        It adds them one by one, beside those that are bound, and tests whether all links are there.
        """
        for vertex, node in super().candidate_pairs_iter():
            self.variant.budget.spend(TEST, self.task)
            if node in self.roles[vertex]:
                yield vertex, node

    def semantic_feasibility(self, vertex: int, node: int) -> bool:
        """Return whether a vertex may be a node beside those that are bound: what VF2 asks us.

        Each edge must be a link of its own, and twins are found in the file's order alone.
        """
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
        self.columns = Columns(inputs, variant, ops)
        self.variant, self.body, self.inputs = variant, inputs.body, inputs
        self.pattern, self.names = variant.pattern, variant.names
        self.absent = {name: ops[name] for name in self.pattern.absent}

    def bindings(self) -> Iterator[Binding]:
        """Yield every match; of those that differ by a swap of nodes the first, with the others."""
        if self.columns.narrow():
            completed = map(self.completed, sorted(self._assignments()))
            bindings = (binding for binding in completed if isinstance(binding, Binding))
            yield from self.variant.swaps.first_of_each(bindings)

    def _assignments(self) -> Iterator[Assignment]:
        """Yield every way in which the pattern lies in the body."""
        neighbourhoods = Neighbourhoods(self.columns, range(self.variant.op_count))
        for shape, vertices in neighbourhoods.by_shape():
            first = vertices[0]  # of each neighbourhood
            for places in self._decided(shape, neighbourhoods.order, first[0]):
                self.variant.budget.spend(len(first) * len(places))
                yield from zip(*(vertices[place] for place in places), strict=True)

    def _decided(self, shape: Shape, order: list[int], vertex: int) -> list[Assignment]:
        """Return how the pattern lies in a shape; networkx is asked once, for all bodies."""
        decided = self.variant.decided
        if shape not in decided:
            counts = Counter(chain.from_iterable(shape.roles))
            node = max(sorted(counts), key=counts.__getitem__)
            kind = "ops" if node < self.variant.op_count else "tensors"
            can_be = f"{self.names[node]!r} can be {counts[node]:,} {kind}"
            task = f"around {Node(self.body, vertex)}, {can_be}"
            decided[shape] = list(Vf2(shape, self.variant, order, task).matches())
        return decided[shape]

    def completed(self, vertices: Assignment) -> Binding | str:
        """Return the match of an assignment, with all ops of its runs; or why it is none."""
        variant, runs = self.variant, self.columns.runs
        ops: list[tuple[int, ...]] = [(vertex,) for vertex in vertices[: variant.op_count]]
        if variant.is_plain:
            return Binding(self.body, self.pattern, tuple(ops), (), tuple(sorted(vertices)))
        for edge, run in runs.items():
            source, target, *_ = variant.edges[edge]
            ops[target] = run.ops(vertices[source], vertices[target], vertices)
            if not ops[target]:
                return f"the run to {run.name!r} leads through another op of the match"
        bound = dict(zip(self.names, vertices, strict=True))
        read = (self.inputs.tensors[bound[n] - of.start] for n, of in self.columns.tensors.items())
        indices = tuple(sorted(chain.from_iterable(ops)))
        binding = Binding(self.body, self.pattern, tuple(ops), tuple(read), indices)
        variant.budget.spend(len(binding.indices))
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
        every, tensors = self.columns.every, self.columns.tensors
        for edge in dict.fromkeys(self.pattern.edges):
            if not self.absent.keys().isdisjoint((edge.source, edge.target)):
                links = self.inputs.links(edge.link, every, every, tensors.get(edge.source))
                known, name, ops = edge.source, edge.target, links.ends
                if name not in self.absent:
                    known, name, ops = edge.target, edge.source, links.up.ends
                beside.setdefault(name, []).append((known, ops))
        return beside

    def near_misses(self) -> Iterator[tuple[int, str]]:
        """Yield how many ops were bound around one of the rarest node, the most first; why no more.

        Each is as far as networkx came in a neighbourhood, or a match that a condition refused.
        """
        variant, columns = self.variant, self.columns
        counts = [len(candidates.indexed) or columns.size + 1 for candidates in columns.candidates]
        rarest, counted = counts.index(min(counts)), Counter[Shape]()
        with suppress(MatchError):  # where it takes too many steps, it says less
            columns.fill(candidates.indices() for candidates in columns.candidates)
            for edge in variant.runs:
                columns.add_run(edge, is_whole=False)
            near = Neighbourhoods(columns, [rarest])
            starts = islice(columns.candidates[rarest].indices(), TRACED)
            for reached in sorted(map(near.reached, starts), key=len, reverse=True):
                vertices, shape = near.around(reached)
                counted[shape] += 1
                if counted[shape] > SHOWN:
                    continue
                vf2 = Vf2(shape, variant, near.order, "")
                assigned = tuple([vertices[place] for place in next(vf2.matches(), ())])
                bound = {node: vertices[place] for node, place in vf2.furthest.items()}
                reason = self.completed(assigned) if assigned else self._missing(near.steps, bound)
                if isinstance(reason, str):
                    present = [node for node in range(variant.op_count) if node in bound]
                    ops = (f"{self.names[n]} is {Node(self.body, bound[n])}" for n in present)
                    yield len(present), f"{', '.join(ops)}; {reason}"

    def _missing(self, steps: Sequence[Step], bound: Mapping[int, int]) -> str:
        """Return which node came next, and why each op that is linked as it should be is not it."""
        known, node, edge, *_ = next(s for s in steps if s.known in bound and s.node not in bound)
        columns, name = self.columns, self.names[known]
        is_read = known == self.variant.edges[edge].source
        ends = columns.flagged([bound[known]]), columns.every
        links = columns.linked(edge, *(ends if is_read else reversed(ends)))
        linked = sorted(set((links.readers if is_read else links.sources).tolist()))
        taken = {vertex: self.names[number] for number, vertex in bound.items()}
        rejections = list[str]()
        for op in (Node(self.body, index) for index in linked if index < len(self.body)):
            is_taken = f"{op} is {taken[op.index]!r} already" if op.index in taken else ""
            rejections += filter(None, [columns.candidates[node].why_not(op) or is_taken])
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
