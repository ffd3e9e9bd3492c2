"""Forward: bit by bit the same, for every output that both have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphpatch.runtime.values import Values
from graphpatch.runtime.verify.answers import Runs


@dataclass
class Forward:
    """What was compared. `differing` and `uncompared` have the reason for each tensor.

    `fused`: tensors that differ only where TensorFlow optimises the graphs, as by fusing ops.
    `values` are those of the original.
    """

    compared: list[str] = field(default_factory=list)
    differing: dict[str, str] = field(default_factory=dict)
    uncompared: dict[str, str] = field(default_factory=dict)
    fused: dict[str, str] = field(default_factory=dict)
    values: Values = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The comparison as `verify --json` prints it."""
        return {
            "compared": self.compared,
            "differing": self.differing,
            "optimised_differing": self.fused,
            "not_compared": self.uncompared,
        }


def forward(one: Runs, other: Runs, tensors: Sequence[str]) -> Forward:
    """Run both, op by op and as TensorFlow optimises them, and compare these tensors."""
    found = Forward()
    before = _compare(one, other, tensors, False, found.differing, found.uncompared)
    found.values = before
    found.compared = [name for name in before if name not in found.uncompared]
    sound = [name for name in found.compared if name not in found.differing]
    _compare(one, other, sound, True, found.fused, {})
    return found


def _compare(
    one: Runs,
    other: Runs,
    tensors: Sequence[str],
    optimise: bool,
    differing: dict[str, str],
    uncompared: dict[str, str],
) -> dict[str, Any]:
    """The values of the original, and what differs from them."""
    before, reasons = one.run(tensors, optimise)
    uncompared |= reasons
    after, failed = other.run(list(before), optimise)
    unlike = [name for name in before if name not in after or not same(before[name], after[name])]
    again, _ = one.run(list(before), optimise) if unlike else ({}, {})
    for name in unlike:
        if name not in again or not same(before[name], again[name]):
            uncompared[name] = "it differs from run to run in the original itself"
        elif name not in after:
            differing[name] = f"it fails in the patched model: {failed.get(name, 'no value')}"
        else:
            differing[name] = told(before[name], after[name])
    return before


def same(one: Any, other: Any) -> bool:
    """Bit by bit: NaNs by their payload, zeros by their sign."""
    one, other = np.asarray(one), np.asarray(other)
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.dtype == object:
        return bool(one.tolist() == other.tolist())
    return bool(one.tobytes() == other.tobytes())


def told(one: Any, other: Any) -> str:
    """How far two arrays are apart, in words."""
    one, other = np.asarray(one), np.asarray(other)
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"{one.dtype.name} {list(one.shape)} -> {other.dtype.name} {list(other.shape)}"
    if one.dtype == object or one.dtype == bool:
        return f"{int(np.sum(one != other))} of {one.size} elements differ"
    unlike = _bits(one) != _bits(other)
    largest, relative = distance(one, other)
    by = f"by at most {largest:.3g} ({relative:.3g} of the largest element)"
    return f"{int(unlike.sum())} of {one.size} elements differ, {by}"


def _bits(array: Any) -> Any:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, -1).view(f"V{flat.itemsize}").reshape(-1)


def distance(one: Any, other: Any) -> tuple[float, float]:
    """The largest difference of two arrays, and that as a part of the first's largest element."""
    if not one.size:
        return 0.0, 0.0
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        left, right = one.astype(wide), other.astype(wide)
        apart = np.where(left == right, 0, np.abs(left - right))
        apart = np.where(np.isnan(left) & np.isnan(right), 0, apart)
        largest, size = float(np.max(apart)), float(np.max(np.abs(left)))
        return largest, largest / size if size else float("inf") if largest else 0.0
