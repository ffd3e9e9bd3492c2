"""`attr`: the attrs of an op are equal to a value, one of several, between bounds, or there."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
from msgspec import UNSET

from graphpatch.errors import did_you_mean
from graphpatch.graph import attrs
from graphpatch.graph.body import Node
from graphpatch.match import bounds
from graphpatch.match.bounds import Compared
from graphpatch.match.condition import Condition, on_ops
from graphpatch.match.described import described


class OneOf(Compared, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of several values of an attr, or a number between bounds."""

    values: Annotated[
        tuple[Any, ...] | msgspec.UnsetType,
        described("The attr has one of these values.", ["SAME", "VALID"]),
    ] = msgspec.field(default=UNSET, name="in")


def attr(wanted: dict[str, Any]) -> Condition:
    """Each of these attrs has this value, or one of these, or is there or not."""
    return on_ops(lambda node: all(attr_holds(node, key, one) for key, one in wanted.items()))


def attr_holds(node: Node, key: str, wanted: Any) -> bool:
    """Whether one attr of an op is what is asked for."""
    value, found = node.attr(key), attr_value_of(node, key)
    if isinstance(wanted, bool) and not isinstance(found, bool):
        return (value is not None) is wanted
    if not isinstance(wanted, OneOf):
        return _equal(found, wanted)
    if wanted.bounds and not bounds.meets(found, wanted):
        return False
    return wanted.values is UNSET or any(_equal(found, one) for one in wanted.values)


def attr_value_of(node: Node, key: str) -> Any:
    """The value of an attr; what TensorFlow takes where the NodeDef leaves it out."""
    value = node.attr(key)
    if value is not None:
        return attrs.as_json(value)
    known = {} if node.opdef is None else {one.name: one.default for one in node.opdef.attrs}
    return known.get(key)


def attrs_in_words(node: Node, wanted: dict[str, Any]) -> str:
    """What the attrs are that are not what is asked for, in words."""
    failed = [key for key, one in wanted.items() if not attr_holds(node, key, one)]
    return ", ".join(_value_in_words(node, key) for key in failed)


def _value_in_words(node: Node, key: str) -> str:
    found = attr_value_of(node, key)
    if found is None:
        return f"it has no attr {key!r}{did_you_mean(key, _known_attrs(node))}"
    return f"{key} is {found!r}" + ("" if node.attr(key) is not None else " (the default)")


def _known_attrs(node: Node) -> list[str]:
    """The attrs that an op has, or may leave out."""
    known = () if node.opdef is None else (one.name for one in node.opdef.attrs)
    return list(dict.fromkeys([*node.attr_names, *known]))


def _equal(found: Any, wanted: Any) -> bool:
    if isinstance(found, float) and isinstance(wanted, int | float):
        return math.isclose(found, wanted, rel_tol=1e-6)
    if isinstance(wanted, tuple):
        wanted, found = list(wanted), list(found) if isinstance(found, tuple) else found
    return type(found) is type(wanted) and bool(found == wanted)
