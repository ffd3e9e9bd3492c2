"""What an op must be: each key of a match is one condition, a line of the table below."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from graphpatch.dtypes import DTYPE_NAMES
from graphpatch.errors import RulesError, did_you_mean
from graphpatch.graph.body import Body, Node
from graphpatch.match import (
    added,
    attribute,
    classes,
    glob,
    inside,
    neighbours,
    nth,
    paths,
    regex,
    shape,
    taken,
    value,
)
from graphpatch.match.condition import Condition, Test, both, on_ops
from graphpatch.match.empty import refuse_empty
from graphpatch.match.glob import texts
from graphpatch.match.spec import Between, Match, Pattern, Walk


def op_type(wanted: str | Sequence[str]) -> Condition:
    """The op type is one of these, which may be globs."""
    is_one = glob.one_of(texts(wanted))
    return on_ops(lambda node: is_one(node.op))


def _op_type_of(node: Node, wanted: object) -> str:
    return f"it is a {node.op}"


def name(wanted: str | Sequence[str]) -> Condition:
    """The op's name is one of these, which may be globs."""
    is_one = glob.one_of(texts(wanted))
    return on_ops(lambda node: is_one(node.name))


def _name_of(node: Node, wanted: object) -> str:
    return f"name is {node.name!r}"


def name_regex(wanted: str) -> Condition:
    """The regular expression matches the whole name."""
    try:
        meant = regex.whole(wanted)
    except RulesError as error:
        shown = wanted[: glob.QUOTED]
        raise RulesError(f"name_regex {shown!r} is not a regular expression: {error}") from None
    return on_ops(lambda node: meant(node.name))


def dtype(wanted: str | Sequence[str]) -> Condition:
    """Output 0 has one of these dtypes."""
    dtypes, legal = set(texts(wanted)), list(dict.fromkeys(DTYPE_NAMES.values()))
    for text in texts(wanted):
        if text not in legal:
            near = did_you_mean(text, legal) or f"; legal: {', '.join(legal)}"
            raise RulesError(f"dtype: {text!r} is not a dtype of TensorFlow{near}")
    return on_ops(lambda node: any(arg.dtype in dtypes for arg in (node.outputs or [])[:1]))


def _dtype_of(node: Node, wanted: object) -> str:
    dtypes = [arg.dtype or "not known" for arg in (node.outputs or [])[:1]]
    return f"dtype is {', '.join(dtypes) or 'not known'}"


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


def all_of(wanted: Sequence[Match]) -> Condition:
    """Each of these matches holds."""
    return both([holds(match) for match in wanted])


def none_of(wanted: Match) -> Condition:
    """This match does not hold."""
    condition = holds(wanted)

    def prepared(body: Body) -> Test:
        test = condition(body)
        return lambda node: not test(node)

    return prepared


def pattern(wanted: str | Pattern | Sequence[str | Pattern]) -> Condition:
    """The op is the last one of such a pattern, the one that no other of it reads."""
    from graphpatch.match.forms import forms
    from graphpatch.match.pattern.search import Finder

    finders = [Finder(form, conditions) for form in forms(wanted)]

    def prepared(body: Body) -> Test:
        every = (one for finder in finders for one in finder.matches(body))
        last = {one.last for one in every}
        return lambda node: node.index in last

    return prepared


def inputs(wanted: Mapping[str, Match], control: bool) -> Condition:
    """What gives the inputs of the op meets these matches."""
    return neighbours.inputs({which: holds(match) for which, match in wanted.items()}, control)


def consumers(wanted: Mapping[str, Match], control: bool) -> Condition:
    """What reads the op meets these matches."""
    return neighbours.consumers({which: holds(match) for which, match in wanted.items()}, control)


def upstream_of(wanted: str | Sequence[str] | Walk, control: bool) -> Condition:
    """One of these tensors is computed from the op."""
    return paths.upstream_of(wanted, control, holds)


def downstream_of(wanted: str | Sequence[str] | Walk, control: bool) -> Condition:
    """The op is computed from one of these tensors."""
    return paths.downstream_of(wanted, control, holds)


def between(wanted: Between, control: bool) -> Condition:
    """The op is on a path between these tensors."""
    return paths.between(wanted, control, holds)


class Key(NamedTuple):
    """How the condition of a key is made of its value, and what an op has instead, in words.

    Of a key that has matches in it `graphpatch.match.in_words` has the words.
    """

    condition: Callable[..., Condition]
    in_words: Callable[[Node, Any], str] | None = None


# In the order in which they are tried: cheap ones first.
KEYS: dict[str, Key] = {
    "body": Key(body, _body_of),
    "op": Key(op_type, _op_type_of),
    "name": Key(name, _name_of),
    "name_regex": Key(name_regex, _name_of),
    "any": Key(any_of),
    "all": Key(all_of),
    "not": Key(none_of),
    "upstream_of": Key(upstream_of),
    "downstream_of": Key(downstream_of),
    "between": Key(between),
    "pattern": Key(pattern),
    "class": Key(classes.class_, classes.in_words),
    "taken": Key(taken.taken, taken.in_words),
    "inside": Key(inside.inside, inside.in_words),
    "attr": Key(attribute.attr, attribute.in_words),
    "dtype": Key(dtype, _dtype_of),
    "shape": Key(shape.shape, shape.in_words),
    "inputs": Key(inputs),
    "consumers": Key(consumers),
    "value": Key(value.value, value.in_words),
    "nth": Key(nth.nth),
}

# Those that follow edges, and take `control` besides.
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
    found = {key: _built(key, given[key], match) for key in KEYS if key in given}
    own = added.of_the_model(match)
    return found if own is None else {**found, added.ADDED_KEY: own}


def holds(match: Match) -> Condition:
    """All conditions of a match as one."""
    return both(list(conditions(match).values()))


def _built(key: str, wanted: Any, match: Match) -> Condition:
    if key == "nth":  # of those that all other keys mean
        return nth.nth(wanted, holds(replace(match, nth=None)))
    made = KEYS[key].condition
    return made(wanted, match.control) if key in ON_EDGES else made(wanted)
