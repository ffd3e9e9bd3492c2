"""The graphs that networkx decides on: the links of a body, and a pattern as a graph.

The vertices of a body are numbers: ops by their index, and behind them, for each name of a tensor
in the pattern (`x:_`), every tensor that an op reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property
from itertools import chain, combinations, repeat
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from graphpatch import names
from graphpatch.errors import MatchError, ModelError
from graphpatch.graph.node import Body, Node
from graphpatch.match.pattern.overlaps import Binding
from graphpatch.match.spec import Link, Pattern
from graphpatch.names import TensorName

Column = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

Vertices = tuple[int, ...]
"""What each node of a pattern is bound to."""

LEAST, FOR_EACH = 1_000_000, 20
"""Steps that may be taken for one pattern: so many, and so many more for each op.

How often a pattern matches, and how many ops its runs have, may grow as any power of the body. A
pattern that says which ops it means takes about ten steps for each of them.
"""


class Budget:
    """Counts the steps of a search."""

    def __init__(self) -> None:
        self.steps, self.most, self.label = 0, LEAST, ""
        self.task = "its matches are too many"  # what is worked on, for the message

    def allow(self, body: Body) -> None:
        """Allow the steps that a body may take more."""
        self.most += FOR_EACH * len(body)
        self.label = body.label

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


class Links(NamedTuple):
    """Links of a body as columns: an op or tensor, the op that reads it, and by which slot."""

    source: Column
    reader: Column
    slot: Column

    def where(self, chosen: Column | Flags) -> Links:
        """Return some of the links."""
        return Links(self.source[chosen], self.reader[chosen], self.slot[chosen])


class Topology:
    """The links of a body, and all tensors that its ops read."""

    def __init__(self, body: Body) -> None:
        self.body = body
        inputs, by_name = body.heads.inputs, body.by_name
        counts = np.fromiter(map(len, inputs), np.int64, len(inputs))
        self.texts = list(chain.from_iterable(inputs))
        # Most inputs are an op's output 0, spelled as its name: no call in Python for them.
        self.source = np.fromiter(
            map(by_name.get, self.texts, repeat(-1)), np.int64, len(self.texts)
        )
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
        return sorted(
            every, key=lambda read: (place.get(read.op, -1), read.op, read.arg, read.index)
        )

    @cached_property
    def tensor(self) -> Column:
        """Return the tensor of each link, by its place among all; -1 for a control input."""
        places = {tensor: place for place, tensor in enumerate(self.tensors)}
        by_text = {text: places.get(names.parse(text), -1) for text in set(self.texts)}
        return np.fromiter(map(by_text.__getitem__, self.texts), np.int64, len(self.texts))

    def tensor_of(self, vertex: int) -> TensorName:
        """Return the tensor that a vertex behind the ops stands for."""
        return self.tensors[(vertex - len(self.body)) % len(self.tensors)]

    def links(self, link: Link, sources: Flags, readers: Flags, offset: int | None = None) -> Links:
        """Return the links of this kind between some vertices and some ops.

        With an `offset` the sources are tensors, whose vertices are counted from there.
        """
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
        return Links(source, self.reader, self.slot).where(places)

    def _is_output(self, place: int, output: int) -> bool:
        """Return whether a link is one of this output of the op that gives it."""
        producer = Node(self.body, int(self.source[place]))
        try:
            return names.parse(self.texts[place]) == names.parse(producer.tensor(output))
        except (IndexError, ModelError):
            return False


def grouped(keys: Column, values: Column) -> dict[int, list[int]]:
    """Return the values by their keys."""
    groups: dict[int, list[int]] = {}
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        groups.setdefault(key, []).append(value)
    return groups


class PatternGraph:
    """A pattern in which nothing is optional: its ops and then its tensors, by number."""

    def __init__(self, pattern: Pattern, budget: Budget) -> None:
        self.pattern, self.budget = pattern, budget
        self.names = (*pattern.present, *pattern.tensors)
        self.op_count = len(pattern.present)
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
        # Whether the edges are all that a match must keep to.
        self.is_plain = not (has_runs or pattern.tensors or pattern.absent or pattern.closed)
        # What equal neighbourhoods are decided to hold, for all bodies.
        self.decided: dict[Hashable, list[Vertices]] = {}
        # What a node is asked to be, and those beside it: what can be swapped has that in common.
        closed = pattern.closed if isinstance(pattern.closed, tuple) else ()
        asked: dict[str, Hashable] = dict.fromkeys(pattern.tensors, "tensor")
        for name, match in pattern.nodes.items():
            marks = name in pattern.absent, name in closed, name in pattern.optional
            asked[name] = (str(match), marks)
        self.kinds = {name: (asked[name], self._beside(name, asked)) for name in asked}
        self.may_be_swapped = len(set(self.kinds.values())) < len(self.kinds)
        # Twins have their edges in common: the first is bound to what stands first in the file.
        itself: dict[str, Hashable] = {name: name for name in asked}
        alike: dict[Hashable, list[int]] = {}
        for place, name in enumerate(pattern.present):
            if name not in pattern.optional:
                alike.setdefault((asked[name], self._beside(name, itself)), []).append(place)
        self.twins = [pair for group in alike.values() for pair in combinations(group, 2)]

    def _beside(self, name: str, meant: Mapping[str, Hashable]) -> Hashable:
        """Return how a node is linked, and with what, as its neighbours are `meant`."""
        edges = self.pattern.edges
        read = _as_set((meant[edge.source], edge.link) for edge in edges if edge.target == name)
        return read, _as_set(
            (meant[edge.target], edge.link) for edge in edges if edge.source == name
        )

    def identity(self, binding: Binding) -> Hashable:
        """Return what matches have in common that differ by a swap of nodes alone.

        It is the part of the body that the pattern lies on, without the names of the nodes.
        """
        ends = (*(indices[-1] for indices in binding.bound), *binding.read)
        end_of: dict[str, Hashable] = dict(zip(self.names, ends, strict=True))
        beside: dict[str, list[Hashable]] = {name: [] for name in self.pattern.absent}
        links: list[Hashable] = [(self.kinds[name], end) for name, end in end_of.items()]
        for source, target, link in map(attrgetter("source", "target", "link"), self.pattern.edges):
            if source in beside:
                beside[source].append((link, "source", end_of[target]))
            elif target in beside:
                beside[target].append((link, "target", end_of[source]))
            else:
                links.append((link, end_of[source], end_of[target]))
        links += ((self.kinds[name], _as_set(ends)) for name, ends in beside.items())
        return _as_set(links)


def _as_set(items: Iterable[Hashable]) -> Hashable:
    return frozenset(Counter(items).items())
