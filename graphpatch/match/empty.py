"""Lists and objects of a match with nothing in them: what each key needs instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from graphpatch.errors import RulesError
from graphpatch.match.classes import CLASSES
from graphpatch.match.spec import Between, Inside, Nth, OneOf, Walk

EMPTY = "the list is empty, so it says nothing"
NTH = 'a number, "first", "last", a list of numbers, or a slice such as ":-1" (all but the last)'
INSIDE = '"loop", "branch", or an object with one or more of loop, branch, when'
TENSOR = "a tensor's name, or a list of them"

# By key, what it takes where the key alone does not tell.
LEGAL = {"class": ", ".join(CLASSES), "nth": NTH, "inside": INSIDE}

# Those whose lists have something in them.
LISTS = ("op", "name", "dtype", "body", "upstream_of", "downstream_of", "any", "taken", *LEGAL)

# Those whose objects have something in them.
OF_NAMES = ("attr", "inputs", "consumers")


def refuse_empty(given: Mapping[str, Any]) -> None:
    """Raise RulesError where a key of a match, or a key in it, has an empty list or object."""
    for key in LISTS:
        if given.get(key) == ():
            legal = f"; legal: {LEGAL[key]}" if key in LEGAL else ""
            raise RulesError(
                f"{key}: the list is empty, so it says nothing; leave {key} out{legal}"
            )
    for key in OF_NAMES:
        if given.get(key) == {}:
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
