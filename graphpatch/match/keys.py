"""The keys of a match that ask an op by itself: a test, and what an op has instead, in words."""

from __future__ import annotations

import math
import operator
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from itertools import chain
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from graphpatch.control_flow.contexts import Branch, ControlFlow, control_flow, has_control_flow
from graphpatch.differentiation.bodies import OP_BY_OP, callers
from graphpatch.differentiation.shapes import Shapes, Sizes, sizes_in_words
from graphpatch.differentiation.wiring import Wiring
from graphpatch.errors import ModelError, RulesError, did_you_mean
from graphpatch.graph import attrs
from graphpatch.graph.attrs import constant
from graphpatch.graph.functions import called_functions
from graphpatch.graph.node import Body, Library, Node
from graphpatch.graph.op_types import ALL_VARIABLES, CASES, LOOPS
from graphpatch.match.spec import Compared, Inside, Near, OneOf, Shape
from graphpatch.names import QUOTED, one_of, op_of, regex_test, texts
from graphpatch.opdefs import DIFFERENTIABLE, DTYPE_NAMES
from graphpatch.shown import IN_MESSAGE


class Condition(NamedTuple):
    """Whether an op is meant; and what it has instead of what is asked for, in words.

    A condition holds as long as no body that it was asked of is edited.
    """

    holds: Callable[[Node], bool]
    instead: Callable[[Node], str]


per_body = lru_cache(maxsize=16)
"""Marks what a condition finds out about a body as a whole (a path), once for all of its ops."""


def of_text(fact: Callable[[Node], str], words: str) -> Callable[[Any], Condition]:
    """Return what makes a condition of texts: the fact of an op is one of them, or a glob's."""

    def condition(wanted: str | Sequence[str]) -> Condition:
        is_meant = one_of(texts(wanted))
        return Condition(lambda node: is_meant(fact(node)), lambda node: words.format(fact(node)))

    return condition


def refuse_unknown(wanted: str | Sequence[str], legal: Iterable[str], what: str) -> None:
    """Raise RulesError for a text that is none of those which are legal."""
    legal = list(dict.fromkeys(legal))
    for text in texts(wanted):
        if text not in legal:
            near = did_you_mean(text, legal) or f"; legal: {', '.join(legal)}"
            raise RulesError(what.format(repr(text)) + near)


def name_regex(wanted: str) -> Condition:
    """Return the condition that the regular expression matches the whole name."""
    try:
        is_meant = regex_test(wanted)
    except RulesError as error:
        text = f"name_regex {wanted[:QUOTED]!r} is not a regular expression: {error}"
        raise RulesError(text) from None
    return Condition(lambda node: is_meant(node.name), lambda node: f"name is {node.name!r}")


def dtype(wanted: str | Sequence[str]) -> Condition:
    """Return the condition that output 0 has one of these dtypes."""
    refuse_unknown(wanted, DTYPE_NAMES.values(), "dtype: {} is not a dtype of TensorFlow")

    def dtype_of(node: Node) -> str:
        return next((arg.dtype or "" for arg in node.outputs or ()), "") or "not known"

    return of_text(dtype_of, "dtype is {}")(wanted)


SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    **{">": operator.gt, "<": operator.lt, ">=": operator.ge},
    **{"<=": operator.le, "!=": operator.ne},
}


