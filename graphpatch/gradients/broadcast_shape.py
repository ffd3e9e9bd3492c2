"""What is known of a tensor's shape before any tensor is there: whose shape it has.

A formula is written for ops whose shapes the file need not tell. Enough is known all the same to
leave most of the reshaping out: `dy * x` has the joint shape of dy and x, whatever that is.
"""

from __future__ import annotations

import msgspec


class BroadcastShape(msgspec.Struct, frozen=True):
    """The shape that tensors have when broadcast together, by their names.

    The shape broadcasts to the joint one of `most` (None where that is unknown), and the joint
    one of `least` broadcasts to it. Where both are the same, it is that shape.
    """

    most: frozenset[str] | None
    least: frozenset[str]

    @property
    def exactly(self) -> frozenset[str] | None:
        """The tensors whose joint shape this is, or None where that is unknown."""
        return self.most if self.most == self.least else None


SCALAR = BroadcastShape(frozenset(), frozenset())
UNKNOWN = BroadcastShape(None, frozenset())


def shape_of_tensor(name: str) -> BroadcastShape:
    """The shape of one tensor."""
    return BroadcastShape(frozenset({name}), frozenset({name}))


def broadcast_together(*shapes: BroadcastShape) -> BroadcastShape:
    """The shape that these have when broadcast together."""
    least = frozenset[str]().union(*(shape.least for shape in shapes))
    known = [shape.most for shape in shapes if shape.most is not None]
    if len(known) < len(shapes):
        return BroadcastShape(None, least)
    return BroadcastShape(frozenset[str]().union(*known), least)


def sizes_set_to_1(shape: BroadcastShape) -> BroadcastShape:
    """The shape with some sizes set to 1."""
    return BroadcastShape(shape.most, frozenset())
