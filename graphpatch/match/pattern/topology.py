"""The links of a body as columns, and runs of a pattern (`->+`) among them.

The vertices of a body are numbers: ops by their index, and behind them, for each name of a tensor
in the pattern (`x:_`), every tensor that an op reads.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat
from typing import Any, NamedTuple

import networkx as nx
import numpy as np

from graphpatch import names
from graphpatch.errors import MatchError, ModelError
from graphpatch.graph.node import Body, Node
from graphpatch.match.spec import Link
from graphpatch.names import TensorName

Column = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

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


class Run:
    """A run in a body, one or more ops of which each reads the one before: `members` can be in it.

    `edge` is the number of its link in the pattern, of which `offset` says that it starts behind
    tensors.
    """

    def __init__(
        self,
        topology: Topology,
        name: str,
        link: Link,
        members: Collection[int],
        every: Flags,
        offset: int | None,
        budget: Budget,
    ) -> None:
        self.name, self.budget, self.members = name, budget, frozenset(members)
        passing = np.zeros(len(every), np.bool_)
        passing[list(self.members)] = True
        self.inner = topology.links(Link(input=link.input), passing, passing)
        first = topology.links(link, every, passing, offset)
        self.readers = grouped(self.inner.source, self.inner.reader)
        self.read = grouped(self.inner.reader, self.inner.source)
        self.first = grouped(first.source, first.reader)
        self.before = grouped(first.reader, first.source)
        self.between: Container[int] = self.members

    def links(self, starts: Flags, ends: Flags, slot: int) -> Links:
        """Return what a run starts behind and its end as one link, by this slot."""
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
        columns = np.array(sorted(pairs), np.int64).reshape(-1, 2)
        return Links(columns[:, 0], columns[:, 1], np.full(len(columns), slot))

    def surely_goes_on(self, others: Flags) -> Flags:
        """Return the ops behind which the run goes on, with an op that is none of the `others`.

        On a circle it ends where it would go round once more.
        """
        ends = zip(self.inner.source.tolist(), self.inner.reader.tolist(), strict=True)
        graph: nx.DiGraph[int] = nx.DiGraph(ends)
        circles = (part for part in nx.strongly_connected_components(graph) if len(part) > 1)
        flags = np.zeros(len(others), np.bool_)
        flags[self.inner.source[~others[self.inner.reader]]] = True
        flags[[index for circle in circles for index in circle]] = False
        return flags

    def ops(self, start: int, end: int, bound: Iterable[int]) -> tuple[int, ...]:
        """Return all ops of the run, its last one last; none where it leads through another.

        They are those on every path to the end through such ops as are no others of the match. A
        path ends there: on a circle, it does not go round once more.
        """
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
