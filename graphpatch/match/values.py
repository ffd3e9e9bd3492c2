"""`value` and `shape`: what a Const holds, and the shape of output 0."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import UNSET

from graphpatch.differentiation.shapes import Shapes, Sizes, sizes_in_words
from graphpatch.differentiation.wiring import Wiring
from graphpatch.errors import RulesError
from graphpatch.graph.attrs import constant
from graphpatch.graph.node import Body, Node
from graphpatch.match.keys import SIGNS, Condition, Test, meets, on_ops
from graphpatch.match.spec import Compared, Near, Shape
from graphpatch.table import IN_MESSAGE


def value(wanted: Any) -> Condition:
    """Return the condition that the op is a Const of this value.

    A number or text is meant of every element, whatever the shape; a list has the shape of the
    tensor. Numbers are rounded to the dtype of the tensor, as TensorFlow does when it makes a
    constant; with `near`, they may be off by the tolerance besides. Bools are not numbers. An
    empty tensor equals an empty list alone.

    Of a large tensor no more is read than it takes to see that it is another one.
    """
    near = wanted if isinstance(wanted, Near) else Near(near=wanted)
    tolerance = near.tolerance if near is wanted else None
    is_list = isinstance(near.near, tuple | list)
    shape, flat = ((), []) if near.near is UNSET else _flattened(near.near)

    def holds(node: Node) -> bool:
        tensor = constant(node)
        if tensor is None or (tensor.shape != shape if is_list else not tensor.size):
            return False
        if near.bounds and (tensor.dtype in ("string", "bool") or tensor.dtype in COMPLEX):
            return False
        if not all(_comparable(tensor.dtype, element) for element in flat):
            return False
        count = 0
        for piece, stands_for in tensor.pieces():
            elements = flat[count : count + stands_for] if is_list else flat
            for sign, bound in near.bounds.items():
                if not SIGNS[sign](piece, _rounded(tensor.dtype, [bound])).all():
                    return False
            if elements and not _is_equal(tensor.dtype, piece, elements, tolerance):
                return False
            count += stands_for
        return count == tensor.size

    return on_ops(
        holds,
        lambda node: (
            f"value is {value_of(node)}"
            if node.op == "Const"
            else f"it is a {node.op}, not a Const"
        ),
    )


def value_of(node: Node) -> str:
    """Return the first elements of a Const."""
    tensor = constant(node)
    if tensor is None:
        return "unknown"
    first: list[object] = next((piece[:IN_MESSAGE].tolist() for piece, _ in tensor.pieces()), [])
    if tensor.size and not first:
        return "not known: elements of the constant are missing"
    words = [f"{number:.7g}" if isinstance(number, float) else str(number) for number in first]
    more = ", ..." if tensor.size > len(first) else ""
    return f"[{', '.join(words)}{more}]" if tensor.shape else words[0]


def _flattened(wanted: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of nested lists and their elements; RulesError where they are of unequal length."""
    if not isinstance(wanted, tuple | list):
        if not isinstance(wanted, bool | int | float | str):
            raise RulesError(
                f"value: expected a number, a text or a list of these, found {wanted!r}"
            )
        if isinstance(wanted, int) and abs(wanted) > LARGEST_FLOAT:
            raise RulesError("value: an integer is larger than any number that a tensor holds")
        return (), [wanted]
    parts = [_flattened(part) for part in wanted]
    shapes = {shape for shape, _ in parts}
    if len(shapes) > 1:
        raise RulesError(f"value: the lists in {list(wanted)!r} are of unequal length")
    inner = shapes.pop() if shapes else ()
    return (len(parts), *inner), [part for _, flat in parts for part in flat]


def _comparable(dtype: str, wanted: Any) -> bool:
    """Whether a value can be one of this dtype: 0.5 is not an int32, true is not a number."""
    if dtype == "string" or isinstance(wanted, str):
        return dtype == "string" and isinstance(wanted, str)
    if dtype == "bool" or isinstance(wanted, bool):
        return dtype == "bool" and isinstance(wanted, bool)
    return True


