"""The keys of a match that ask an op by itself: field, condition, and what an op has instead."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta

from graphpatch.control_flow.op_types import ENTER, SWITCH
from graphpatch.dtypes import DIFFERENTIABLE, DTYPE_NAMES
from graphpatch.errors import RulesError, did_you_mean
from graphpatch.graph import attrs
from graphpatch.graph.attrs import constant
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import ALL_VARIABLES
from graphpatch.match import glob
from graphpatch.match.glob import Texts, texts


def described(text: str, example: Any, at_least: int | None = None) -> Meta:
    """What a key means, with a value that is legal there, and the least number where it is one."""
    return Meta(description=text, examples=[example], ge=at_least)


Test = Callable[[Node], bool]
"""Whether one op of the body that the test was made for is meant."""

Condition = Callable[[Body], Test]
"""Makes the test for a body. What asks for the body as a whole (a path) is found out here, once;
a test holds as long as the body is not edited."""


def everything(node: Node) -> bool:
    """Return the test that each op passes: it need not be made."""
    return True


def on_ops(test: Test) -> Condition:
    """Return a condition that looks at each op alone, whatever body it is in."""
    return lambda body: test


def combined(
    conditions: Sequence[Condition], quantifier: Callable[[Iterable[bool]], bool] = all
) -> Condition:
    """Return all of these conditions as one; or with `any` that one of them holds."""
    if len(conditions) == 1:
        return conditions[0]

    def prepared(body: Body) -> Test:
        tests = [condition(body) for condition in conditions]
        return lambda node: quantifier(test(node) for test in tests)

    return prepared


class Written(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """An object of a rules file: it has these keys and no others."""


Bound = int | float | msgspec.UnsetType


class Compared(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    rename={"above": ">", "below": "<", "least": ">=", "most": "<=", "other": "!="},
):
    """Bounds of a number, all of which must hold: `{">": 0, "<=": 1}`."""

    above: Annotated[Bound, described("Each number is above this one.", 0)] = UNSET
    below: Annotated[Bound, described("Each number is below this one.", 2)] = UNSET
    least: Annotated[Bound, described("Each number is at least this one.", 1)] = UNSET
    most: Annotated[Bound, described("Each number is at most this one.", 8)] = UNSET
    other: Annotated[Bound, described("Each number is not this one.", 0)] = UNSET

    def __post_init__(self) -> None:
        if not msgspec.to_builtins(self):
            raise ValueError(f"it is empty: give one of {', '.join(self.__struct_encode_fields__)}")

    @property
    def bounds(self) -> dict[str, int | float]:
        """Return the comparisons that are given, by their sign."""
        bounds = {sign: getattr(self, name) for sign, name in _BOUNDS.items()}
        return {sign: bound for sign, bound in bounds.items() if bound is not UNSET}


_BOUNDS = dict(zip(Compared.__struct_encode_fields__, Compared.__struct_fields__, strict=True))

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


class OneOf(Compared, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of several values of an attr, or a number between bounds."""

    values: Annotated[
        tuple[Any, ...] | msgspec.UnsetType,
        described("The attr has one of these values.", ["SAME", "VALID"]),
    ] = msgspec.field(default=UNSET, name="in")


def attr(wanted: dict[str, Any]) -> Condition:
    """Return each of these attrs has this value, or one of these, or is there or not."""
    return on_ops(
        lambda node: all(attr_holds(node, key, condition) for key, condition in wanted.items())
    )


def attr_holds(node: Node, key: str, wanted: Any) -> bool:
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
    known = (
        {}
        if node.opdef is None
        else {declared.name: declared.default for declared in node.opdef.attrs}
    )
    return known.get(key)


def attrs_in_words(node: Node, wanted: dict[str, Any]) -> str:
    """Return what the attrs are that are not what is asked for, in words."""
    failed = [key for key, condition in wanted.items() if not attr_holds(node, key, condition)]
    return ", ".join(_value_in_words(node, key) for key in failed)


def _value_in_words(node: Node, key: str) -> str:
    actual = attr_value_of(node, key)
    if actual is None:
        return f"it has no attr {key!r}{did_you_mean(key, _known_attrs(node))}"
    return f"{key} is {actual!r}" + ("" if node.attr(key) is not None else " (the default)")


