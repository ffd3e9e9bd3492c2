"""A pattern as it is searched for: its nodes by number, which can be swapped, and a budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

from msgspec.structs import replace

from graphpatch.errors import MatchError
from graphpatch.graph.node import Body
from graphpatch.match.binding import Binding
from graphpatch.match.spec import Link, Pattern

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
        # What networkx said of each shape, in whatever body.
        self.decided: dict[Hashable, list[tuple[int, ...]]] = {}


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
            for place, twin in self.twins:
                bound = list(first.bound)
                bound[place], bound[twin] = bound[twin], bound[place]
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
