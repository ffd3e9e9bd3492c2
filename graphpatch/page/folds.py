"""The lanes of a list of lines, and the scopes of it that fold.

A lane leads from the first line that reads an op down to the line of that op, in the op's column.
All that read it join the same lane, as branches do in `git log --graph`. So one number for each
line says it all, and no lane crosses a knot.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from graphpatch.page.line_order import scopes

ABSENT = -1


@dataclass
class _Columns:
    """The columns that are free; the leftmost is taken first."""

    heap: list[int] = field(default_factory=list)
    free: set[int] = field(default_factory=set)
    count: int = 0

    def take(self, wanted: int = ABSENT) -> int:
        """Take the wanted column where it is free, else the leftmost."""
        if wanted in self.free:
            self.free.remove(wanted)
            return wanted
        while self.heap:
            column = heapq.heappop(self.heap)
            if column in self.free:
                self.free.remove(column)
                return column
        self.count += 1
        return self.count - 1

    def give(self, column: int) -> None:
        """Give a column back."""
        self.free.add(column)
        heapq.heappush(self.heap, column)


def lane_columns(reads: Sequence[Iterable[int] | None]) -> list[int]:
    """The column of each line, from the lines further down that it reads.

    None stands for a line that is not there: it has no column, ABSENT. What a line reads that does
    not come after it is left out: a loop's way back, which has no lane.
    """
    found, pool = [ABSENT] * len(reads), _Columns()
    for row, read in enumerate(reads):
        if read is None:
            continue
        if found[row] == ABSENT:
            found[row] = pool.take()
        pool.give(found[row])
        for producer in read:
            if producer > row and found[producer] == ABSENT:
                found[producer] = pool.take(found[row])
    return found


LINES_ALL_OPEN = 48  # lines; in a list of no more all scopes are open


class Fold(NamedTuple):
    """A scope: the first and last of its lines, how deep it lies, its name, whether it is open.

    The lines of a scope that do not follow each other are several of these.
    """

    first: int
    last: int
    depth: int
    name: str
    is_open: bool = False


def folds(names: Sequence[str], shown: Collection[int]) -> list[Fold]:
    """The folds of lines of these names, outer ones before inner ones.

    Open are those that hold a line that is to be `shown`; all of a short list.
    """
    before = [0]
    for row in range(len(names)):
        before.append(before[-1] + (row in shown or len(names) <= LINES_ALL_OPEN))
    return [
        Fold(one.first, one.last, depth, one.name, before[one.last + 1] > before[one.first])
        for one, depth in _with_depth(_innermost(_shared_scopes(names)))
    ]


def _shared_scopes(names: Sequence[str]) -> list[Fold]:
    """Each stretch of at least two lines that share a scope."""
    found: list[Fold] = []
    begun: list[tuple[str, int]] = []  # scope, its first line
    for row, name in enumerate([*names, ""]):
        parts = scopes(name) if row < len(names) else ()
        kept = 0
        while kept < len(begun) and kept < len(parts) and begun[kept][0] == parts[kept]:
            kept += 1
        while len(begun) > kept:
            whole = "/".join(scope for scope, _ in begun)
            _, first = begun.pop()
            if row - first > 1:
                found.append(Fold(first, row - 1, len(begun), whole))
        begun += [(scope, row) for scope in parts[kept:]]
    return sorted(found, key=lambda one: (one.first, -one.last, one.depth))


def _innermost(found: Sequence[Fold]) -> list[Fold]:
    """Of scopes that hold the same lines the innermost, which has the longest name."""
    by_lines = {(one.first, one.last): one for one in found}
    return list(by_lines.values())


def _with_depth(found: Sequence[Fold]) -> Iterator[tuple[Fold, int]]:
    """Each fold with the number of others around it."""
    around: list[Fold] = []
    for one in found:
        while around and around[-1].last < one.first:
            around.pop()
        yield one, len(around)
        around.append(one)
