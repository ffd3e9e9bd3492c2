"""Forward: bit by bit the same, for every output that both have, on each set of values."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from graphpatch.runtime.values import Values

SEEDED = "seeded"


def _every_third(third: int, value: float) -> Callable[[Any], Any]:
    """Put a value in place of every third element, from this one on."""

    def put(array: Any) -> Any:
        found = np.array(array)
        found.reshape(-1)[third::3] = value
        return found

    return put


def _infinite(array: Any) -> Any:
    return _every_third(1, -np.inf)(_every_third(0, np.inf)(array))


# Of floats; ints and booleans of seeded zeros and ones are swapped in the first of them.
SETS: dict[str, Callable[[Any], Any]] = {
    "negated": lambda array: -array,
    "zeros": np.zeros_like,
    "small": lambda array: array * np.asarray(1e-3, array.dtype),
    "large": lambda array: array * np.asarray(1e3, array.dtype),
    "huge": lambda array: array * np.asarray(np.finfo(np.float32).max / 16, array.dtype),
    "infinite": _infinite,
    "NaN": _every_third(0, np.nan),
}


def value_sets(seeded: Values, given: Container[str]) -> Iterator[tuple[str, Values]]:
    """Each set by its name, made of the seeded one; what the user gave stays as it is."""
    for name, change in SETS.items():
        found = {
            key: value if key in given else _changed_value(name, change, value)
            for key, value in seeded.items()
        }
        if any(found[key] is not value for key, value in seeded.items()):
            yield name, found


def _changed_value(name: str, change: Callable[[Any], Any], value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype.kind in "fc" or array.dtype.name == "bfloat16":
        with np.errstate(all="ignore"):
            return np.asarray(change(array)).astype(array.dtype)
    if name == "negated" and array.dtype.kind in "iub":
        return (1 - array.astype(np.int64)).astype(array.dtype)
    return value


class Runs(Protocol):
    """A model that gives values for its feeds."""

    def run(self, fetches: Sequence[str], optimise: bool) -> tuple[dict[str, Any], dict[str, str]]:
        """The values of those tensors that can be computed, and why the others cannot."""


@dataclass
class ComparedValues:
    """One set of values: what was compared on it, and the reason for each tensor that was not.

    `differing` has how far each differs. `values` are those of the original.
    """

    name: str
    compared: list[str] = field(default_factory=list)
    differing: dict[str, str] = field(default_factory=dict)
    uncompared: dict[str, str] = field(default_factory=dict)
    values: Values = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The set as `verify --json` prints it."""
        reasons = list(dict.fromkeys(self.uncompared.values()))
        return {
            "values": self.name,
            "compared": len(self.compared),
            "differing": self.differing,
            "not_compared": reasons,
        }


@dataclass
class ComparedForward:
    """What was compared: `first` on the seeded values, `others` on those made of them.

    `fused`: tensors that differ only where TensorFlow optimises the graphs, as by fusing ops.
    """

    first: ComparedValues = field(default_factory=lambda: ComparedValues(SEEDED))
    others: list[ComparedValues] = field(default_factory=list)
    fused: dict[str, str] = field(default_factory=dict)

    @property
    def sets(self) -> list[ComparedValues]:
        """All sets of values."""
        return [self.first, *self.others]

    @property
    def compared(self) -> list[str]:
        """What was compared on any of the sets."""
        return list(dict.fromkeys(name for one in self.sets for name in one.compared))

    @property
    def differing(self) -> dict[str, str]:
        """What differs on any of the sets, and how far on the first where it does."""
        found: dict[str, str] = {}
        for one in self.sets:
            for name, how in one.differing.items():
                found.setdefault(name, how if one is self.first else f"{how} ({one.name} values)")
        return found

    @property
    def uncompared(self) -> dict[str, str]:
        """What was compared on none of the sets, and why not on the first."""
        there = set(self.compared)
        return {name: why for name, why in self.first.uncompared.items() if name not in there}

    def document(self) -> dict[str, Any]:
        """The comparison as `verify --json` prints it."""
        return {
            "compared": self.compared,
            "differing": self.differing,
            "optimised_differing": self.fused,
            "not_compared": self.uncompared,
            "sets": [one.document() for one in self.sets],
        }


def compare_on_values(name: str, one: Runs, other: Runs, tensors: Sequence[str]) -> ComparedValues:
    """Run both op by op on what they are fed now, and compare these tensors."""
    found = ComparedValues(name)
    found.values = _compare(one, other, tensors, False, found.differing, found.uncompared)
    found.compared = [name for name in found.values if name not in found.uncompared]
    return found


def compare_optimised(one: Runs, other: Runs, tensors: Sequence[str]) -> dict[str, str]:
    """Those of these tensors that differ where TensorFlow optimises both, and how far."""
    found: dict[str, str] = {}
    _compare(one, other, tensors, True, found, {})
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
    unlike = [
        name for name in before if name not in after or not same_bits(before[name], after[name])
    ]
    again, _ = one.run(list(before), optimise) if unlike else ({}, {})
    for name in unlike:
        if name not in again or not same_bits(before[name], again[name]):
            uncompared[name] = "it differs from run to run in the original itself"
        elif name not in after:
            differing[name] = f"it fails in the patched model: {failed.get(name, 'no value')}"
        else:
            differing[name] = difference_in_words(before[name], after[name])
    return before


def same_bits(one: Any, other: Any) -> bool:
    """Bit by bit: NaNs by their payload, zeros by their sign."""
    one, other = np.asarray(one), np.asarray(other)
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.dtype == object:
        return bool(one.tolist() == other.tolist())
    return bool(one.tobytes() == other.tobytes())


def difference_in_words(one: Any, other: Any) -> str:
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
