"""The functions and operators of the formula language: a table, and all there is to know of each.

A new function is a line here, with a recipe where no one op does it, and a line in
`numpy_functions` where numpy has none of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import msgspec

from graphpatch.gradients import along, op_sequences
from graphpatch.gradients.program import Value

ArgumentKind = Literal["number", "tensor", "truth", "any", "like", "index"]
"""What an argument may be.

number: a number or a tensor of a float dtype; tensor: only the latter (all of a call's numbers and
tensors have one dtype, to which plain numbers are cast); truth: a boolean or a tensor of them;
any: anything; like: any tensor, whose shape or dtype is lent; index: a list of integers, or a
tensor of int32 or int64.
"""

Option = Literal["axes", "axis", "flag", "place", "count", "natural", "part"]
"""What an option may be.

axes: a list of axes (or one); axis: an axis counted from the front; flag: a boolean; place: an
integer, from the end where it is negative; count: 1 or more; natural: 0 or more; part: from 0 to 1.
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

    `spelling` is the op that computes it, or the recipe that strings several together; `numpy`
    is its name in `numpy_functions` or else in numpy; `kinds` are those of its arguments, the
    last one that of all that follow. `rest` names these where a call may have any number of
    arguments. `required` are options that have no default.
    """

    name: str
    arguments: tuple[str, ...]
    does: str
    spelling: str | FunctionBuilder
    numpy: str
    wide: Wide = msgspec.field(default_factory=lambda: NATIVE)
    kinds: tuple[ArgumentKind, ...] = ("number", "number", "number")
    options: Mapping[str, Option] = msgspec.field(default_factory=dict)
    rest: str = ""
    required: tuple[str, ...] = ()

    def kinds_of(self, count: int) -> tuple[ArgumentKind, ...]:
        """What each of so many arguments may be."""
        return (*self.kinds, *self.kinds[-1:] * count)[:count]

    @property
    def spelled(self) -> str:
        """How it is called: `norm(x, axes=, from_axis=, keepdims=)`."""
        rest = ["..."] if self.rest else []
        return (
            f"{self.name}({', '.join([*self.arguments, *rest, *(f'{o}=' for o in self.options)])})"
        )


def _window(name: str, arguments: tuple[str, ...], does: str) -> Function:
    """A function with the windows of the op."""
    kinds: tuple[ArgumentKind, ...] = ("tensor",)
    return Function(name, arguments, f"{does}, with the op's own attrs", "", "", kinds=kinds)


_X = ("x",)
_AB = ("a", "b")
_TRUTHS: tuple[ArgumentKind, ...] = ("truth", "truth")
_LIKE: tuple[ArgumentKind, ...] = ("tensor", "like")
_OVER: Mapping[str, Option] = {"axes": "axes", "from_axis": "axis", "keepdims": "flag"}

_OPERATORS = (
    Function("+", _AB, "sum", "AddV2", "add"),
    Function("-", _AB, "difference", "Sub", "subtract"),
    Function("*", _AB, "product", "Mul", "multiply"),
    Function("/", _AB, "quotient", "RealDiv", "divide", SINGLE),
    Function("**", _AB, "power", op_sequences.power, "pow", SINGLE),
    Function("-x", _X, "the number with its sign changed", "Neg", "negative"),
    Function("<", _AB, "less", "Less", "less"),
    Function("<=", _AB, "less or equal", "LessEqual", "less_equal"),
    Function(">", _AB, "greater", "Greater", "greater"),
    Function(">=", _AB, "greater or equal", "GreaterEqual", "greater_equal"),
    Function("==", _AB, "equal", "Equal", "equal"),
    Function("!=", _AB, "unequal", "NotEqual", "not_equal"),
    Function("and", _AB, "both", "LogicalAnd", "logical_and", kinds=_TRUTHS),
    Function("or", _AB, "one or both", "LogicalOr", "logical_or", kinds=_TRUTHS),
    Function("not", _X, "the contrary", op_sequences.contrary, "logical_not", kinds=_TRUTHS),
)

_NAMED = (
    Function(
        "where",
        ("condition", "a", "b"),
        "a where the condition holds, else b, whatever the other is (NaN too)",
        "SelectV2",
        "where",
        kinds=("truth", "number", "number"),
    ),
    Function("abs", _X, "absolute value", "Abs", "absolute"),
    Function("sign", _X, "-1, 0 or 1; NaN for NaN", op_sequences.sign, "sign", SINGLE),
    Function("exp", _X, "e ** x", "Exp", "exp", SINGLE),
    Function("expm1", _X, "exp(x) - 1, exact near 0", "Expm1", "expm1", SINGLE),
    Function("log", _X, "natural logarithm", "Log", "log", SINGLE),
    Function("log1p", _X, "log(1 + x), exact near 0", "Log1p", "log1p", SINGLE),
    Function("sqrt", _X, "square root", "Sqrt", "sqrt", DOUBLE),
    Function("rsqrt", _X, "1 / sqrt(x)", "Rsqrt", "rsqrt", DOUBLE),
    Function("square", _X, "x * x", "Square", "square"),
    Function("pow", _AB, "a ** b", op_sequences.power, "pow", SINGLE),
    Function("tanh", _X, "hyperbolic tangent", "Tanh", "tanh", SINGLE),
    Function("sigmoid", _X, "1 / (1 + exp(-x))", "Sigmoid", "sigmoid", SINGLE),
    Function("softplus", _X, "log(1 + exp(x))", "Softplus", "softplus", SINGLE),
    Function("relu", _X, "x where positive, else 0; NaN for NaN", "Relu", "relu"),
    Function("erf", _X, "error function", op_sequences.erf, "erf", SINGLE),
    Function("sin", _X, "sine of an angle in radians", "Sin", "sin", SINGLE),
    Function("cos", _X, "cosine of an angle in radians", "Cos", "cos", SINGLE),
    Function("floor", _X, "the next integer down", "Floor", "floor", SINGLE),
    Function("round", _X, "the nearest integer, halves to the even one", "Round", "rint", SINGLE),
    Function("minimum", _AB, "the smaller; NaN where one is", op_sequences.minimum, "minimum"),
    Function("maximum", _AB, "the larger; NaN where one is", op_sequences.maximum, "maximum"),
    Function("clip", ("x", "min", "max"), "x kept within min and max", op_sequences.clip, "clip"),
    Function("is_finite", _X, "neither NaN nor infinite", "IsFinite", "isfinite", SINGLE),
    Function("is_nan", _X, "NaN", "IsNan", "isnan"),
    Function("zeros_like", _X, "zeros of the same shape and dtype", "ZerosLike", "zeros_like"),
    Function("ones_like", _X, "ones of the same shape and dtype", "OnesLike", "ones_like"),
    Function("stop", _X, "x, through which no gradient flows", "StopGradient", "stop"),
    Function(
        "cast_like",
        _AB,
        "a in the dtype of b; true is 1, false 0",
        op_sequences.cast_like,
        "cast_like",
        kinds=("any", "tensor"),
    ),
    Function("sum", _X, "sum", op_sequences.Reduction("Sum"), "sum", SINGLE, options=_OVER),
    Function("mean", _X, "mean", op_sequences.Reduction("Mean"), "mean", SINGLE, options=_OVER),
    Function("max", _X, "largest element", op_sequences.Extreme("Max"), "max", options=_OVER),
    Function("min", _X, "smallest element", op_sequences.Extreme("Min"), "min", options=_OVER),
    Function("norm", _X, "Euclidean norm", op_sequences.Norm("Sum"), "norm", DOUBLE, options=_OVER),
    Function(
        "reshape_like",
        _AB,
        "a in the shape of b, which has as many elements",
        op_sequences.reshape_like,
        "reshape_like",
        kinds=_LIKE,
    ),
    Function(
        "broadcast_like",
        _AB,
        "a repeated up to the shape of b",
        op_sequences.broadcast_like,
        "broadcast_like",
        kinds=("number", "like"),
    ),
    Function(
        "sum_like",
        _AB,
        "a summed down to the shape of b, which broadcasts to that of a",
        op_sequences.sum_like,
        "sum_like",
        SINGLE,
        kinds=_LIKE,
    ),
    Function(
        "transpose",
        _X,
        "the axes in the order of perm; the last two swapped without",
        op_sequences.transpose,
        "transpose",
        kinds=("tensor",),
        options={"perm": "axes"},
    ),
    Function(
        "matmul",
        _AB,
        "matrix product over the last two axes; those before are broadcast",
        op_sequences.matmul,
        "matmul",
        SINGLE,
        kinds=("tensor", "tensor"),
        options={"transpose_a": "flag", "transpose_b": "flag"},
    ),
    Function(
        "split",
        _X,
        "one of `parts` equal parts of x along an axis, the one numbered `index` from 0",
        along.split,
        "split_part",
        kinds=("tensor",),
        options={"parts": "count", "index": "natural", "axis": "place"},
        required=("parts", "index"),
    ),
    Function(
        "concat",
        _AB,
        "tensors one after the other along an axis",
        along.concat,
        "concat",
        kinds=("tensor",),
        options={"axis": "place"},
        rest="x",
    ),
    Function(
        "gather",
        ("x", "indices"),
        "the parts of x at these places along an axis",
        along.gather,
        "gather",
        kinds=("tensor", "index"),
        options={"axis": "place"},
    ),
    Function(
        "quantile",
        _X,
        "the element that a part q of the elements lies below, over the axes from from_axis on",
        along.quantile,
        "lower_quantile",
        SINGLE,
        kinds=("tensor",),
        options={"q": "part", "from_axis": "axis"},
        required=("q",),
    ),
    Function(
        "normal_like",
        _X,
        "normal noise of the shape of x: another in each run, the same in each process",
        along.normal_like,
        "normal_like",
        kinds=("tensor",),
        options={"seed": "natural"},
        required=("seed",),
    ),
    Function(
        "forward",
        ("x0",),
        "the op itself on other inputs, with its own attrs; inputs left out are its own",
        "",
        "",
        kinds=("like",),
        rest="x",
    ),
    Function(
        "own",
        ("dy",),
        "the op's own gradient of dy; with more arguments, at these inputs",
        "",
        "",
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
"""Functions that take from the op that the gradient is for: see `own` and `windows`."""

OPERATORS: Mapping[str, Function] = {function.name: function for function in _OPERATORS}
FUNCTIONS: Mapping[str, Function] = {function.name: function for function in (*_NAMED, *_WINDOWED)}


def look_up(name: str) -> Function:
    """The function or operator of a Call."""
    return FUNCTIONS.get(name) or OPERATORS[name]
