"""Whether two arrays are the same bits, and how far apart they are."""

from __future__ import annotations

from typing import Any

import numpy as np


def same_bits(a: Any, b: Any) -> bool:
    """Compare bit by bit: NaNs by their payload, zeros by their sign."""
    a, b = np.asarray(a), np.asarray(b)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if a.dtype == object:
        return bool(a.tolist() == b.tolist())
    return bool(a.tobytes() == b.tobytes())


def difference_in_words(before: Any, after: Any) -> str:
    """Say how far two arrays are apart."""
    before, after = np.asarray(before), np.asarray(after)
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        return f"{before.dtype.name} {list(before.shape)} -> {after.dtype.name} {list(after.shape)}"
    if before.dtype == object or before.dtype == bool:
        return f"{int(np.sum(before != after))} of {before.size} elements differ"
    count = int((_bits(before) != _bits(after)).sum())
    return f"{count} of {before.size} elements differ, {size_in_words(*distance(before, after))}"


def size_in_words(largest: float, relative: float) -> str:
    """Say how large a difference is, as `distance` gives it."""
    if np.isinf(relative) and np.isfinite(largest):
        return f"by at most {largest:.3g}; it was 0 everywhere"
    return f"by at most {largest:.3g} ({relative:.3g} of the largest element)"


def _bits(array: Any) -> Any:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, -1).view(f"V{flat.itemsize}").reshape(-1)


def distance(before: Any, after: Any) -> tuple[float, float]:
    """Return the largest difference, and that as a part of the first array's largest element."""
    if not before.size:
        return 0.0, 0.0
    wide = np.complex128 if before.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        before, after = before.astype(wide), after.astype(wide)
        apart = np.where(before == after, 0, np.abs(before - after))
        apart = np.where(np.isnan(before) & np.isnan(after), 0, apart)
        largest, size = float(np.max(apart)), float(np.max(np.abs(before)))
        return largest, largest / size if size else float("inf") if largest else 0.0


def finite(number: float) -> float | str:
    """Return a number as JSON has it, which knows no infinity."""
    return number if np.isfinite(number) else str(number)
