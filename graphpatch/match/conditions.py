"""What an op must be: each key of a match is one condition, a line of the table below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from graphpatch.errors import RulesError
from graphpatch.graph.body import Body, Node
from graphpatch.match import (
    added,
    glob,
    inside,
    neighbours,
    nth,
    op_classes,
    paths,
    shape,
    taken,
    value,
)
from graphpatch.match.attribute import OneOf
from graphpatch.match.condition import Condition, Test, both
from graphpatch.match.glob import texts
from graphpatch.match.inside import Inside
from graphpatch.match.keys import OP_KEYS, Key
from graphpatch.match.nth import NTH, Nth
from graphpatch.match.op_classes import CLASSES
from graphpatch.match.spec import Between, DependencySearch, Match, Pattern

EMPTY = "the list is empty, so it says nothing"
INSIDE = '"loop", "branch", or an object with one or more of loop, branch, when'
TENSOR = "a tensor's name, or a list of them"

# By key, what it takes where the key alone does not tell.
LEGAL = {"class": ", ".join(CLASSES), "nth": NTH, "inside": INSIDE}

# Those whose lists mean something without anything in them: a scalar's shape, no condition.
MAY_BE_EMPTY = ("value", "shape", "all", "pattern")


def refuse_empty(given: Mapping[str, Any]) -> None:
    """Raise RulesError where a key of a match, or a key in it, has an empty list or object."""
    for key, found in given.items():
        if found == () and key not in MAY_BE_EMPTY:
            legal = f"; legal: {LEGAL[key]}" if key in LEGAL else ""
            raise RulesError(
                f"{key}: the list is empty, so it says nothing; leave {key} out{legal}"
            )
        if found == {}:
            raise RulesError(f"{key}: it is empty, so it says nothing; leave {key} out")
    if given.get("inside") == Inside():
        raise RulesError(f"inside: it is empty, so it says nothing; expected {INSIDE}")
    for path, found, legal in _lists_inside(given):
        if found == ():
            raise RulesError(f"{path}: {EMPTY}; expected {legal}")


def _lists_inside(given: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """The lists in the objects of a match: the path to each, its value, and what it takes."""
    for key, one in given.items():
        if isinstance(one, DependencySearch):
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
            for name, found in one.items():
                if isinstance(found, OneOf):
                    yield f"attr.{name}.in", found.values, "one or more values, in a list"


def body(wanted: str | Sequence[str]) -> Condition:
    """The op is in one of these bodies: `main`, or functions by name or glob."""
    patterns = [glob.compiled(text) for text in texts(wanted)]

    def prepared(body: Body) -> Test:
        found = any(pattern(body.label) for pattern in patterns)
        return lambda node: found

    return prepared


def _body_of(node: Node, wanted: object) -> str:
    return f"it is in {node.body.label}"


def any_of(wanted: Sequence[Match]) -> Condition:
    """At least one of these matches holds."""
    found = [holds(match) for match in wanted]

    def prepared(body: Body) -> Test:
        tests = [condition(body) for condition in found]
        return lambda node: any(test(node) for test in tests)

    return prepared


def none_of(wanted: Match) -> Condition:
    """This match does not hold."""
    condition = holds(wanted)

    def prepared(body: Body) -> Test:
        test = condition(body)
        return lambda node: not test(node)

    return prepared


def pattern(wanted: str | Pattern | Sequence[str | Pattern]) -> Condition:
    """The op is the last one of such a pattern, the one that no other of it reads."""
    from graphpatch.match.pattern.matcher import Finder
    from graphpatch.match.pattern_forms import forms

    finders = [Finder(form, conditions) for form in forms(wanted)]

    def prepared(body: Body) -> Test:
        every = (one for finder in finders for one in finder.matches(body))
        last = {one.last for one in every}
        return lambda node: node.index in last

    return prepared


# In the order in which they are tried: cheap ones first.
KEYS: dict[str, Key] = {
    "body": Key(body, _body_of),
    "op": OP_KEYS["op"],
    "name": OP_KEYS["name"],
    "name_regex": OP_KEYS["name_regex"],
    "any": Key(any_of),
    "all": Key(lambda wanted: both([holds(match) for match in wanted])),
    "not": Key(none_of),
    "upstream_of": Key(paths.upstream_of),
    "downstream_of": Key(paths.downstream_of),
    "between": Key(paths.between),
    "pattern": Key(pattern),
    "class": Key(op_classes.class_, op_classes.classes_in_words),
    "taken": Key(taken.taken, taken.takers_in_words),
    "inside": Key(inside.inside, inside.contexts_in_words),
    **OP_KEYS,  # the others of these
    "shape": Key(shape.shape, shape.shape_in_words),
    "inputs": Key(neighbours.inputs),
    "consumers": Key(neighbours.consumers),
    "value": Key(value.value, value.value_in_words),
    "nth": Key(nth.nth),
}

# Those that follow edges, and take `control` and `holds` besides.
ON_EDGES = ("inputs", "consumers", "between", "upstream_of", "downstream_of")


def conditions(match: Match) -> dict[str, Condition]:
    """The conditions of a match by their keys, in the order in which they are tried.

    One more says that the op is the model's (`added`), where the match does not ask for others.

    Raises RulesError where the value of a key means nothing.
    """
    given = match.given()
    refuse_empty(given)
    if match.control and not given.keys() & set(ON_EDGES):
        raise RulesError(f"control goes with {', '.join(ON_EDGES)}")
    found = {key: _condition_for(key, given[key], match) for key in KEYS if key in given}
    own = added.of_the_model(match)
    return found if own is None else {**found, added.ADDED_KEY: own}


def holds(match: Match) -> Condition:
    """All conditions of a match as one."""
    return both(list(conditions(match).values()))


def _condition_for(key: str, wanted: Any, match: Match) -> Condition:
    if key == "nth":  # of those that all other keys mean
        return nth.nth(wanted, holds(replace(match, nth=None)))
    made = KEYS[key].condition
    return made(wanted, match.control, holds) if key in ON_EDGES else made(wanted)
