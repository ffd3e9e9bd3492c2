"""What one op must be: each key of a match is one condition, a line of the table below."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from graphpatch.errors import RulesError
from graphpatch.graph import attrs
from graphpatch.graph.body import Node
from graphpatch.match import glob
from graphpatch.match.spec import Match, OneOf, texts

Condition = Callable[[Node], bool]


def op_type(value: str | Sequence[str]) -> Condition:
    """The op type is one of these, which may be globs."""
    patterns = [glob.compiled(text) for text in texts(value)]
    return lambda node: any(pattern.fullmatch(node.op) for pattern in patterns)


def name(value: str | Sequence[str]) -> Condition:
    """The op's name is one of these, which may be globs."""
    patterns = [glob.compiled(text) for text in texts(value)]
    return lambda node: any(pattern.fullmatch(node.name) for pattern in patterns)


def name_regex(value: str) -> Condition:
    """The regular expression matches the whole name."""
    try:
        pattern = re.compile(value)
    except re.error as error:
        raise RulesError(f"name_regex {value!r} is no regular expression: {error}") from None
    return lambda node: pattern.fullmatch(node.name) is not None


def attr(value: dict[str, Any]) -> Condition:
    """Each of these attrs has this value, or one of these, or is there or not."""
    return lambda node: all(_attr_holds(node, key, wanted) for key, wanted in value.items())


def dtype(value: str | Sequence[str]) -> Condition:
    """Output 0 has one of these dtypes."""
    wanted = set(texts(value))
    return lambda node: any(arg.dtype in wanted for arg in (node.outputs or [])[:1])


def body(value: str | Sequence[str]) -> Condition:
    """The op is in one of these bodies: `main`, or functions by name or glob."""
    patterns = [glob.compiled(text) for text in texts(value)]
    return lambda node: any(pattern.fullmatch(node.body.label) for pattern in patterns)


def any_of(value: Sequence[Match]) -> Condition:
    """At least one of these matches holds."""
    found = [holds(match) for match in value]
    return lambda node: any(condition(node) for condition in found)


def all_of(value: Sequence[Match]) -> Condition:
    """Each of these matches holds."""
    found = [holds(match) for match in value]
    return lambda node: all(condition(node) for condition in found)


def none_of(value: Match) -> Condition:
    """This match does not hold."""
    condition = holds(value)
    return lambda node: not condition(node)


# In the order in which they are tried: cheap ones first.
KEYS: dict[str, Callable[[Any], Condition]] = {
    "body": body,
    "op": op_type,
    "name": name,
    "name_regex": name_regex,
    "any": any_of,
    "all": all_of,
    "not": none_of,
    "attr": attr,
    "dtype": dtype,
}


def conditions(match: Match) -> dict[str, Condition]:
    """The conditions of a match by their keys, in the order in which they are tried."""
    given = match.given()
    return {key: build(given[key]) for key, build in KEYS.items() if key in given}


def holds(match: Match) -> Condition:
    """All conditions of a match as one."""
    found = list(conditions(match).values())
    return lambda node: all(condition(node) for condition in found)


def _attr_holds(node: Node, key: str, wanted: Any) -> bool:
    value = node.attr(key)
    found = attrs.plain(value) if value is not None else _default(node, key)
    if isinstance(wanted, bool) and not isinstance(found, bool):
        return (value is not None) is wanted
    if isinstance(wanted, OneOf):
        return any(_equal(found, one) for one in wanted.values)
    return _equal(found, wanted)


def _default(node: Node, key: str) -> Any:
    """What TensorFlow takes for an attr that the NodeDef leaves out."""
    known = {} if node.opdef is None else {one.name: one.default for one in node.opdef.attrs}
    return known.get(key)


def _equal(found: Any, wanted: Any) -> bool:
    if isinstance(found, float) and isinstance(wanted, int | float):
        return math.isclose(found, wanted, rel_tol=1e-6)
    if isinstance(wanted, tuple):
        wanted, found = list(wanted), list(found) if isinstance(found, tuple) else found
    return type(found) is type(wanted) and bool(found == wanted)
