"""Lists and objects of a match with nothing in them: what each key needs instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from graphpatch.errors import RulesError
from graphpatch.match.attribute import OneOf
from graphpatch.match.classes import CLASSES
from graphpatch.match.inside import Inside
from graphpatch.match.nth import NTH, Nth
from graphpatch.match.spec import Between, Walk

EMPTY = "the list is empty, so it says nothing"
INSIDE = '"loop", "branch", or an object with one or more of loop, branch, when'
TENSOR = "a tensor's name, or a list of them"

# By key, what it takes where the key alone does not tell.
LEGAL = {"class": ", ".join(CLASSES), "nth": NTH, "inside": INSIDE}

# Those whose lists mean something without anything in them: a scalar's shape, no condition.
MAY_BE_EMPTY = ("value", "shape", "all", "pattern")


def refuse_empty(given: Mapping[str, Any]) -> None:
    """Raise RulesError where a key of a match, or a key in it, has an empty list or object."""
    for key, value in given.items():
        if value == () and key not in MAY_BE_EMPTY:
            legal = f"; legal: {LEGAL[key]}" if key in LEGAL else ""
            raise RulesError(
                f"{key}: the list is empty, so it says nothing; leave {key} out{legal}"
            )
        if value == {}:
            raise RulesError(f"{key}: it is empty, so it says nothing; leave {key} out")
    if given.get("inside") == Inside():
        raise RulesError(f"inside: it is empty, so it says nothing; expected {INSIDE}")
    for path, value, legal in _within(given):
        if value == ():
            raise RulesError(f"{path}: {EMPTY}; expected {legal}")


def _within(given: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """The lists in the objects of a match: the way to each, its value, and what it takes."""
    for key, one in given.items():
        if isinstance(one, Walk):
            yield f"{key}.of", one.of, TENSOR
        elif isinstance(one, Between):
            yield f"{key}.from", one.sources, TENSOR
            yield f"{key}.to", one.targets, TENSOR
        elif isinstance(one, Nth):
            yield f"{key}.at", one.at, NTH
        elif isinstance(one, Inside):
            for name in ("loop", "branch"):
                yield (
                    f"{key}.{name}",
                    getattr(one, name),
                    f"the name of a {name}, or a list of them",
                )
        elif key == "attr":
            for name, value in one.items():
                if isinstance(value, OneOf):
                    yield f"attr.{name}.in", value.values, "one or more values, in a list"
