"""A long order of numbers, in which a place is found, and a number put in, without a search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

SIZE = 500  # of a part, when it was just made of one that had become twice as long


class LongOrder:
    """Numbers, each once, in an order: as a list has them, kept in parts that are short.

    `index` and `insert` look at one part and at how long the others are. In a list of a hundred
    thousand, they would look at all of it.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self.parts: list[list[int]] = []
        self.part_of: dict[int, list[int]] = {}
        every = list(numbers)
        for start in range(0, len(every), SIZE):
            self._part(len(self.parts), every[start : start + SIZE])

    def __len__(self) -> int:
        return len(self.part_of)

    def __iter__(self) -> Iterator[int]:
        for part in self.parts:
            yield from part

    def index(self, number: int) -> int:
        """Where a number stands; ValueError where it is not among them."""
        mine, before = self.part_of.get(number), 0
        for part in self.parts:
            if part is mine:
                return before + part.index(number)
            before += len(part)
        raise ValueError(f"{number} is not in the order")

    def insert(self, at: int, number: int) -> None:
        """Put a number that is not there yet in front of the one at this place, or at the end."""
        before = 0
        for place, part in enumerate(self.parts):
            if at <= before + len(part):
                part.insert(at - before, number)
                self.part_of[number] = part
                if len(part) == 2 * SIZE:
                    self._part(place + 1, part[SIZE:])
                    del part[SIZE:]
                return
            before += len(part)
        raise IndexError(f"there is no place {at} in an order of {before}")

    def copy(self) -> LongOrder:
        """The same order, to be changed on its own."""
        return LongOrder(self)

    def _part(self, place: int, numbers: list[int]) -> None:
        self.parts.insert(place, numbers)
        self.part_of.update(dict.fromkeys(numbers, numbers))
