"""Runs of a pattern (`->+`): one or more ops, each of which reads the one before."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

import networkx as nx
import numpy as np

from graphpatch.match.conditions import Candidates
from graphpatch.match.pattern.topology import Budget, Flags, Links, Topology, grouped
from graphpatch.match.spec import Edge, Link


class Run:
    """A run in a body: which op that can be in it reads which, and what is before the first one.

    `starts` are the vertices that it may start behind, with the `offset` of tensors.
    """

    def __init__(
        self,
        topology: Topology,
        edge: Edge,
        candidates: Candidates,
        starts: Flags,
        offset: int | None,
        budget: Budget,
    ) -> None:
        self.edge, self.budget = edge, budget
        self.members = frozenset(candidates.indices())
        passing = np.zeros(len(starts), np.bool_)
        passing[list(self.members)] = True
        self.inner = topology.links(Link(input=edge.link.input), passing, passing)
        first = topology.links(edge.link, starts, passing, offset)
        self.readers = grouped(self.inner.source, self.inner.reader)
        self.read = grouped(self.inner.reader, self.inner.source)
        self.first = grouped(first.source, first.reader)
        self.before = grouped(first.reader, first.source)
        self.between: Container[int] = self.members

    def links(self, starts: Flags, ends: Flags, number: int) -> Links:
        """Return what a run starts behind and its end as one link, whose slot is `number`."""
        begun = [start for start in np.flatnonzero(starts).tolist() if start in self.first]
        behind = (index for start in begun for index in self.first[start])
        last = set(np.flatnonzero(ends).tolist())
        self.budget.task = (
            f"the run {self.edge.target!r} can start behind {len(begun):,} and end in"
            f" {len(last):,} ops"
        )
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
        return Links(columns[:, 0], columns[:, 1], np.full(len(columns), number))

    def surely_goes_on(self, others: Flags) -> Flags:
        """Return the ops behind which the run goes on, with an op that is none of the `others`.

        On a circle it ends where it would go round once more.
        """
        graph: nx.DiGraph[int] = nx.DiGraph(
            zip(self.inner.source.tolist(), self.inner.reader.tolist(), strict=True)
        )
        circles = (part for part in nx.strongly_connected_components(graph) if len(part) > 1)
        flags = np.zeros(len(others), np.bool_)
        flags[self.inner.source[~others[self.inner.reader]]] = True
        flags[[index for circle in circles for index in circle]] = False
        return flags

    def ops(self, bound: Mapping[str, int]) -> tuple[int, ...]:
        """Return all ops of the run, its last one last; none where it leads through another.

        They are those on every path to the end through such ops as are no others of the match. A
        path ends there: on a circle, it does not go round once more.
        """
        end, source = bound[self.edge.target], bound[self.edge.source]
        self.budget.task = f"the run {self.edge.target!r} has too many ops"
        taken = {vertex for vertex in bound.values() if vertex != end}
        ahead = self._reached(self.first.get(source, ()), self.readers, self.between, taken, end)
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
