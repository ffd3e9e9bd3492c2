"""The functions and operators of the formula language: a table, and all there is to know of each.

A new function is a row here, with a sequence in `sequences` where no one op does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import msgspec

from graphpatch.gradients import sequences
from graphpatch.gradients.ops import Value

ArgumentKind = Literal["number", "tensor", "truth", "any", "like", "index"]
"""What an argument may be.

number: a number or a tensor of a float dtype; tensor: only the latter (all of a call's numbers and
tensors have one dtype, to which plain numbers are cast); truth: a boolean or a tensor of them;
any: anything; like: any tensor, whose shape or dtype is lent; index: a list of integers, or a
tensor of int32 or int64.
"""

Option = Literal["axes", "axis", "flag", "place", "count", "natural", "seed", "part"]
"""What an option may be.

axes: a list of axes (or one); axis: an axis counted from the front; flag: a boolean; place: an
axis, from the end where it is negative; count: 1 or more; natural: 0 or more; seed: 0 or more, of
64 bits; part: from 0 to 1.
"""

FunctionBuilder: TypeAlias = Callable[..., Value]

Wide: TypeAlias = Mapping[str, str]

NATIVE: Wide = {}
SINGLE: Wide = {"float16": "float32", "bfloat16": "float32"}
DOUBLE: Wide = {"float16": "float64", "bfloat16": "float64", "float32": "float64"}
"""In which dtype a function is computed, where not in that of its arguments.

