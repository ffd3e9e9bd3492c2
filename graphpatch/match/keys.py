"""The keys of a match that ask an op by itself: a test, and what an op has instead, in words."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec import UNSET

from graphpatch.control_flow.op_types import ENTER, SWITCH
from graphpatch.dtypes import DIFFERENTIABLE, DTYPE_NAMES
from graphpatch.errors import RulesError, did_you_mean
from graphpatch.graph import attrs
from graphpatch.graph.attrs import constant
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import ALL_VARIABLES
from graphpatch.match import glob
from graphpatch.match.glob import texts
from graphpatch.match.spec import Compared, OneOf


class Test(NamedTuple):
    """Whether an op of a body is meant; and what it has instead of what is asked for, in words."""

    holds: Callable[[Node], bool]
    instead: Callable[[Node], str]


Condition = Callable[[Body], Test]
"""Makes the test for a body. What asks for the body as a whole (a path) is found out here, once;
a test holds as long as the body is not edited."""

EVERY_OP = Test(lambda node: True, str)
"""The test that each op passes: it need not be made."""


def on_ops(holds: Callable[[Node], bool], instead: Callable[[Node], str]) -> Condition:
    """Return a condition that looks at each op alone, whatever body it is in."""
    test = Test(holds, instead)
    return lambda body: test


def op_type(wanted: str | Sequence[str]) -> Condition:
    """Return the condition that the op type is one of these, which may be globs."""
    is_meant = glob.one_of(texts(wanted))
    return on_ops(lambda node: is_meant(node.op), lambda node: f"it is a {node.op}")


def name(wanted: str | Sequence[str]) -> Condition:
    """Return the condition that the op's name is one of these, which may be globs."""
    is_meant = glob.one_of(texts(wanted))
    return on_ops(lambda node: is_meant(node.name), lambda node: f"name is {node.name!r}")


def name_regex(wanted: str) -> Condition:
    """Return the condition that the regular expression matches the whole name."""
    try:
        is_meant = glob.whole(wanted)
    except RulesError as error:
        shown = wanted[: glob.QUOTED]
        raise RulesError(f"name_regex {shown!r} is not a regular expression: {error}") from None
    return on_ops(lambda node: is_meant(node.name), lambda node: f"name is {node.name!r}")


def dtype(wanted: str | Sequence[str]) -> Condition:
    """Return the condition that output 0 has one of these dtypes."""
    dtypes, legal = set(texts(wanted)), list(dict.fromkeys(DTYPE_NAMES.values()))
    for text in texts(wanted):
        if text not in legal:
            near = did_you_mean(text, legal) or f"; legal: {', '.join(legal)}"
            raise RulesError(f"dtype: {text!r} is not a dtype of TensorFlow{near}")

    def dtype_of(node: Node) -> str:
        return next((arg.dtype or "" for arg in node.outputs or ()), "")

    return on_ops(
        lambda node: dtype_of(node) in dtypes,
        lambda node: f"dtype is {dtype_of(node) or 'not known'}",
    )


SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
}


