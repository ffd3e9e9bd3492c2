"""Whether two stretches of files hold the same, and where two constants differ in value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from graphpatch.graph.attrs import ConstTensor
from graphpatch.graph.wire import Piece, Span, piece_bytes, read_span

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

BLOCK = 1 << 20


def same_bytes(one: Piece, other: Piece) -> bool:
    """Whether two pieces are the same bytes; large ones are read block by block."""
    if isinstance(one, bytes) or isinstance(other, bytes):
        return piece_bytes(one) == piece_bytes(other)
    length = one.end - one.start
    if length != other.end - other.start:
        return False
    starts = range(0, length, BLOCK)
    return all(_block(one, at) == _block(other, at) for at in starts)


def _block(span: Span, at: int) -> bytes:
    """A block of a span, read and not mapped: mapped pages would count as memory."""
    start = span.start + at
    return read_span(Span(span.source, start, min(start + BLOCK, span.end)))


def describe_difference(one: ConstTensor, other: ConstTensor) -> str:
    """How two constants differ, in words; nothing where all elements are the same."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"{one.dtype}{list(one.shape)} -> {other.dtype}{list(other.shape)}"
    count, largest = 0, 0.0
    for left, right, length in _aligned(one, other):
        differ = _differ(left, right)
        found = int(differ.sum()) * (length if len(differ) == 1 else 1)
        if found and left.dtype != object:
            largest = max(largest, float(abs(left.astype("c16") - right.astype("c16")).max()))
        count += found
    by = f", by up to {largest:.7g}" if largest else ""
    return f"{count} of {one.size} elements{by}" if count else ""


def _differ(left: Array, right: Array) -> Array:
    import numpy as np

    found: Array = left != right
    if left.dtype.kind == "f":
        found = found & ~(np.isnan(left) & np.isnan(right)) | (
            np.signbit(left) != np.signbit(right)
        )
    return np.atleast_1d(found)


def _aligned(one: ConstTensor, other: ConstTensor) -> Iterator[tuple[Array, Array, int]]:
    """Elements of both, and how many; arrays of one element stand for all of them."""
    lefts, rights = one.pieces(), other.pieces()
    (left, m), (right, n) = next(lefts, (None, 0)), next(rights, (None, 0))
    while left is not None and right is not None:
        step = min(m, n)
        yield left[:step], right[:step], step
        left, m = (left[step:] if len(left) > 1 else left), m - step
        right, n = (right[step:] if len(right) > 1 else right), n - step
        if not m:
            left, m = next(lefts, (None, 0))
        if not n:
            right, n = next(rights, (None, 0))