def _rounded(dtype: str, wanted: Sequence[Any]) -> Any:
    """Return the values as a tensor of this dtype would hold them; those out of its range stay."""
    import numpy as np

    if dtype == "string":
        return np.array([text.encode() for text in wanted], np.object_)
    if dtype not in FLOAT_DTYPES:
        return np.array(wanted)
    wide = np.array(wanted, np.complex128 if dtype in COMPLEX else np.float64)
    rounded = wide.astype(FLOAT_DTYPES[dtype])
    if dtype == "bfloat16":
        # To the nearest float32 of which the lower half is 0, to the even one of two.
        bits = rounded.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).view(np.float32)
    return np.where(np.isfinite(rounded) | ~np.isfinite(wide), rounded, wide)


COMPLEX = ("complex64", "complex128")

FLOAT_DTYPES = {
    **{dtype: dtype for dtype in ("float16", "float32", "float64", *COMPLEX)},
    "bfloat16": "float32",
}
"""The dtypes that round, and numpy's type in which their elements are compared."""

LARGEST_FLOAT = 1.7976931348623157e308


def _is_equal(dtype: str, piece: Any, wanted: Sequence[Any], tolerance: float | None) -> bool:
    """Return whether all elements are the wanted ones, or near them; NaN equals NaN."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        expected = _rounded(dtype, wanted)
        same = piece == expected
        if dtype in FLOAT_DTYPES:
            same = same | (np.isnan(piece) & np.isnan(expected))
        if tolerance is not None and dtype not in ("string", "bool"):
            wide = piece.astype(np.complex128 if dtype in COMPLEX else np.float64)
            same = same | (np.abs(wide - np.array(wanted)) <= tolerance)
    return bool(np.all(same))


def shape(wanted: Shape | tuple[Any, ...]) -> Condition:
    """Output 0 has such a shape. What is not known to have it does not match."""
    asked = wanted if isinstance(wanted, Shape) else Shape(sizes=wanted)

    def prepared(body: Body) -> Test:
        shapes = Shapes(Wiring(body))
        return Test(
            lambda node: shape_holds(shape_of(shapes, node), asked),
            lambda node: f"shape is {sizes_in_words(shape_of(shapes, node))}",
        )

    return prepared


def shape_of(shapes: Shapes, node: Node) -> Sizes:
    """Return the sizes of output 0, as far as they are known."""
    return shapes.if_known((node.index, 0)) if node.outputs else None


def shape_holds(sizes: Sizes, wanted: Shape, unknown: bool = False) -> bool:
    """Return whether a shape is what is asked for; `unknown` is said of what is not known of it."""
    if sizes is None:
        return unknown
    if wanted.sizes is not None and len(wanted.sizes) != len(sizes):
        return False
    known = [size for size in sizes if size is not None]
    count = math.prod(known) if len(known) == len(sizes) else None
    pairs: list[tuple[int | None, int | Compared | None]] = [
        (len(sizes), wanted.rank),
        (count, wanted.elements),
        *zip(sizes, wanted.sizes or [None] * len(sizes), strict=True),
    ]
    return all(
        asked in (None, -1) or (unknown if size is None else _size_is(size, asked))
        for size, asked in pairs
    )


def undecided(
    body: Body, nodes: Iterable[Node], wanted: Shape | tuple[Any, ...]
) -> Iterator[tuple[Node, Sizes]]:
    """Yield those of these ops that may have such a shape or not, each with what is known of it."""
    asked = wanted if isinstance(wanted, Shape) else Shape(sizes=wanted)
    shapes = Shapes(Wiring(body))
    for node in nodes:
        sizes = shape_of(shapes, node)
        if shape_holds(sizes, asked, unknown=True) and not shape_holds(sizes, asked):
            yield node, sizes


def _size_is(size: int, wanted: int | Compared | None) -> bool:
    return meets(size, wanted) if isinstance(wanted, Compared) else size == wanted
