"""`class`: kinds of ops that have no common op type, each a line of the table below."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphpatch.control_flow.op_types import ENTER, SWITCH
from graphpatch.dtypes import DIFFERENTIABLE
from graphpatch.errors import RulesError, did_you_mean
from graphpatch.graph.body import Body, Node
from graphpatch.graph.op_types import ALL_VARIABLES
from graphpatch.graph.tensor import constant
from graphpatch.match.condition import Condition, on_ops
from graphpatch.match.glob import texts

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
    """The op belongs to one of these classes."""
    for name in texts(wanted):
        if name not in CLASSES:
            near = did_you_mean(name, CLASSES) or f"; legal: {', '.join(CLASSES)}"
            raise RulesError(f"class: there is no class {name!r}{near}")
    tests = [CLASSES[name] for name in texts(wanted)]
    return on_ops(lambda node: any(test(node) for test in tests))


def classes_in_words(node: Node, wanted: object) -> str:
    """The classes that an op belongs to, in words."""
    found = [name for name, test in CLASSES.items() if test(node)]
    return f"{node.op} is of class {', '.join(found)}" if found else f"{node.op} is of no class"


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
    found = constant(node)
    return found is not None and found.size > 1 and found.dtype in DIFFERENTIABLE


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
