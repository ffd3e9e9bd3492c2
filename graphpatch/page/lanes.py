"""In which column each line of a list has its knot, so that lanes can be drawn between lines.

A lane leads from the first line that reads an op down to the line of that op, in the op's column.
All that read it join the same lane, as branches do in `git log --graph`. So one number for each
line says it all, and no lane crosses a knot.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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
