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


def same_bytes(a: Piece, b: Piece) -> bool:
    """Return whether two pieces are the same bytes; large ones are read block by block."""
    if isinstance(a, bytes) or isinstance(b, bytes):
        return piece_bytes(a) == piece_bytes(b)
    length = a.end - a.start
    if length != b.end - b.start:
        return False
    starts = range(0, length, BLOCK)
    return all(_block(a, at) == _block(b, at) for at in starts)


def _block(span: Span, at: int) -> bytes:
    """Return a block of a span, read and not mapped: mapped pages would count as memory."""
    start = span.start + at
    return read_span(Span(span.source, start, min(start + BLOCK, span.end)))


def describe_difference(before: ConstTensor, after: ConstTensor) -> str:
    """Return how two constants differ, in words; nothing where all elements are the same."""
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        return f"{before.dtype}{list(before.shape)} -> {after.dtype}{list(after.shape)}"
    count, largest = 0, 0.0
    for old, new, length in _aligned(before, after):
        differ = _differ(old, new)
        unequal = int(differ.sum()) * (length if len(differ) == 1 else 1)
        if unequal and old.dtype != object:
            largest = max(largest, float(abs(old.astype("c16") - new.astype("c16")).max()))
        count += unequal
    by = f", by up to {largest:.7g}" if largest else ""
    return f"{count} of {before.size} elements{by}" if count else ""


def _differ(old: Array, new: Array) -> Array:
    import numpy as np

    unequal: Array = old != new
    if old.dtype.kind == "f":
        unequal = unequal & ~(np.isnan(old) & np.isnan(new)) | (np.signbit(old) != np.signbit(new))
    return np.atleast_1d(unequal)


def _aligned(before: ConstTensor, after: ConstTensor) -> Iterator[tuple[Array, Array, int]]:
    """Elements of both, and how many; arrays of one element stand for all of them."""
    lefts, rights = before.pieces(), after.pieces()
    (old, m), (new, n) = next(lefts, (None, 0)), next(rights, (None, 0))
    while old is not None and new is not None:
        step = min(m, n)
        yield old[:step], new[:step], step
        old, m = (old[step:] if len(old) > 1 else old), m - step
        new, n = (new[step:] if len(new) > 1 else new), n - step
        if not m:
            old, m = next(lefts, (None, 0))
        if not n:
            new, n = next(rights, (None, 0))