def _known_attrs(node: Node) -> list[str]:
    """Return the attrs that an op has, or may leave out."""
    known = () if node.opdef is None else (declared.name for declared in node.opdef.attrs)
    return list(dict.fromkeys([*node.attr_names, *known]))


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

ELEMENTWISE = ACTIVATIONS + tuple(
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
    """Return the op belongs to one of these classes."""
    for name in texts(wanted):
        if name not in CLASSES:
            near = did_you_mean(name, CLASSES) or f"; legal: {', '.join(CLASSES)}"
            raise RulesError(f"class: there is no class {name!r}{near}")
    tests = [CLASSES[name] for name in texts(wanted)]
    return on_ops(lambda node: any(test(node) for test in tests))


def classes_in_words(node: Node, wanted: object) -> str:
    """Return the classes that an op belongs to, in words."""
    names = [name for name, test in CLASSES.items() if test(node)]
    return f"{node.op} is of class {', '.join(names)}" if names else f"{node.op} is of no class"


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


def _one_of(types: Sequence[str]) -> Callable[[Node], bool]:
    meant = frozenset(types)
    return lambda node: node.op in meant


CLASSES: dict[str, Callable[[Node], bool]] = {
    "activation": _one_of(ACTIVATIONS),
    "convolution": _one_of(CONVOLUTIONS),
    "elementwise": _one_of(ELEMENTWISE),
    "has_weights": has_weights,
    "pooling": _one_of(POOLINGS),
}


class OpKeys(Written, frozen=True, kw_only=True):
    """The fields of a Match that are told from each op by itself."""

    op: Annotated[
        Texts | None, described("The op type, or several, or a glob.", ["Relu", "*Relu*"])
    ] = None
    name: Annotated[
        Texts | None,
        described(
            "The op's name, or several, or a glob: `*` stays within one scope, `**` crosses `/`.",
            "resnet/**/conv*",
        ),
    ] = None
    name_regex: Annotated[
        str | None,
        described("A regular expression (RE2) that must match the whole name.", r"block\d+/relu"),
    ] = None
    attr: Annotated[
        dict[str, bool | int | float | str | tuple[Any, ...] | OneOf] | None,
        described(
            "Attrs by name: a value; one of several with `in`; true if there, false if not there.",
            {"T": "float32", "padding": {"in": ["SAME", "VALID"]}},
        ),
    ] = None
    dtype: Annotated[Texts | None, described("The dtype of output 0, or several.", "float32")] = (
        None
    )


class Key(NamedTuple):
    """How the condition of a key is made of its value, and what an op has instead, in words.

    Of a key that has matches in it `graphpatch.match.misses` has the words.
    """

    condition: Callable[..., Condition]
    in_words: Callable[[Node, Any], str] | None = None


def op_type(wanted: str | Sequence[str]) -> Condition:
    """Return the op type is one of these, which may be globs."""
    is_one = glob.one_of(texts(wanted))
    return on_ops(lambda node: is_one(node.op))


def _op_type_of(node: Node, wanted: object) -> str:
    return f"it is a {node.op}"


def name(wanted: str | Sequence[str]) -> Condition:
    """Return the op's name is one of these, which may be globs."""
    is_one = glob.one_of(texts(wanted))
    return on_ops(lambda node: is_one(node.name))


def _name_of(node: Node, wanted: object) -> str:
    return f"name is {node.name!r}"


def name_regex(wanted: str) -> Condition:
    """Return the regular expression matches the whole name."""
    try:
        meant = glob.whole(wanted)
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


def _dtype_instead(node: Node, wanted: object) -> str:
    dtypes = [arg.dtype or "not known" for arg in (node.outputs or [])[:1]]
    return f"dtype is {', '.join(dtypes) or 'not known'}"


OP_KEYS: dict[str, Key] = {
    "op": Key(op_type, _op_type_of),
    "name": Key(name, _name_of),
    "name_regex": Key(name_regex, _name_of),
    "attr": Key(attr, attrs_in_words),
    "dtype": Key(dtype, _dtype_instead),
}
"""In the order in which they are tried: cheap ones first."""
