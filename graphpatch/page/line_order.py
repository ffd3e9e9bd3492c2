"""The order of the lines: from the targets back to the sources, scope by scope where that can be.

A line comes after all that read it. Of those that may come next it is one of the scope that the
last one is in, so that a scope is one stretch of lines wherever the graph lets it be.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush

DEEPEST_SCOPE = 12  # scopes in each other that count


def scopes(name: str) -> tuple[str, ...]:
    """The scopes of an op, outermost first."""
    scope, slash, _ = name.rpartition("/")
    return _scopes(scope) if slash else ()


@lru_cache(256)  # ops that follow each other are often of one scope
def _scopes(scope: str) -> tuple[str, ...]:
    return tuple(scope.split("/")[:DEEPEST_SCOPE])


@dataclass(eq=False)
class _ReadyLines:
    """The lines that may come next, by scope; the latest of a scope is taken first.

    `around` has by scope the stacks of that one and of all around it, the innermost first.
    """

    scopes_of: Mapping[str, tuple[str, ...]]
    stacks: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    around: dict[tuple[str, ...], list[list[str]]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    last: tuple[str, ...] = ()

    def add(self, key: str) -> None:
        """Add a line."""
        for stack in self._around(self.scopes_of[key]):
            stack.append(key)

    def _around(self, scope: tuple[str, ...]) -> list[list[str]]:
        found = self.around.get(scope)
        if found is None:
            outwards = [scope[:depth] for depth in range(len(scope), -1, -1)]
            found = [self.stacks.setdefault(one, []) for one in outwards]
            self.around[scope] = found
        return found

    def take(self) -> str | None:
        """Take a line of the innermost scope that has one; None where none is ready."""
        for stack in self._around(self.last):
            while stack:
                key = stack.pop()
                if key not in self.taken:
                    return self.begin(key)
        return None

    def begin(self, key: str) -> str:
        """Count a line as taken."""
        self.taken.add(key)
        self.last = self.scopes_of[key]
        return key


@dataclass(eq=False)
class _LineLoops:
    """The loops among the lines that are left: which of them nothing outside reads any more.

    `begun` has of each loop the lines that were read, by their places among all that are left,
    the first one on top; `members` all of them, the last one on top.
    """

    reads: Mapping[str, Sequence[str]]
    taken: set[str]
    read_already: Container[str]
    left: list[str] = field(default_factory=list)
    members: list[list[str]] = field(default_factory=list)
    begun: list[list[int]] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    loop_of: dict[str, int] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    open: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find them: lines that read each other are one."""
        import networkx as nx  # most graphs have no loop

        left = self.left = [key for key in self.reads if key not in self.taken]
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(left)
        graph.add_edges_from((key, one) for key in left for one in self.reads[key])
        self.places = places = {key: place for place, key in enumerate(left)}
        for members in nx.strongly_connected_components(graph):
            self.loop_of |= dict.fromkeys(members, len(self.members))
            self.members.append(sorted(members, key=places.__getitem__, reverse=True))
            self.begun.append(sorted(places[key] for key in members if key in self.read_already))
        self.waiting = [0] * len(self.members)
        for key in left:
            for one in self._outside(key):
                self.waiting[one] += 1
        self.open = [number for number, count in enumerate(self.waiting) if not count]

    def _outside(self, key: str) -> set[int]:
        loops = {self.loop_of[one] for one in self.reads[key] if one in self.loop_of}
        return loops - {self.loop_of[key]}

    def leave(self, key: str) -> None:
        """Count a line as taken."""
        for one in self._outside(key) if key in self.loop_of else ():
            self.waiting[one] -= 1
            if not self.waiting[one]:
                self.open.append(one)

    def read(self, key: str) -> None:
        """Count a line as read."""
        if key in self.places:
            heappush(self.begun[self.loop_of[key]], self.places[key])

    def first(self) -> str:
        """The line with which a loop begins: one that was read already, where there is one."""
        while True:
            begun, members = self.begun[self.open[-1]], self.members[self.open[-1]]
            while begun and self.left[begun[0]] in self.taken:
                heappop(begun)
            while members and members[-1] in self.taken:
                members.pop()
            if members:
                return self.left[begun[0]] if begun else members[-1]
            self.open.pop()


def in_reading_order(
    reads: Mapping[str, Sequence[str]], starts: Sequence[str], own_names: Mapping[str, str]
) -> list[str]:
    """The lines in their order; `reads` says for each which others it reads, each of them once.

    `starts` come first.
    In a loop, which has no such order, a line that was read already comes next.
    """
    ready = _ReadyLines({key: scopes(own_names[key]) for key in reads})
    waiting = dict.fromkeys(reads, 0)
    for key, read in reads.items():
        for producer in read:
            waiting[producer] += producer != key
    for key in reversed(list(dict.fromkeys([*starts, *reads]))):
        if key in waiting and not waiting[key]:
            ready.add(key)
    return list(_ordered_lines(ready, reads, waiting))


def _ordered_lines(
    ready: _ReadyLines, reads: Mapping[str, Sequence[str]], waiting: dict[str, int]
) -> Iterator[str]:
    """The lines one by one."""
    read_already: set[str] = set()
    loops: _LineLoops | None = None
    for _ in range(len(reads)):
        key = ready.take()
        if key is None:
            loops = loops or _LineLoops(reads, ready.taken, read_already)
            key = ready.begin(loops.first())
        yield key
        if loops is not None:
            loops.leave(key)
        for producer in reversed(reads[key]):
            waiting[producer] -= producer != key
            if loops is not None and producer not in read_already:
                loops.read(producer)
            read_already.add(producer)
            if not waiting[producer] and producer not in ready.taken:
                ready.add(producer)
