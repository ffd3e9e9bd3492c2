"""All matches of a pattern in a body, in the file's order, the same on every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from operator import attrgetter

import msgspec

from graphpatch.differentiation.flow import lets_through
from graphpatch.graph.body import Body, Node
from graphpatch.graph.topology import data_uses
from graphpatch.match.condition import Condition
from graphpatch.match.pattern import refusals
from graphpatch.match.pattern.binding import Binding
from graphpatch.match.pattern.candidates import Candidates, candidates
from graphpatch.match.pattern.decide import Decider
from graphpatch.match.pattern.joins import all_bindings
from graphpatch.match.pattern.links import LinkWalker, Vertex
from graphpatch.match.pattern.neighbourhood import Walker
from graphpatch.match.pattern.symmetry import Symmetry, symmetry
from graphpatch.match.pattern.variants import variants
from graphpatch.match.spec import Edge, Match, Pattern
from graphpatch.names import TensorName

Conditions = Callable[[Match], Mapping[str, Condition]]
"""The conditions of a match, by key."""


class Search(msgspec.Struct, eq=False, dict=True):
    """The matches of one variant of a pattern, in which nothing is optional, in one body."""

    wiring: LinkWalker
    pattern: Pattern
    ready: Mapping[str, Candidates]  # of every op, absent ones too, by name

    @cached_property
    def walker(self) -> Walker:
        """Walks its neighbourhoods."""
        decider = Decider(self.pattern, self.symmetry.before)
        ops = decider.names[: decider.op_count]
        return Walker(self.wiring, decider, [self.ready[name] for name in ops])

    @cached_property
    def symmetry(self) -> Symmetry:
        """Which of its nodes can be swapped."""
        return symmetry(self.pattern)

    @property
    def can_match(self) -> bool:
        """Whether the body has ops that each node of the pattern could be, by the index."""
        return all(self.ready[name].count() for name in self.pattern.present)

    def bindings(self) -> Iterator[Binding]:
        """Every match, in the order of the ops from which neighbourhoods are walked."""
        for vertices in self._assignments():
            binding, reason = self.with_runs(vertices)
            if binding is not None and not reason:
                yield binding

    def _assignments(self) -> Iterator[tuple[Vertex, ...]]:
        found = all_bindings(self.walker)
        if found is not None:
            yield from found
            return
        for anchor in self.walker.candidates[self.walker.plan.anchor].indices():
            yield from self.walker.matches(anchor)

    def with_runs(self, vertices: tuple[Vertex, ...]) -> tuple[Binding | None, str]:
        """The match of an assignment, with its runs; and why it is none, where it is none."""
        decider, pattern, wiring = self.walker.decider, self.pattern, self.wiring
        ops: list[tuple[int, ...]] = [(one,) for one in vertices if not isinstance(one, TensorName)]
        read = [one for one in vertices if isinstance(one, TensorName)]
        for edge in self._runs:
            bound = dict(zip(decider.names, vertices, strict=True))
            run, reason = refusals.run(wiring, self.ready[edge.target], edge, bound)
            if reason:
                return None, reason
            ops[decider.names.index(edge.target)] = run
        binding = Binding(wiring.body, pattern, tuple(ops), tuple(read))
        wiring.walk(len(binding.indices))
        return binding, self._refused(binding)

    def _refused(self, binding: Binding) -> str:
        if self._is_plain:
            return ""
        reason = refusals.outside(binding)
        if reason:
            return reason
        for edge in self._runs:
            reason = refusals.goes_on(self.wiring, self.ready[edge.target], edge, binding)
            if reason:
                return reason
        for name in self.pattern.absent:
            reason = refusals.absent(self.wiring, self.ready[name], name, binding)
            if reason:
                return reason
        return refusals.closed(binding)

    @cached_property
    def _is_plain(self) -> bool:
        """Whether the edges are all that a match must keep to."""
        one = self.pattern
        return not (one.tensors or one.absent or self._runs or one.closed is not False)

    @cached_property
    def _runs(self) -> list[Edge]:
        return [edge for edge in self.pattern.edges if edge.link.repeat]


@dataclass(eq=False)
class Finder:
    """Finds a pattern in bodies. What the pattern alone says is worked out once, for all of them.

    Raises RulesError where a match in the pattern means nothing.
    """

    pattern: Pattern
    conditions: InitVar[Conditions]
    by_name: Mapping[str, Mapping[str, Condition]] = field(init=False)

    def __post_init__(self, conditions: Conditions) -> None:
        """Work out the conditions of each of its ops."""
        self.by_name = {name: conditions(match) for name, match in self.pattern.nodes.items()}

    @cached_property
    def variants(self) -> list[Pattern]:
        """The pattern with and without its optional ops."""
        return list(variants(self.pattern))

    def searches(self, body: Body) -> list[Search]:
        """A search for each variant of the pattern, those with more of its optional ops first."""
        wiring = LinkWalker(body)
        ready = {
            name: candidates(body, match, self.by_name[name])
            for name, match in self.pattern.nodes.items()
        }
        return [Search(wiring, variant, ready) for variant in self.variants]

    def matches(self, body: Body) -> list[Binding]:
        """Every match of the pattern in a body, in the order of their ops in the file.

        Nodes that could be swapped are bound in the file's order, so that each match is there
        once. Where an optional op is there, the match without it is one for those alone that read
        its last op beside the optional one. Matches may share ops. Raises MatchError where it
        takes too many steps to find them, as their number may be exponential.
        """
        found: list[Binding] = []
        done: list[tuple[Search, list[Binding]]] = []
        for search in self.searches(body):
            if search.can_match:
                larger = _matches_within(done, search)
                mine: list[Binding] = []
                done.append((search, mine))
                for binding in search.bindings():
                    around = larger.get(frozenset(binding.indices), []) if larger else []
                    if around and not is_read_beside(binding, around):
                        continue
                    mine.append(binding)
                    found.append(binding)
        return sorted(found, key=attrgetter("indices"))


def _matches_within(
    done: list[tuple[Search, list[Binding]]], search: Search
) -> dict[frozenset[int], list[Binding]]:
    """The matches of larger variants, by the ops that they have for the nodes of this one."""
    names = frozenset(search.pattern.present)
    found: dict[frozenset[int], list[Binding]] = {}
    for larger, bindings in done:
        if bindings and names < frozenset(larger.pattern.present):
            for image in larger.symmetry.images(names):
                for binding in bindings:
                    found.setdefault(frozenset(binding.of(image)), []).append(binding)
    return found


def is_read_beside(binding: Binding, larger: Sequence[Binding]) -> bool:
    """Whether ops outside of these larger matches compute with what the last op of a match gives.

    A larger match that ends in the same op leaves nobody beside. What does not let gradients
    through, as Shape does not, is no such reader.
    """
    body, last = binding.body, binding.last
    if any(one.last == last for one in larger):
        return False
    mine = {index for one in (binding, *larger) for index in one.indices}
    name = body.heads.names[last]
    return bool(body.returned.get(name)) or any(
        index not in mine and lets_through(Node(body, index))
        for index, _, _ in data_uses(body, name)
    )
