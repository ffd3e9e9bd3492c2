"""The sets of values that models are fed: both signs, several scales, zeros, infinite and NaN."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

import numpy as np

from graphpatch.runtime.values import Values

SEEDED = "seeded"


def _every(third: int, value: float) -> Callable[[Any], Any]:
    """Put a value in place of every third element, from this one on."""

    def put(array: Any) -> Any:
        found = np.array(array)
        found.reshape(-1)[third::3] = value
        return found

    return put


def _infinite(array: Any) -> Any:
    return _every(1, -np.inf)(_every(0, np.inf)(array))


# Of floats; ints and booleans of seeded zeros and ones are swapped in the first of them.
SETS: dict[str, Callable[[Any], Any]] = {
    "negated": lambda array: -array,
    "zeros": np.zeros_like,
    "small": lambda array: array * np.asarray(1e-3, array.dtype),
    "large": lambda array: array * np.asarray(1e3, array.dtype),
    "huge": lambda array: array * np.asarray(np.finfo(np.float32).max / 16, array.dtype),
    "infinite": _infinite,
    "NaN": _every(0, np.nan),
}


def value_sets(seeded: Values, given: Container[str]) -> Iterator[tuple[str, Values]]:
    """Each set by its name, made of the seeded one; what the user gave stays as it is."""
    for name, change in SETS.items():
        found = {
            key: value if key in given else _changed(name, change, value)
            for key, value in seeded.items()
        }
        if any(found[key] is not value for key, value in seeded.items()):
            yield name, found


def _changed(name: str, change: Callable[[Any], Any], value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype.kind in "fc" or array.dtype.name == "bfloat16":
        with np.errstate(all="ignore"):
            return np.asarray(change(array)).astype(array.dtype)
    if name == "negated" and array.dtype.kind in "iub":
        return (1 - array.astype(np.int64)).astype(array.dtype)
    return value
