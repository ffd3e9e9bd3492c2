"""The functions and operators of the formula language: a table, and all there is to know of each.

A new function is a row here, with a sequence in `sequences` where no one op does it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from graphpatch.gradients import sequences
from graphpatch.gradients.ops import Value, op

ArgumentKind = Literal["number", "tensor", "truth", "any", "like", "index"]
"""What an argument may be.

number: a number or a tensor of a float dtype; tensor: only the latter (all of a call's numbers and
tensors have one dtype, to which plain numbers are cast); truth: a boolean or a tensor of them;
any: anything; like: any tensor, whose shape or dtype is lent; index: a list of integers, or a
tensor of int32 or int64.
"""

OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("axes", "perm"), "axes"),
    "from_axis": "axis",
    **dict.fromkeys(("keepdims", "transpose_a", "transpose_b"), "flag"),
    "axis": "place",
    "parts": "count",
    "index": "natural",
    "seed": "seed",
    "q": "part",
}
"""What an option may be.

axes: a list of axes (or one); axis: an axis counted from the front; flag: a boolean; place: an
axis, from the end where it is negative; count: 1 or more; natural: 0 or more; seed: 0 or more, of
64 bits; part: from 0 to 1.
"""

REQUIRED = frozenset({"parts", "index", "q", "seed"})
"""The options that have no default."""

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

    `spelled` is how it is called: `norm(x, axes=, from_axis=, keepdims=)`. `spelling` is the op
    that computes it, or what strings several together; `wide` the dtype that it is computed in;
    `kinds` are those of its arguments, the last one that of all that follow. `rest` names these
    where a call may have any number of arguments.
    """

    name: str
    spelled: str
    arguments: tuple[str, ...]
    options: Mapping[str, str]
    rest: str
    does: str
    spelling: str | FunctionBuilder
    wide: Wide
    kinds: tuple[ArgumentKind, ...]

    def kinds_of(self, count: int) -> tuple[ArgumentKind, ...]:
        """Return what each of so many arguments may be."""
        return (*self.kinds, *self.kinds[-1:] * count)[:count]

    def takes_list(self, word: str) -> bool:
        """Return whether an argument or option may be a list of numbers."""
        is_index = word in self.arguments and self.kinds[self.arguments.index(word)] == "index"
        return is_index or self.options.get(word) == "axes"

    def build(self, values: Sequence[Value], options: Mapping[str, Any]) -> Value:
        """Return what the function gives, as ops."""
        if isinstance(self.spelling, str):
            return op(self.spelling, *values)
        return self.spelling(*values, **options)


def _function(
    text: str,
    does: str,
    spelling: str | FunctionBuilder = "",
    wide: Wide = NATIVE,
    *kinds: ArgumentKind,
) -> Function:
    """Return the function that is called as `text` says; by default it takes numbers."""
    name, _, words = text.rstrip(")").partition("(")
    arguments = [word for word in re.split(", *", words) if word[-1] not in "=."]
    options = {word: OPTIONS[word] for word in re.findall(r"\w+(?==)", words)}
    rest = "x" if "..." in words else ""
    kinds = kinds or ("number",)
    kinds += kinds[-1:] * (len(arguments) - len(kinds))
    return Function(name, text, tuple(arguments), options, rest, does, spelling, wide, kinds)


def _operator(name: str, *row: Any) -> Function:
    return _function(f"{name}({'x' if name in ('-x', 'not') else 'a, b'})", *row)


def _reduction(name: str, does: str, reduce: FunctionBuilder, wide: Wide = NATIVE) -> Function:
    text = f"{name}(x, axes=, from_axis=, keepdims=)"
    return _function(text, does, sequences.reduction(reduce), wide)


def _window(text: str, does: str) -> Function:
    """Return a function with the windows of the op."""
    return _function(text, f"{does}, with the op's own attrs", "", NATIVE, "tensor")


