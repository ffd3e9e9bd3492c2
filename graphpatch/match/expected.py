"""What is legal in a match, for messages: the keys of its objects, and how a value is written."""

from __future__ import annotations

from typing import Any

from graphpatch.match.spec import (
    Between,
    Inside,
    Link,
    Near,
    Nth,
    OneOf,
    Pattern,
    Shape,
    Walk,
)

OBJECTS: dict[str, type[Any]] = {
    "attr": OneOf,
    "between": Between,
    "downstream_of": Walk,
    "edges": Link,
    "inside": Inside,
    "nth": Nth,
    "pattern": Pattern,
    "shape": Shape,
    "upstream_of": Walk,
    "value": Near,
}
"""By key the object that it may have; of the others it is a match."""

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
