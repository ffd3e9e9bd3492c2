"""`shape`: the shape of output 0, as far as TensorFlow would infer it from the file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from graphpatch.differentiation.shapes import Shapes, Sizes, sizes_in_words
from graphpatch.differentiation.wiring import Wiring
from graphpatch.graph.body import Body, Node
from graphpatch.match import bounds
from graphpatch.match.bounds import Compared
from graphpatch.match.condition import Condition, Test
from graphpatch.match.described import described

Natural = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(ge=-1)] | Compared | None
"""The size of a dimension; -1 or None is any, as TensorFlow spells one that is not known."""


class Shape(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """What is asked of a shape: how many dimensions, how many elements, these sizes."""

    rank: Annotated[Natural | Compared | None, described("The number of dimensions.", 4)] = None
    elements: Annotated[
        Natural | Compared | None,
        described("The number of elements.", {"<": 100}),
    ] = None
    sizes: Annotated[tuple[Size, ...] | None, described("The sizes; -1 is any.", [-1, 8])] = None


def shape(wanted: Shape | tuple[Any, ...]) -> Condition:
    """Output 0 has such a shape. What is not known to have it does not match."""
    asked = wanted if isinstance(wanted, Shape) else Shape(sizes=wanted)

    def prepared(body: Body) -> Test:
        shapes = Shapes(Wiring(body))
        return lambda node: shape_holds(shape_of(shapes, node), asked)

    return prepared


def shape_of(shapes: Shapes, node: Node) -> Sizes:
    """The sizes of output 0, as far as they are known."""
    return shapes.if_known((node.index, 0)) if node.outputs else None


def shape_holds(found: Sizes, wanted: Shape, unknown: bool = False) -> bool:
    """Whether a shape is what is asked for; `unknown` is said of what is not known of it."""
    if found is None:
        return unknown
    if wanted.sizes is not None and not _sizes_fit(found, wanted.sizes, unknown):
        return False
    if wanted.rank is not None and not _size_is(len(found), wanted.rank):
        return False
    if wanted.elements is None:
        return True
    known = [size for size in found if size is not None]
    if len(known) < len(found):
        return unknown
    return _size_is(math.prod(known), wanted.elements)


def undecided(
    body: Body, nodes: Iterable[Node], wanted: Shape | tuple[Any, ...]
) -> Iterator[tuple[Node, Sizes]]:
    """Those of these ops that may have such a shape or not, each with what is known of it."""
    asked = wanted if isinstance(wanted, Shape) else Shape(sizes=wanted)
    shapes = Shapes(Wiring(body))
    for node in nodes:
        found = shape_of(shapes, node)
        if shape_holds(found, asked, unknown=True) and not shape_holds(found, asked):
            yield node, found


def shape_in_words(node: Node, wanted: object) -> str:
    """The shape of an op's output 0, in words."""
    return f"shape is {sizes_in_words(shape_of(Shapes(Wiring(node.body)), node))}"


def _sizes_fit(found: Sequence[int | None], wanted: Sequence[Any], unknown: bool) -> bool:
    if len(found) != len(wanted):
        return False
    return all(
        one in (None, -1) or (unknown if size is None else _size_is(size, one))
        for size, one in zip(found, wanted, strict=True)
    )


def _size_is(found: int, wanted: int | Compared) -> bool:
    return bounds.meets(found, wanted) if isinstance(wanted, Compared) else found == wanted