SINGLE, since TensorFlow 1.15 has no bfloat16 kernel of Exp, Tanh, Round, IsFinite and others for
the CPU, and adds up in the narrow dtype; its optimiser turns a quotient into a Reciprocal, which
has none either. DOUBLE, since it gives NaN for the float32 square root of an infinity, and since a
sum of squares leaves the range of float32 long before its root does.
"""


class Function(msgspec.Struct, frozen=True, eq=False):
    """A function of the language.

    `spelling` is the op that computes it, or what strings several together; `wide` the dtype that
    it is computed in; `kinds` are those of its arguments, the last one that of all that follow.
    `rest` names these where a call may have any number of arguments. `required` are options that
    have no default.
    """

    name: str
    arguments: tuple[str, ...]
    does: str
    spelling: str | FunctionBuilder = ""
    wide: Wide = msgspec.field(default_factory=lambda: NATIVE)
    kinds: tuple[ArgumentKind, ...] = ("number", "number", "number")
    options: Mapping[str, Option] = msgspec.field(default_factory=dict)
    rest: str = ""
    required: tuple[str, ...] = ()

    def kinds_of(self, count: int) -> tuple[ArgumentKind, ...]:
        """Return what each of so many arguments may be."""
        return (*self.kinds, *self.kinds[-1:] * count)[:count]

    @property
    def spelled(self) -> str:
        """Return how it is called: `norm(x, axes=, from_axis=, keepdims=)`."""
        rest = ["..."] if self.rest else []
        options = [f"{option}=" for option in self.options]
        return f"{self.name}({', '.join([*self.arguments, *rest, *options])})"


def _window(name: str, arguments: tuple[str, ...], does: str) -> Function:
    """Return a function with the windows of the op."""
    return Function(name, arguments, f"{does}, with the op's own attrs", kinds=("tensor",))


def _reduction(name: str, does: str, reduce: sequences.Reduce, wide: Wide = NATIVE) -> Function:
    options: Mapping[str, Option] = {"axes": "axes", "from_axis": "axis", "keepdims": "flag"}
    return Function(name, _X, does, sequences.reduction(reduce), wide, options=options)


_X = ("x",)
_AB = ("a", "b")
_TRUTHS: tuple[ArgumentKind, ...] = ("truth", "truth")
_LIKE: tuple[ArgumentKind, ...] = ("tensor", "like")

_OPERATORS = (
    Function("+", _AB, "sum", "AddV2"),
    Function("-", _AB, "difference", "Sub"),
    Function("*", _AB, "product", "Mul"),
    Function("/", _AB, "quotient", "RealDiv", SINGLE),
    Function("**", _AB, "power", sequences.power, SINGLE),
    Function("-x", _X, "the number with its sign changed", "Neg"),
    Function("<", _AB, "less", "Less"),
    Function("<=", _AB, "less or equal", "LessEqual"),
    Function(">", _AB, "greater", "Greater"),
    Function(">=", _AB, "greater or equal", "GreaterEqual"),
    Function("==", _AB, "equal", "Equal"),
    Function("!=", _AB, "unequal", "NotEqual"),
    Function("and", _AB, "both", "LogicalAnd", kinds=_TRUTHS),
    Function("or", _AB, "one or both", "LogicalOr", kinds=_TRUTHS),
    Function("not", _X, "the contrary", sequences.contrary, kinds=_TRUTHS),
)

_NAMED = (
    Function(
        "where",
        ("condition", "a", "b"),
        "a where the condition holds, else b, whatever the other is (NaN too)",
        "SelectV2",
        kinds=("truth", "number", "number"),
    ),
    Function("abs", _X, "absolute value", "Abs"),
    Function("sign", _X, "-1, 0 or 1; NaN for NaN", sequences.sign, SINGLE),
    Function("exp", _X, "e ** x", "Exp", SINGLE),
    Function("expm1", _X, "exp(x) - 1, exact near 0", "Expm1", SINGLE),
    Function("log", _X, "natural logarithm", "Log", SINGLE),
    Function("log1p", _X, "log(1 + x), exact near 0", "Log1p", SINGLE),
    Function("sqrt", _X, "square root", "Sqrt", DOUBLE),
    Function("rsqrt", _X, "1 / sqrt(x)", "Rsqrt", DOUBLE),
    Function("square", _X, "x * x", "Square"),
    Function("pow", _AB, "a ** b", sequences.power, SINGLE),
    Function("tanh", _X, "hyperbolic tangent", "Tanh", SINGLE),
    Function("sigmoid", _X, "1 / (1 + exp(-x))", "Sigmoid", SINGLE),
    Function("softplus", _X, "log(1 + exp(x))", "Softplus", SINGLE),
    Function("relu", _X, "x where positive, else 0; NaN for NaN", "Relu"),
    Function(
        "softmax",
        _X,
        "exp(x), divided by its sum over the last axis",
        "Softmax",
        SINGLE,
        ("tensor",),
    ),
    Function("erf", _X, "error function", sequences.erf, SINGLE),
    Function("sin", _X, "sine of an angle in radians", "Sin", SINGLE),
    Function("cos", _X, "cosine of an angle in radians", "Cos", SINGLE),
    Function("floor", _X, "the next integer down", "Floor", SINGLE),
    Function("round", _X, "the nearest integer, halves to the even one", "Round", SINGLE),
    Function("minimum", _AB, "the smaller; NaN where one is", sequences.minimum),
    Function("maximum", _AB, "the larger; NaN where one is", sequences.maximum),
    Function("clip", ("x", "min", "max"), "x kept within min and max", sequences.clip),
    Function("is_finite", _X, "neither NaN nor infinite", "IsFinite", SINGLE),
    Function("is_nan", _X, "NaN", "IsNan"),
    Function("zeros_like", _X, "zeros of the same shape and dtype", "ZerosLike"),
    Function("ones_like", _X, "ones of the same shape and dtype", "OnesLike"),
    Function("stop", _X, "x, through which no gradient flows", "StopGradient"),
    Function(
        "cast_like",
        _AB,
        "a in the dtype of b; true is 1, false 0",
        sequences.cast_like,
        kinds=("any", "tensor"),
    ),
    _reduction("sum", "sum", sequences.by_op("Sum"), SINGLE),
    _reduction("mean", "mean", sequences.by_op("Mean"), SINGLE),
    _reduction("max", "largest element", sequences.extreme("Max")),
    _reduction("min", "smallest element", sequences.extreme("Min")),
    _reduction("norm", "Euclidean norm", sequences.euclidean, DOUBLE),
    Function(
        "reshape_like",
        _AB,
        "a in the shape of b, which has as many elements",
        sequences.reshape_like,
        kinds=_LIKE,
    ),
    Function(
        "broadcast_like",
        _AB,
        "a repeated up to the shape of b",
        sequences.broadcast_like,
        kinds=("number", "like"),
    ),
    Function(
        "sum_like",
        _AB,
        "a summed down to the shape of b, which broadcasts to that of a",
        sequences.sum_like,
        SINGLE,
        kinds=_LIKE,
    ),
    Function(
        "transpose",
        _X,
        "the axes in the order of perm; the last two swapped without",
        sequences.transpose,
        kinds=("tensor",),
        options={"perm": "axes"},
    ),
    Function(
        "matmul",
        _AB,
        "matrix product over the last two axes; those before are broadcast",
        sequences.matmul,
        SINGLE,
        kinds=("tensor", "tensor"),
        options={"transpose_a": "flag", "transpose_b": "flag"},
    ),
    Function(
        "split",
        _X,
        "one of `parts` equal parts of x along an axis, the one numbered `index` from 0",
        sequences.split,
        kinds=("tensor",),
        options={"parts": "count", "index": "natural", "axis": "place"},
        required=("parts", "index"),
    ),
    Function(
        "concat",
        _AB,
        "tensors one after the other along an axis",
        sequences.concat,
        kinds=("tensor",),
        options={"axis": "place"},
        rest="x",
    ),
    Function(
        "gather",
        ("x", "indices"),
        "the parts of x at these places along an axis",
        sequences.gather,
        kinds=("tensor", "index"),
        options={"axis": "place"},
    ),
    Function(
        "quantile",
        _X,
        "the element that a part q of the elements lies below, over the axes from from_axis on",
        sequences.quantile,
        SINGLE,
        kinds=("tensor",),
        options={"q": "part", "from_axis": "axis"},
        required=("q",),
    ),
    Function(
        "normal_like",
        _X,
        "normal noise of the shape of x: another in each run, the same in each process",
        sequences.random_like("RandomStandardNormal"),
        kinds=("tensor",),
        options={"seed": "seed"},
        required=("seed",),
    ),
    Function(
        "uniform_like",
        _X,
        "noise from 0 to 1, without 1, of the shape of x, drawn as that of normal_like",
        sequences.random_like("RandomUniform"),
        kinds=("tensor",),
        options={"seed": "seed"},
        required=("seed",),
    ),
    Function(
        "forward",
        ("x0",),
        "the op itself on other inputs, with its own attrs; inputs left out are its own",
        kinds=("like",),
        rest="x",
    ),
    Function(
        "own",
        ("dy",),
        "the op's own gradient of dy; with more arguments, at these inputs",
        kinds=("tensor", "like"),
        rest="x",
    ),
)

_WINDOWED = (
    _window("conv2d", ("x", "w"), "convolution of x with the filter w"),
    _window("conv2d_transpose", ("dy", "w", "x"), "its gradient by x: an image of that shape"),
    _window("depthwise_conv2d", ("x", "w"), "depthwise convolution of x with the filter w"),
    _window(
        "depthwise_conv2d_transpose", ("dy", "w", "x"), "its gradient by x: an image of that shape"
    ),
    _window("avg_pool", _X, "the mean of each window"),
    _window("avg_pool_transpose", ("dy", "x"), "each mean in equal parts to the places of x"),
    _window("max_pool", _X, "the largest element of each window"),
    _window("max_pool_transpose", ("dy", "x"), "to the place of the largest element of x"),
    _window("bias_add", ("x", "bias"), "x plus a bias of its channels"),
)

OF_THE_OP = frozenset({"forward", "own", *(function.name for function in _WINDOWED)})
"""Functions that take from the op that the gradient is for: see `own`."""

OPERATORS: Mapping[str, Function] = {function.name: function for function in _OPERATORS}
FUNCTIONS: Mapping[str, Function] = {function.name: function for function in (*_NAMED, *_WINDOWED)}


def look_up(name: str) -> Function:
    """Return the function or operator of a Call."""
    return FUNCTIONS.get(name) or OPERATORS[name]
