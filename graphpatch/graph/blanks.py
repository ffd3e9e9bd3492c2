"""Texts and bytes with holes for what each op has of its own, filled in for many ops at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import AnyStr, Generic

import msgspec


class Blank(msgspec.Struct, Generic[AnyStr], frozen=True):
    """A format, and what comes into each hole: its place among what an op has of its own."""

    format: AnyStr
    places: tuple[int, ...]

    @property
    def is_hole(self) -> bool:
        """Whether there is nothing in it but one hole."""
        return len(self.places) == 1 and len(self.format) == 2

    @property
    def is_name(self) -> bool:
        """Whether it is the op's name, and no more."""
        return self.is_hole and self.places == (0,)

    def filled(self, row: Sequence[AnyStr]) -> AnyStr:
        """For one op."""
        return self.format % tuple([row[place] for place in self.places])

    @property
    def fill(self) -> Callable[[Sequence[AnyStr]], AnyStr]:
        """The same, for whoever does it often."""
        take, text = itemgetter(*self.places), self.format
        return take if self.is_hole else lambda row: text % take(row)

    def filled_all(self, rows: Sequence[Sequence[AnyStr]]) -> list[AnyStr]:
        """For many, without a call in Python for each."""
        if not self.places:
            return [self.filled(())] * len(rows)
        taken = map(itemgetter(*self.places), rows)
        return list(taken if self.is_hole else map(self.format.__mod__, taken))


class EditPayload(msgspec.Struct, frozen=True, eq=False):
    """What an edit writes of an op: its payload, that of each node it added, and all together.

    `order` is that in which they are written, by their places in `payloads`, and `whole` all of
    them as fields of a GraphDef. The op itself may be as it was: then it is not `is_touched`.
    """

    payloads: tuple[Blank[bytes], ...]
    order: tuple[int, ...]
    whole: Blank[bytes]
    is_touched: bool


class Filled(msgspec.Struct, frozen=True, eq=False):
    """One edit of many ops; `rows` are what these have of their own."""

    written: EditPayload
    rows: Sequence[tuple[bytes, ...]]

    def payload(self, row: int, place: int) -> bytes:
        """The NodeDef of one node of one op."""
        return self.written.payloads[place].filled(self.rows[row])


FilledPayload = tuple[Filled, int, int]
"""The payload of a node that is not made yet: what it is filled from, and where there."""