def is_number(value: object) -> bool:
    """Return whether a value is a number that can be compared: no bool, no NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def meets(value: object, wanted: Compared) -> bool:
    """Whether a number meets all bounds; of a list, whether it has some, and all of them do."""
    if isinstance(value, list | tuple):
        return bool(value) and all(meets(element, wanted) for element in value)
    return is_number(value) and all(
        bool(SIGNS[sign](value, bound)) for sign, bound in wanted.bounds.items()
    )


def attr(wanted: dict[str, Any]) -> Condition:
    """Return the condition that each attr has this value, or one of these, or is there or not."""

    def failing(node: Node) -> list[str]:
        return [key for key, value in wanted.items() if not _attr_holds(node, key, value)]

    return on_ops(
        lambda node: not failing(node),
        lambda node: ", ".join(_attr_in_words(node, key) for key in failing(node)),
    )


def _attr_holds(node: Node, key: str, wanted: Any) -> bool:
    """Return whether one attr of an op is what is asked for."""
    value, actual = node.attr(key), attr_value_of(node, key)
    if isinstance(wanted, bool) and not isinstance(actual, bool):
        return (value is not None) is wanted
    if not isinstance(wanted, OneOf):
        return _equal(actual, wanted)
    if wanted.bounds and not meets(actual, wanted):
        return False
    return wanted.values is UNSET or any(_equal(actual, legal) for legal in wanted.values)


def attr_value_of(node: Node, key: str) -> Any:
    """Return the value of an attr; what TensorFlow takes where the NodeDef leaves it out."""
    value = node.attr(key)
    if value is not None:
        return attrs.as_json(value)
    declared = () if node.opdef is None else node.opdef.attrs
    return next((attr.default for attr in declared if attr.name == key), None)


def _attr_in_words(node: Node, key: str) -> str:
    actual = attr_value_of(node, key)
    if actual is None:
        declared = () if node.opdef is None else (attr.name for attr in node.opdef.attrs)
        legal = list(dict.fromkeys([*node.attr_names, *declared]))
        return f"it has no attr {key!r}{did_you_mean(key, legal)}"
    return f"{key} is {actual!r}" + ("" if node.attr(key) is not None else " (the default)")


def _equal(actual: Any, wanted: Any) -> bool:
    if isinstance(actual, float) and isinstance(wanted, int | float):
        return math.isclose(actual, wanted, rel_tol=1e-6)
    if isinstance(wanted, tuple):
        wanted, actual = list(wanted), list(actual) if isinstance(actual, tuple) else actual
    return type(actual) is type(wanted) and bool(actual == wanted)


ACTIVATIONS = tuple("Relu Relu6 LeakyRelu Elu Selu Softplus Softsign Sigmoid Tanh".split())
"""Activations that are one op; what is made of several is found by the patterns `@swish`, ..."""

CONVOLUTIONS = tuple(
    "Conv2D Conv3D DepthwiseConv2dNative Conv2DBackpropInput Conv3DBackpropInput"
    " Conv3DBackpropInputV2".split()
)
"""Convolutions, depthwise and transposed ones too."""

POOLINGS = tuple(
    "MaxPool MaxPoolV2 MaxPool3D MaxPoolWithArgmax AvgPool AvgPool3D FractionalMaxPool"
    " FractionalAvgPool".split()
)

ELEMENTWISE = frozenset(ACTIVATIONS) | frozenset(
    "Abs Acos Acosh Add AddN AddV2 Asin Asinh Atan Atan2 Atanh Cast Ceil ClipByValue Cos Cosh"
    " Digamma Div DivNoNan Equal Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod Greater"
    " GreaterEqual Identity Igamma Igammac Inv Invert IsFinite IsInf IsNan Less LessEqual Lgamma"
    " Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Ndtri Neg NotEqual"
    " OnesLike Polygamma Pow RealDiv Reciprocal Rint Round Rsqrt Select SelectV2 Sign Sin Sinh"
    " Snapshot Sqrt Square SquaredDifference StopGradient Sub Tan TruncateDiv TruncateMod Xdivy"
    " Xlogy Xlog1py ZerosLike Zeta".split()
)
"""Each element of the output is made of the same element of each input, or of one broadcast."""

RESHAPED = ("Identity", ENTER, SWITCH, "Cast", "Reshape", "ExpandDims", "Squeeze")
"""Ops that give a parameter on with its elements in the same order."""

PASSED_ON = frozenset({*RESHAPED, "Transpose"})
"""Ops through which a parameter is led to where it is used."""

PARAMETERS = frozenset({*ALL_VARIABLES, "ReadVariableOp"})
"""Ops that hold or read a variable."""


def class_(wanted: str | Sequence[str]) -> Condition:
    """Return the condition that the op belongs to one of these classes."""
    for name in texts(wanted):
        if name not in CLASSES:
            near = did_you_mean(name, CLASSES) or f"; legal: {', '.join(CLASSES)}"
            raise RulesError(f"class: there is no class {name!r}{near}")
    tests = [CLASSES[name] for name in texts(wanted)]

    def classes_in_words(node: Node) -> str:
        names = [name for name, test in CLASSES.items() if test(node)]
        return f"{node.op} is of {'class ' + ', '.join(names) if names else 'no class'}"

    return on_ops(lambda node: any(test(node) for test in tests), classes_in_words)


def has_weights(node: Node) -> bool:
    """Whether an op computes with a parameter: a variable, or float constant of several elements.

    The parameter may be passed on by a few ops (Identity, Cast, Enter, ...), which have no weights
    themselves.
    """
    if node.op in PASSED_ON | PARAMETERS or not node.data_inputs:
        return False
    return any(_is_weight(node.body, text) for text in node.data_inputs)


def _is_weight(body: Body, tensor: str, most: int = 6) -> bool:
    node = body.producer(tensor)
    while node is not None and node.op in PASSED_ON and node.data_inputs and most:
        node, most = body.producer(node.data_inputs[0]), most - 1
    if node is None or node.op in PARAMETERS:
        return node is not None
    weight = constant(node)
    return weight is not None and weight.size > 1 and weight.dtype in DIFFERENTIABLE


CLASSES: dict[str, Callable[[Node], bool]] = {
    "activation": lambda node: node.op in ACTIVATIONS,
    "convolution": lambda node: node.op in CONVOLUTIONS,
    "elementwise": lambda node: node.op in ELEMENTWISE,
    "has_weights": has_weights,
    "pooling": lambda node: node.op in POOLINGS,
}

OP_KEYS: dict[str, Callable[[Any], Condition]] = {
    "op": op_type,
    "name": name,
    "name_regex": name_regex,
    "attr": attr,
    "dtype": dtype,
}
"""In the order in which they are tried: cheap ones first."""
