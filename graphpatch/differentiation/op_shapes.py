"""An op as the rules of shapes see it: what is known of what it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from graphpatch import opdefs
from graphpatch.graph import attrs
from graphpatch.graph.body import Node

LARGEST_RANK = 254  # that TensorFlow makes tensors of

Sizes = tuple[int | None, ...] | None
"""The sizes of a tensor, None for one that is not known; None where the rank is not."""

Integers = tuple[int | None, ...]


class Numbers(NamedTuple):
    """The integers of a small tensor, flat, None for one that is not known.

    `is_constant`: TensorFlow takes the tensor for a constant. It does not where a number of a
    shape is not known, and then of no part of that shape either, but for one number of it.
    """

    values: Integers
    is_constant: bool = True


class OpShapes(NamedTuple):
    """An op, one of its outputs, and the shapes and the numbers of its inputs."""

    node: Node
    output: int
    shapes: Sequence[Sizes]
    numbers: Sequence[Numbers | None]

    def known(self, slot: int) -> list[int] | None:
        """The numbers of an input that is a constant."""
        found = self.numbers[slot]
        if found is None or not found.is_constant:
            return None
        return [one for one in found.values if one is not None]

    def number(self, slot: int) -> int | None:
        """The one number of an input."""
        found = self.known(slot)
        return found[0] if found is not None and len(found) == 1 else None

    def spelled(self, slot: int) -> Sizes:
        """The shape that the numbers of an input spell, as far as they are known."""
        found, shape = self.numbers[slot], self.shapes[slot]
        if found is not None:
            return None if shape == () else tuple(map(known_size, found.values))
        if shape is None or len(shape) != 1 or shape[0] is None:
            return None
        return unknown_of_rank(shape[0])

    def attr(self, key: str) -> Any:
        """An attr as JSON has it, or its default."""
        value = self.node.attr(key)
        if value is not None:
            return attrs.as_json(value)
        op = opdefs.lookup(self.node.op)
        default = next((one.default for one in op.attrs if one.name == key), None) if op else None
        return list(default) if isinstance(default, tuple) else default


ShapeRule = Callable[[OpShapes], Sizes]
"""The shape of what an op gives, by what is known of what it reads."""


def known_size(size: int | None) -> int | None:
    """A size as it is told in a file, where -1 is one that is not known."""
    return size if size is not None and size >= 0 else None


def sizes_in_words(found: Sizes) -> str:
    """A shape as text; ? for a size that is not known."""
    if found is None:
        return "not known"
    return f"[{', '.join('?' if size is None else str(size) for size in found)}]"


def unknown_of_rank(rank: int) -> Sizes:
    """So many sizes of which none is known."""
    return (None,) * rank if rank <= LARGEST_RANK else None


def broadcast(shapes: Sequence[Sizes]) -> Sizes:
    """The shape of tensors of these shapes together; None where one has no known rank."""
    if any(one is None for one in shapes):
        return None
    rows = [tuple(reversed(one)) for one in shapes if one is not None]
    columns = zip_longest(*rows, fillvalue=1)
    return tuple(reversed([_together(sizes) for sizes in columns]))


def _together(sizes: Sequence[int | None]) -> int | None:
    large = {size for size in sizes if size is not None and size > 1}
    if large:
        return large.pop()
    return None if None in sizes else min(size for size in sizes if size is not None)


def merged_shape(shapes: Sequence[Sizes]) -> Sizes:
    """What is known of one shape that all of these are."""
    known = [one for one in shapes if one is not None]
    if not known or any(len(one) != len(known[0]) for one in known):
        return None
    columns = zip(*known, strict=True)
    return tuple(next((size for size in sizes if size is not None), None) for sizes in columns)


def axis_of(number: int | None, rank: int) -> int | None:
    """An axis counted from the first, where it is one."""
    if number is None or not -rank <= number < rank:
        return None
    return number % rank


def product(sizes: Sequence[int | None]) -> int | None:
    """How many elements there are, where all sizes are known."""
    found = 1
    for size in sizes:
        if size is None:
            return None
        found *= size
    return found


def total(sizes: Sequence[int | None]) -> int | None:
    """The sum, where all sizes are known."""
    return None if None in sizes else sum(size for size in sizes if size is not None)
