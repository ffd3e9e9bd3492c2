"""Objects of Python that hold tensors of a live graph, copied so as to hold those of another."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any

DEEPEST_OBJECT = 4  # an object in a collection, what it holds, and what that holds

OPAQUE = (str, bytes, int, float, bool, type, FunctionType, MethodType, ModuleType)

Counterpart = Callable[[Any], Any]


def copied(old: Any, counterpart: Counterpart, deepest: int = DEEPEST_OBJECT) -> Any:
    """The value with `counterpart` of all that it holds, or itself where it holds nothing of that.

    `counterpart` gives what stands for a value, and the value itself where nothing does. Objects
    are copied attribute by attribute; what a function has closed over cannot be seen.
    """
    found = counterpart(old)
    if found is not old or deepest == 0 or isinstance(old, OPAQUE):
        return found
    if isinstance(old, dict):
        return _changed(old, {key: copied(one, counterpart, deepest) for key, one in old.items()})
    if isinstance(old, list | tuple):
        parts = [copied(one, counterpart, deepest) for one in old]
        if all(one is other for one, other in zip(parts, old, strict=True)):
            return old
        return type(old)(*parts) if hasattr(old, "_fields") else type(old)(parts)
    return _object(old, counterpart, deepest)


def _object(old: Any, counterpart: Counterpart, deepest: int) -> Any:
    held = getattr(old, "__dict__", None)
    if not held:
        return old
    parts = _changed(held, {k: copied(v, counterpart, deepest - 1) for k, v in held.items()})
    if parts is held:
        return old
    new = copy.copy(old)
    new.__dict__.update(parts)
    return new


def _changed(old: dict[Any, Any], new: dict[Any, Any]) -> dict[Any, Any]:
    return old if all(new[key] is old[key] for key in old) else new
