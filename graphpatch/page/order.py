"""The order of the lines: from the targets back to the sources, scope by scope where that can be.

A line comes after all that read it. Of those that may come next it is one of the scope that the
last one is in, so that a scope is one stretch of lines wherever the graph lets it be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

DEEPEST = 12  # scopes in each other that count


def scopes(name: str) -> tuple[str, ...]:
    """The scopes of an op, outermost first."""
    return tuple(name.split("/")[:-1][:DEEPEST])


@dataclass(eq=False)
class _Ready:
    """The lines that may come next, by scope; the latest of a scope is taken first."""

    scopes_of: Mapping[str, tuple[str, ...]]
    stacks: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    last: tuple[str, ...] = ()

    def add(self, key: str) -> None:
        """Add a line."""
        scope = self.scopes_of[key]
        for depth in range(len(scope) + 1):
            self.stacks.setdefault(scope[:depth], []).append(key)

    def take(self) -> str | None:
        """Take a line of the innermost scope that has one; None where none is ready."""
        for depth in range(len(self.last), -1, -1):
            stack = self.stacks.get(self.last[:depth], [])
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


def ordered(
    reads: Mapping[str, Sequence[str]], starts: Sequence[str], own_names: Mapping[str, str]
) -> list[str]:
    """The lines in their order; `reads` says for each which others it reads, `starts` come first.

    In a loop, which has no such order, the line that was read first begins.
    """
    ready = _Ready({key: scopes(own_names[key]) for key in reads})
    waiting = dict.fromkeys(reads, 0)
    for read in reads.values():
        for producer in set(read):
            waiting[producer] += 1
    firsts = [key for key in starts if key in waiting] + list(reads)
    for key in reversed(list(dict.fromkeys(firsts))):
        if not waiting[key]:
            ready.add(key)
    return list(_taken(ready, reads, waiting, deque(firsts)))


def _taken(
    ready: _Ready,
    reads: Mapping[str, Sequence[str]],
    waiting: dict[str, int],
    rest: deque[str],
) -> Iterator[str]:
    """The lines one by one; where a loop lets none come next, one that was read already."""
    read_already: deque[str] = deque()
    for _ in range(len(reads)):
        key = ready.take()
        while key is None:
            queue = read_already or rest
            first = queue.popleft()
            key = ready.begin(first) if first not in ready.taken else None
        yield key
        for producer in reversed(list(dict.fromkeys(reads[key]))):
            waiting[producer] -= 1
            if producer not in ready.taken:
                read_already.append(producer)
                if not waiting[producer]:
                    ready.add(producer)
