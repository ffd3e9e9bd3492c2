"""What is legal in a rules file, for messages: the keys of objects, and how a value is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec


def objects(top: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """By key, the objects that may stand in this one and in those within it, however deep.

    Of a key that may have several, the first one.
    """
    found: dict[str, type[msgspec.Struct]] = {}
    todo, seen = [top], {top}
    while todo:
        for field in msgspec.structs.fields(todo.pop()):
            for one in _structs(field.type):
                if not one.__struct_config__.array_like:
                    found.setdefault(field.encode_name, one)
                if one not in seen:
                    seen.add(one)
                    todo.append(one)
    return found


def _structs(of: Any) -> Iterator[type[msgspec.Struct]]:
    """The objects in a type, those within lists last; of an edge, which is a list, its own."""
    level = [of]
    while level:
        for one in level:
            if isinstance(one, type) and issubclass(one, msgspec.Struct):
                yield one
                if one.__struct_config__.array_like:
                    for field in msgspec.structs.fields(one):
                        yield from _structs(field.type)
        level = [inner for one in level for inner in get_args(one)]


_WHICH = 'which of them, and what that must be: {"0": {"op": "Relu"}}, or "any", "all", "none"'
_LIST = 'a list of matches: [{"op": "Relu"}, {"name": "x"}]'
WRITTEN = {
    "inputs": _WHICH,
    "consumers": _WHICH,
    "any": _LIST,
    "all": _LIST,
    "not": 'a match: {"op": "Relu"}',
}
"""How a value is written, where the JSON type alone does not tell."""
