"""The collections of a live graph, and what Python keeps in them, carried over to its copy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any

from graphpatch.control_flow.stored import CONTEXTS
from graphpatch.runtime.live.counterparts import Counterparts, is_of_graph

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
        return _replaced_items(
            old, {key: copied(one, counterpart, deepest) for key, one in old.items()}
        )
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
    parts = _replaced_items(held, {k: copied(v, counterpart, deepest - 1) for k, v in held.items()})
    if parts is held:
        return old
    new = copy.copy(old)
    new.__dict__.update(parts)
    return new


def _replaced_items(old: dict[Any, Any], new: dict[Any, Any]) -> dict[Any, Any]:
    return old if all(new[key] is old[key] for key in old) else new


# Where tf.compat.v1.get_variable finds variables, and which scopes are open.
STORE, SCOPES = ("__variable_store",), ("__varscope",)


def carry_collections(counterparts: Counterparts) -> list[str]:
    """Put into the new graph what stands for each item of the old one's collections.

    Contexts of v1 loops and branches are there already: they came with the graph. Returns notes
    on what cannot be carried over.
    """
    notes = []
    for key in counterparts.old.get_all_collection_keys():
        if key in CONTEXTS:
            continue
        items = [_item(one, key, counterparts) for one in counterparts.old.get_collection(key)]
        found = counterparts.new.get_collection_ref(key)
        found[:] = [item for item, _ in items]
        notes += [note for _, note in items if note]
    _carry_variable_scopes(counterparts)
    return list(dict.fromkeys(notes))


def _item(old: Any, key: str, counterparts: Counterparts) -> tuple[Any, str]:
    """What stands for an item, and a note on it."""
    if is_of_graph(old):
        return counterparts.of(old), ""
    new = copied(old, counterparts.of_any)
    if new is old or isinstance(old, list | tuple | dict):
        return new, ""  # a number, a text, a function: of no graph
    return new, (
        f"collection {key!r}: a {type(old).__name__} was copied, with the tensors, operations and "
        f"variables that its attributes hold"
    )


def _carry_variable_scopes(counterparts: Counterparts) -> None:
    """Let get_variable find the variables, and number scopes on from where the old graph was."""
    for store in counterparts.old.get_collection(STORE):
        new = type(store)()
        for name in ("_vars", "_partitioned_vars"):
            setattr(new, name, copied(getattr(store, name), counterparts.of_any))
        counterparts.new.get_collection_ref(STORE)[:] = [new]
    for scopes in counterparts.old.get_collection(SCOPES):
        new = type(scopes)()
        new.variable_scopes_count = copy.copy(scopes.variable_scopes_count)
        counterparts.new.get_collection_ref(SCOPES)[:] = [new]