_OPERATORS = (
    _operator("+", "sum", "AddV2"),
    _operator("-", "difference", "Sub"),
    _operator("*", "product", "Mul"),
    _operator("/", "quotient", "RealDiv", SINGLE),
    _operator("**", "power", sequences.power, SINGLE),
    _operator("-x", "the number with its sign changed", "Neg"),
    _operator("<", "less", "Less"),
    _operator("<=", "less or equal", "LessEqual"),
    _operator(">", "greater", "Greater"),
    _operator(">=", "greater or equal", "GreaterEqual"),
    _operator("==", "equal", "Equal"),
    _operator("!=", "unequal", "NotEqual"),
    _operator("and", "both", "LogicalAnd", NATIVE, "truth"),
    _operator("or", "one or both", "LogicalOr", NATIVE, "truth"),
    _operator("not", "the contrary", sequences.contrary, NATIVE, "truth"),
)

_NAMED = (
    _function(
        "where(condition, a, b)",
        "a where the condition holds, else b, whatever the other is (NaN too)",
        *("SelectV2", NATIVE, "truth", "number"),
    ),
    _function("abs(x)", "absolute value", "Abs"),
    _function("sign(x)", "-1, 0 or 1; NaN for NaN", sequences.sign, SINGLE),
    _function("exp(x)", "e ** x", "Exp", SINGLE),
    _function("expm1(x)", "exp(x) - 1, exact near 0", "Expm1", SINGLE),
    _function("log(x)", "natural logarithm", "Log", SINGLE),
    _function("log1p(x)", "log(1 + x), exact near 0", "Log1p", SINGLE),
    _function("sqrt(x)", "square root", "Sqrt", DOUBLE),
    _function("rsqrt(x)", "1 / sqrt(x)", "Rsqrt", DOUBLE),
    _function("square(x)", "x * x", "Square"),
    _function("pow(a, b)", "a ** b", sequences.power, SINGLE),
    _function("tanh(x)", "hyperbolic tangent", "Tanh", SINGLE),
    _function("sigmoid(x)", "1 / (1 + exp(-x))", "Sigmoid", SINGLE),
    _function("softplus(x)", "log(1 + exp(x))", "Softplus", SINGLE),
    _function("relu(x)", "x where positive, else 0; NaN for NaN", "Relu"),
    _function(
        "softmax(x)",
        "exp(x), divided by its sum over the last axis",
        *("Softmax", SINGLE, "tensor"),
    ),
    _function("erf(x)", "error function", sequences.erf, SINGLE),
    _function("sin(x)", "sine of an angle in radians", "Sin", SINGLE),
    _function("cos(x)", "cosine of an angle in radians", "Cos", SINGLE),
    _function("floor(x)", "the next integer down", "Floor", SINGLE),
    _function("round(x)", "the nearest integer, halves to the even one", "Round", SINGLE),
    _function("minimum(a, b)", "the smaller; NaN where one is", sequences.minimum),
    _function("maximum(a, b)", "the larger; NaN where one is", sequences.maximum),
    _function("clip(x, min, max)", "x kept within min and max", sequences.clip),
    _function("is_finite(x)", "neither NaN nor infinite", "IsFinite", SINGLE),
    _function("is_nan(x)", "NaN", "IsNan"),
    _function("zeros_like(x)", "zeros of the same shape and dtype", "ZerosLike"),
    _function("ones_like(x)", "ones of the same shape and dtype", "OnesLike"),
    _function("stop(x)", "x, through which no gradient flows", "StopGradient"),
    _function(
        "cast_like(a, b)",
        "a in the dtype of b; true is 1, false 0",
        *(sequences.cast_like, NATIVE, "any", "tensor"),
    ),
    _reduction("sum", "sum", lambda by, x: by("Sum", x), SINGLE),
    _reduction("mean", "mean", lambda by, x: by("Mean", x), SINGLE),
    _reduction("max", "largest element", sequences.extreme("Max")),
    _reduction("min", "smallest element", sequences.extreme("Min")),
    _reduction("norm", "Euclidean norm", sequences.euclidean, DOUBLE),
    _function(
        "reshape_like(a, b)",
        "a in the shape of b, which has as many elements",
        *(sequences.reshape_like, NATIVE, "tensor", "like"),
    ),
    _function(
        "broadcast_like(a, b)",
        "a repeated up to the shape of b",
        *(sequences.broadcast_like, NATIVE, "number", "like"),
    ),
    _function(
        "sum_like(a, b)",
        "a summed down to the shape of b, which broadcasts to that of a",
        *(sequences.sum_like, SINGLE, "tensor", "like"),
    ),
    _function(
        "transpose(x, perm=)",
        "the axes in the order of perm; the last two swapped without",
        *(sequences.transpose, NATIVE, "tensor"),
    ),
    _function(
        "matmul(a, b, transpose_a=, transpose_b=)",
        "matrix product over the last two axes; those before are broadcast",
        *(sequences.matmul, SINGLE, "tensor"),
    ),
    _function(
        "split(x, parts=, index=, axis=)",
        "one of `parts` equal parts of x along an axis, the one numbered `index` from 0",
        *(sequences.split, NATIVE, "tensor"),
    ),
    _function(
        "concat(a, b, ..., axis=)",
        "tensors one after the other along an axis",
        *(sequences.concat, NATIVE, "tensor"),
    ),
    _function(
        "gather(x, indices, axis=)",
        "the parts of x at these places along an axis",
        *(sequences.gather, NATIVE, "tensor", "index"),
    ),
    _function(
        "quantile(x, q=, from_axis=)",
        "the element that a part q of the elements lies below, over the axes from from_axis on",
        *(sequences.quantile, SINGLE, "tensor"),
    ),
    _function(
        "normal_like(x, seed=)",
        "normal noise of the shape of x: another in each run, the same in each process",
        *(sequences.random_like("RandomStandardNormal"), NATIVE, "tensor"),
    ),
    _function(
        "uniform_like(x, seed=)",
        "noise from 0 to 1, without 1, of the shape of x, drawn as that of normal_like",
        *(sequences.random_like("RandomUniform"), NATIVE, "tensor"),
    ),
    _function(
        "forward(x0, ...)",
        "the op itself on other inputs, with its own attrs; inputs left out are its own",
        *("", NATIVE, "like"),
    ),
    _function(
        "own(dy, ...)",
        "the op's own gradient of dy; with more arguments, at these inputs",
        *("", NATIVE, "tensor", "like"),
    ),
)