def meets(value: object, wanted: Compared) -> bool:
    """Return whether a number meets all bounds; of a list, whether all of some do."""
    if isinstance(value, list | tuple):
        return bool(value) and all(meets(element, wanted) for element in value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value != value:  # NaN cannot be compared
        return False
    return all(bool(SIGNS[sign](value, bound)) for sign, bound in wanted.bounds.items())


def attr(wanted: dict[str, Any]) -> Condition:
    """Return the condition that each attr has this value, or one of these, or is there or not."""

    def has(node: Node, key: str, wanted: Any) -> bool:
        actual = attr_value_of(node, key)
        if isinstance(wanted, bool) and not isinstance(actual, bool):
            return (node.attr(key) is not None) is wanted
        if not isinstance(wanted, OneOf):
            return _equal(actual, wanted)
        if wanted.bounds and not meets(actual, wanted):
            return False
        return wanted.values is UNSET or any(_equal(actual, legal) for legal in wanted.values)

    def in_words(node: Node, key: str) -> str:
        written, op = node.attr(key), node.opdef
        if written is None and (op is None or op.default(key) is None):
            declared = () if op is None else (attr.name for attr in op.attrs)
            legal = list(dict.fromkeys([*node.attr_names, *declared]))
            return f"it has no attr {key!r}{did_you_mean(key, legal)}"
        actual = attr_value_of(node, key)
        return f"{key} is {actual!r}" + ("" if written is not None else " (the default)")

    def failing(node: Node) -> list[str]:
        return [key for key, value in wanted.items() if not has(node, key, value)]

    return Condition(
        lambda node: not failing(node),
        lambda node: ", ".join(in_words(node, key) for key in failing(node)),
    )


def attr_value_of(node: Node, key: str) -> Any:
    """Return the value of an attr; what TensorFlow takes where the NodeDef leaves it out."""
    value = node.attr(key)
    if value is not None:
        return attrs.as_json(value)
    return None if node.opdef is None else node.opdef.defaults.get(key)


def _equal(actual: Any, wanted: Any) -> bool:
    if isinstance(actual, float) and isinstance(wanted, int | float):
        return math.isclose(actual, wanted, rel_tol=1e-6)
    if isinstance(wanted, tuple):
        wanted = list(wanted)
    return type(actual) is type(wanted) and bool(actual == wanted)


OP_CLASSES: dict[str, list[str]] = msgspec.json.decode(
    pkgutil.get_data("graphpatch", "data/op_classes.json") or b""
)
"""Op types by what they do. Each element of the output of an `elementwise` op, as of an activation,
is made of the same element of each input, or of one broadcast; `reshaped` keeps their order."""

ELEMENTWISE = frozenset(OP_CLASSES["activation"] + OP_CLASSES["elementwise"])

# Ops through which a parameter is led to where it is used; ops that hold or read a variable.
PASSED_ON = frozenset({*OP_CLASSES["reshaped"], "Transpose"})
PARAMETERS = frozenset({*ALL_VARIABLES, "ReadVariableOp"})


def has_weights(node: Node) -> bool:
    """Return whether an op computes with a variable, or a float constant of several elements.

    A few ops (Identity, Cast, Enter, ...) may pass it on, which have no weights themselves.
    """

    def is_weight(tensor: str) -> bool:
        producer, most = node.body.producer(tensor), 6
        while producer is not None and producer.op in PASSED_ON and producer.data_inputs and most:
            producer, most = node.body.producer(producer.data_inputs[0]), most - 1
        if producer is None or producer.op in PARAMETERS:
            return producer is not None
        weight = constant(producer)
        return weight is not None and weight.size > 1 and weight.dtype in DIFFERENTIABLE

    is_passed_on = node.op in PASSED_ON or node.op in PARAMETERS
    return not is_passed_on and any(map(is_weight, node.data_inputs))


CLASSES: dict[str, Callable[[Node], bool]] = {
    "activation": lambda node: node.op in OP_CLASSES["activation"],
    "convolution": lambda node: node.op in OP_CLASSES["convolution"],
    "elementwise": lambda node: node.op in ELEMENTWISE,
    "has_weights": has_weights,
    "pooling": lambda node: node.op in OP_CLASSES["pooling"],
}


def class_(wanted: str | Sequence[str]) -> Condition:
    """Return the condition that the op belongs to one of these classes."""
    refuse_unknown(wanted, CLASSES, "class: there is no class {}")

    def classes_in_words(node: Node) -> str:
        names = [name for name, test in CLASSES.items() if test(node)]
        return f"{node.op} is of {'class ' + ', '.join(names) if names else 'no class'}"

    return Condition(lambda node: any(CLASSES[c](node) for c in texts(wanted)), classes_in_words)


NOT_NUMBERS = {str: "string", bool: "bool"}  # a value's type, and the dtype of such tensors
COMPLEX = ("complex64", "complex128")
ROUNDING = ("float16", "float32", "float64", *COMPLEX)
# The dtypes that round, and numpy's type in which their elements are compared.
FLOAT_DTYPES = {**dict(zip(ROUNDING, ROUNDING, strict=True)), "bfloat16": "float32"}


def value(wanted: Any) -> Condition:
    """Return the condition that the op is a Const of this value.

    A number or text is meant of every element, whatever the shape; a list has the shape of the
    tensor. Numbers are rounded to its dtype, as TensorFlow does when it makes a constant; with
    `near`, they may be off by the tolerance besides. Bools are not numbers. An empty tensor equals
    an empty list alone. Of a large tensor no more is read than shows that it is another one.
    """
    near = wanted if isinstance(wanted, Near) else Near(near=wanted)
    tolerance, bounds = near.tolerance if near is wanted else None, near.bounds
    is_list = isinstance(near.near, tuple | list)
    shape, flat = ((), []) if near.near is UNSET else _flattened(near.near)
    kinds = {NOT_NUMBERS.get(type(element), "number") for element in (*flat, *bounds.values())}

    def holds(node: Node) -> bool:
        tensor = constant(node)
        if tensor is None or (tensor.shape != shape if is_list else not tensor.size):
            return False
        dtype, count = tensor.dtype, 0
        kind = dtype if dtype in NOT_NUMBERS.values() else "number"
        if kinds - {kind} or (bounds and dtype in COMPLEX):
            return False
        for piece, stands_for in tensor.pieces():
            elements = flat[count : count + stands_for] if is_list else flat
            for sign, bound in bounds.items():
                if not SIGNS[sign](piece, _rounded(dtype, [bound])).all():
                    return False
            if elements and not _is_equal(dtype, piece, elements, tolerance):
                return False
            count += stands_for
        return count == tensor.size

    def in_words(node: Node) -> str:
        tensor = constant(node)
        if tensor is None:
            return "value is unknown" if node.op == "Const" else f"it is a {node.op}, not a Const"
        first: list[object] = next((part[:IN_MESSAGE].tolist() for part, _ in tensor.pieces()), [])
        if tensor.size and not first:
            return "value is not known: elements of the constant are missing"
        words = [f"{number:.7g}" if isinstance(number, float) else str(number) for number in first]
        more = ", ..." if tensor.size > len(first) else ""
        return f"value is [{', '.join(words)}{more}]" if tensor.shape else f"value is {words[0]}"

    return Condition(holds, in_words)


def _flattened(wanted: Any) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape of nested lists, and their elements; RulesError where they are uneven."""
    import numpy as np

    array = np.array(wanted, np.object_)
    flat = array.ravel().tolist()
    for element in flat:
        if isinstance(element, tuple | list):
            raise RulesError(f"value: the lists in {list(wanted)!r} are of unequal length")
        if not isinstance(element, bool | int | float | str):
            expected = "a number, a text or a list of these"
            raise RulesError(f"value: expected {expected}, found {element!r}")
        if isinstance(element, int) and abs(element) > sys.float_info.max:
            raise RulesError("value: an integer is larger than any number that a tensor holds")
    return array.shape, flat


def _rounded(dtype: str, wanted: Sequence[Any]) -> Any:
    """Return the values as a tensor of this dtype would hold them; those out of its range stay."""
    import numpy as np

    if dtype == "string":
        return np.array([text.encode() for text in wanted], np.object_)
    if dtype not in FLOAT_DTYPES:
        return np.array(wanted)
    wide = np.array(wanted, np.complex128 if dtype in COMPLEX else np.float64)
    rounded = wide.astype(FLOAT_DTYPES[dtype])
    if dtype == "bfloat16":
        # To the nearest float32 of which the lower half is 0, to the even one of two.
        bits = rounded.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).view(np.float32)
    return np.where(np.isfinite(rounded) | ~np.isfinite(wide), rounded, wide)


def _is_equal(dtype: str, piece: Any, wanted: Sequence[Any], tolerance: float | None) -> bool:
    """Return whether all elements are the wanted ones, or near them; NaN equals NaN."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        expected = _rounded(dtype, wanted)
        same = piece == expected
        if dtype in FLOAT_DTYPES:
            same = same | (np.isnan(piece) & np.isnan(expected))
        if tolerance is not None and dtype not in NOT_NUMBERS.values():
            wide = piece.astype(np.complex128 if dtype in COMPLEX else np.float64)
            same = same | (np.abs(wide - np.array(wanted)) <= tolerance)
    return bool(np.all(same))


def shape(wanted: Shape | tuple[Any, ...]) -> Condition:
    """Return the condition that output 0 has such a shape; what is not known to have it has not."""
    test = shape_test(wanted)
    return Condition(
        lambda node: test(node)[1] is True, lambda node: f"shape is {sizes_in_words(test(node)[0])}"
    )


def shape_test(wanted: Shape | tuple[Any, ...]) -> Callable[[Node], tuple[Sizes, bool | None]]:
    """Return what tells of an op its shape, and whether it is such a one: None is not known."""
    asked = wanted if isinstance(wanted, Shape) else Shape(sizes=wanted)

    @per_body
    def shapes(body: Body) -> Shapes:
        return Shapes(Wiring(body))

    def test(node: Node) -> tuple[Sizes, bool | None]:
        sizes = shapes(node.body).of((node.index, 0)) if node.outputs else None
        if sizes is None:
            return sizes, None
        if asked.sizes is not None and len(asked.sizes) != len(sizes):
            return sizes, False
        known = [size for size in sizes if size is not None]
        count = math.prod(known) if len(known) == len(sizes) else None
        pairs = [(len(sizes), asked.rank), (count, asked.elements)]
        pairs += zip(sizes, asked.sizes or (), strict=asked.sizes is not None)
        answers = [
            size if size is None else meets(size, of) if isinstance(of, Compared) else size == of
            for size, of in pairs
            if of not in (None, -1)
        ]
        return sizes, False if False in answers else None if None in answers else True

    return test


class EnclosingContext(NamedTuple):
    """A loop or branch that an op is in: its names; of a branch `number`, which one it is."""

    kind: str
    names: tuple[str, ...]
    number: int | None = None

    def __str__(self) -> str:
        number = "" if self.number is None else f" {self.number} of"
        return f"{self.kind}{number} {self.names[-1]!r}"


def inside(wanted: str | Inside) -> Condition:
    """Return the condition that the op is in some loop, some branch, or in those of these names.

    A v1 loop is called by its frame or the scope of its LoopCond (`rnn/while`), a v1 branch by its
    predicate or the scope of that (`cond`), those of v2 by their While, If or Case.
    """
    asked = wanted if isinstance(wanted, Inside) else replace(Inside(), **{wanted: "**"})
    when, any_branch = asked.when, None if asked.when is None else "**"
    named = {"loop": asked.loop, "branch": asked.branch or any_branch}
    globs = {kind: one_of(texts(names)) for kind, names in named.items() if names is not None}

    @cache
    def flow_in(body: Body) -> ControlFlow | None:
        with suppress(ModelError):  # the contexts are none that TensorFlow could tell of
            return control_flow(body) if has_control_flow(body) else None
        return None

    @cache
    def calls(library: Library) -> Mapping[str, Sequence[Node]]:
        graph = library.graph()
        return callers(() if graph is None else graph.bodies)

    def around_op(node: Node) -> Iterator[EnclosingContext]:
        """Yield the v1 loops and branches around an op, from the inner one on."""
        body, flow = node.body, flow_in(node.body)
        context = None if flow is None else flow.context(node.index)
        while context is not None:
            context = context.current
            if isinstance(context, Branch):
                pred = op_of(context.cond.current.pred)
                yield EnclosingContext("branch", (pred, _scope(pred)), context.number)
            else:
                decides = [_scope(body.heads.names[index]) for index in context.conditions[:1]]
                yield EnclosingContext("loop", (context.name, *decides))
            context = context.outer

    @per_body
    def around_body(body: Body) -> list[EnclosingContext]:
        """Return the loops and branches in which a function is called, by whatever way."""
        contexts, todo = list[EnclosingContext](), [] if body.is_main else [body.label]
        for label in todo:
            for call in calls(body.library).get(label, ()):
                if call.op in LOOPS:
                    contexts.append(EnclosingContext("loop", (call.name,)))
                for place, name in enumerate(called_functions(call)):
                    if name == label and call.op in OP_BY_OP and call.op not in LOOPS:
                        # An If names the branch for true first; a Case counts them from 0.
                        number = place if call.op in CASES else 1 - place
                        contexts.append(EnclosingContext("branch", (call.name,), number))
                contexts += around_op(call)
                if not call.body.is_main and call.body.label not in todo:
                    todo.append(call.body.label)
        return contexts

    def every(node: Node) -> Iterator[EnclosingContext]:
        return chain(around_op(node), around_body(node.body))

    def is_meant(kind: str, around: EnclosingContext) -> bool:
        if around.kind != kind or not any(map(globs[kind], around.names)):
            return False
        return when is None or around.number is None or around.number == int(when)

    return Condition(
        lambda node: all(any(is_meant(kind, around) for around in every(node)) for kind in globs),
        lambda node: f"it is in {', '.join(map(str, every(node))) or 'no loop or branch'}",
    )


def _scope(name: str) -> str:
    return name.rpartition("/")[0] or name


OP_KEYS: dict[str, Callable[[Any], Condition]] = {
    "op": of_text(lambda node: node.op, "it is a {}"),
    "name": of_text(lambda node: node.name, "name is {!r}"),
    "name_regex": name_regex,
    "class": class_,
    "attr": attr,
    "dtype": dtype,
    "shape": shape,
    "value": value,
    "inside": inside,
}
"""In the order in which they are tried: cheap ones first."""
