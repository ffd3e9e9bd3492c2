"""Whether two arrays are the same bits, and how far apart they are."""

from __future__ import annotations

from typing import Any

import numpy as np


def same_bits(left: Any, right: Any) -> bool:
    """Compare bit by bit: NaNs by their payload, zeros by their sign."""
    left, right = np.asarray(left), np.asarray(right)
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    if left.dtype == object:
        return bool(left.tolist() == right.tolist())
    return bool(left.tobytes() == right.tobytes())


def difference_in_words(left: Any, right: Any) -> str:
    """Say how far two arrays are apart."""
    left, right = np.asarray(left), np.asarray(right)
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return f"{left.dtype.name} {list(left.shape)} -> {right.dtype.name} {list(right.shape)}"
    if left.dtype == object or left.dtype == bool:
        return f"{int(np.sum(left != right))} of {left.size} elements differ"
    count = int((_bits(left) != _bits(right)).sum())
    return f"{count} of {left.size} elements differ, {size_in_words(*distance(left, right))}"


def size_in_words(largest: float, relative: float) -> str:
    """Say how large a difference is, as `distance` gives it."""
    if np.isinf(relative) and np.isfinite(largest):
        return f"by at most {largest:.3g}; it was 0 everywhere"
    return f"by at most {largest:.3g} ({relative:.3g} of the largest element)"


def _bits(array: Any) -> Any:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, -1).view(f"V{flat.itemsize}").reshape(-1)


def distance(left: Any, right: Any) -> tuple[float, float]:
    """Return the largest difference, and that as a part of the first array's largest element."""
    if not left.size:
        return 0.0, 0.0
    wide = np.complex128 if left.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        left, right = left.astype(wide), right.astype(wide)
        apart = np.where(left == right, 0, np.abs(left - right))
        apart = np.where(np.isnan(left) & np.isnan(right), 0, apart)
        largest, size = float(np.max(apart)), float(np.max(np.abs(left)))
        return largest, largest / size if size else float("inf") if largest else 0.0


def finite(number: float) -> float | str:
    """Return a number as JSON has it, which knows no infinity."""
    return number if np.isfinite(number) else str(number)