_WINDOWED = (
    _window("conv2d(x, w)", "convolution of x with the filter w"),
    _window("conv2d_transpose(dy, w, x)", "its gradient by x: an image of that shape"),
    _window("depthwise_conv2d(x, w)", "depthwise convolution of x with the filter w"),
    _window("depthwise_conv2d_transpose(dy, w, x)", "its gradient by x: an image of that shape"),
    _window("avg_pool(x)", "the mean of each window"),
    _window("avg_pool_transpose(dy, x)", "each mean in equal parts to the places of x"),
    _window("max_pool(x)", "the largest element of each window"),
    _window("max_pool_transpose(dy, x)", "to the place of the largest element of x"),
    _window("bias_add(x, bias)", "x plus a bias of its channels"),
)

WINDOWED = frozenset(function.name for function in _WINDOWED)
OF_THE_OP = frozenset({"forward", "own"}) | WINDOWED
"""Functions that take from the op that the gradient is for: see `op_gradients`."""

OPERATORS: Mapping[str, Function] = {function.name: function for function in _OPERATORS}
FUNCTIONS: Mapping[str, Function] = {function.name: function for function in (*_NAMED, *_WINDOWED)}


def look_up(name: str) -> Function:
    """Return the function or operator of a Call."""
    return FUNCTIONS.get(name) or OPERATORS[name]
