"""What reads what in a body, as columns: the links that an edge of a pattern can be, and runs.

What a name of a pattern can be is a number, its vertex: an op by its index, and behind the ops, for
each name of a tensor (`x:_`), every tensor that an op reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, repeat
from typing import Any

import networkx as nx
import numpy as np

from graphpatch import names
from graphpatch.errors import ModelError
from graphpatch.graph.node import Body, Node
from graphpatch.match.spec import Link
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
