"""The functions and operators of the formula language: a table, and all there is to know of each.

A new function is a row of the table, and a sequence of ops where no one op does it. Each op is
known to TensorFlow 1.15 and 2.x. NaN passes through by comparisons and SelectV2, not by Maximum,
Minimum, Max, Min and Sign: TensorFlow 1.15 computes these without looking for NaN. What
TensorFlow's optimiser would rewrite without regard to NaN and infinities is spelled otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from graphpatch.gradients.ops import SCALAR, UNKNOWN, BroadcastShape, Value, op

_ERF_IS_ONE = 30.0
SEED_2 = 1
"""The second seed: with both 0, TensorFlow would draw other numbers in each process."""


def power(base: Value, exponent: Value) -> Value:
    """Return `base ** exponent`, for the numbers 2, 0.5 and -0.5 by Square, Sqrt and Rsqrt.

    The optimiser would do the same, but take roots in float32.
    """
    if exponent.number == 2:
        return op("Square", base)
    if exponent.number in (0.5, -0.5):
        root = "Sqrt" if exponent.number > 0 else "Rsqrt"
        return op(root, base.cast("float64")).cast(base.dtype)
    return op("Pow", base, exponent)


def contrary(condition: Value) -> Value:
    """Negate a condition.

    The optimiser takes LogicalNot of `a < b` for `a >= b`, which is wrong about NaN.
    """
    return op("SelectV2", condition, False, True)


def maximum(a: Value, b: Value) -> Value:
    """Return the larger of the two, NaN where one is."""
    return _extremum("Greater", a, b)


def minimum(a: Value, b: Value) -> Value:
    """Return the smaller of the two, NaN where one is."""
    return _extremum("Less", a, b)


def _extremum(beats: str, a: Value, b: Value) -> Value:
    """Return the one that `beats` the other; b where neither does, as one may be NaN."""
    if _is_number(b):
        a, b = b, a
    wins = op(beats, a, b)
    if not _is_number(a):
        wins = op("LogicalOr", wins, op("IsNan", a))
    return op("SelectV2", wins, a, b)


def _is_number(value: Value) -> bool:
    return value.constant is not None and not any(map(math.isnan, value.constant.numbers))


def clip(x: Value, low: Value, high: Value) -> Value:
    """Return `minimum(maximum(x, low), high)`."""
    return minimum(maximum(x, low), high)


def sign(x: Value) -> Value:
    """Return -1, 0 or 1, NaN for NaN."""
    return op("SelectV2", op("IsNan", x), x, op("Sign", x))


def erf(x: Value) -> Value:
    """Return the error function, which TensorFlow 2.21 gives as NaN for infinite doubles."""
    if x.dtype == "float64":
        low, high = (x.program.scalar(end, x.dtype) for end in (-_ERF_IS_ONE, _ERF_IS_ONE))
        x = clip(x, low, high)
    return op("Erf", x)


def broadcast_like(value: Value, like: Value) -> Value:
    """Repeat the value up to the shape of another."""
    return op("BroadcastTo", value, like.sizes, shape=like.shape)


def sum_to(value: Value, shape: Value, sizes: Value, known: BroadcastShape) -> Value:
    """Sum a value of these sizes down to a shape of which this much is known."""
    total = op("Sum", value, op("BroadcastGradientArgs", shape, sizes), keep_dims=False)
    return op("Reshape", total, shape, shape=known)


def transpose(x: Value, perm: Sequence[int] | None = None) -> Value:
    """Put the axes in the order of `perm`; swap the last two where it is silent."""
    if perm is not None:
        return op("Transpose", x, x.program.vector(*perm))
    rank = op("Rank", x, shape=SCALAR)  # the order is 0, 1, ..., rank - 1, rank - 2
    ends, before = rank - x.program.vector(1, 2), rank - 2
    axes = op("Range", rank.like(0), before, 1)
    return op("Transpose", x, op("ConcatV2", (axes, ends), rank.like(0)))


def matmul(a: Value, b: Value, transpose_a: bool = False, transpose_b: bool = False) -> Value:
    """Multiply matrices over the last two axes; the axes before them are broadcast."""
    return op("BatchMatMulV2", a, b, adj_x=transpose_a, adj_y=transpose_b)


Reduced = Callable[[str, Value], Value]
"""What reduces a value by an op of this type, over the axes that are asked for."""


def extreme(op_type: str) -> Callable[[Reduced, Value], Value]:
    """Reduce by Max or Min, to NaN where `Any` finds one among the elements."""

    def reduce(by: Reduced, x: Value) -> Value:
        extremum, spoilt = by(op_type, x), by("Any", op("IsNan", x))
        return op("SelectV2", spoilt, x.like(math.nan), extremum)

    return reduce


def reduction(reduce: Callable[[Reduced, Value], Value]) -> Callable[..., Value]:
    """Return a function that reduces over the given axes, over all from one on, or over all."""

    def build(
        x: Value, axes: Sequence[int] | None = None, from_axis: int = 0, keepdims: bool = False
    ) -> Value:
        if axes is not None:
            over = x.program.vector(*axes)
        else:
            first, step = (x.program.scalar(number, "int32") for number in (from_axis, 1))
            over = op("Range", first, op("Rank", x, shape=SCALAR), step)
        shape = SCALAR if axes is None and from_axis == 0 else UNKNOWN
        if keepdims:
            shape = BroadcastShape(x.shape.most, frozenset())
        return reduce(lambda kind, value: op(kind, value, over, shape=shape, keep_dims=keepdims), x)

    return build


def joined(*vectors: Value) -> Value:
    """Join vectors of int32 to one."""
    if len(vectors) == 1:
        return vectors[0]
    return op("ConcatV2", vectors, vectors[0].like(0))


def part_of(sizes: Value, start: int, stop: int | None) -> Value:
    """Cut a vector from `start` to `stop`, or to its end."""
    ends = map(sizes.program.vector, (start, stop or 0, 1))
    to_end: dict[str, Any] = {"end_mask": 1} if stop is None else {}
    return op("StridedSlice", sizes, *ends, **to_end)


def size_along(sizes: Value, axis: int) -> Value:
    """Return the size along an axis, a vector of one int32."""
    return part_of(sizes, axis, None if axis == -1 else axis + 1)


def split(x: Value, parts: int, index: int, axis: int = 0) -> Value:
    """Return part `index` of `parts` equal ones: raises, as it runs, where they are not equal."""
    if index >= parts:
        raise ValueError(f"index counts from 0 to {parts - 1}, and this is {index}")
    part = op("Split", x.program.scalar(axis, "int32"), x, num_split=parts)
    return replace(part, output=index)


def quantile(x: Value, q: float, from_axis: int = 0) -> Value:
    """Return element floor(q * (n - 1)) of the n in order, along one axis of size 1 each."""
    sizes, vector = x.sizes, x.program.vector
    lead = [part_of(sizes, 0, from_axis)] if from_axis else []
    rest = part_of(sizes, from_axis, None)
    rows = op("Reshape", x, joined(*lead, vector(-1)))
    count = op("Reshape", size_along(rows.sizes, -1), vector(), shape=SCALAR)
    place = op("Floor", (count.cast("float64") - 1.0) * q)
    element = op("NthElement", rows, place.cast("int32"))
    return op("Reshape", element, joined(*lead, op("OnesLike", rest)))


def random_like(op_type: str) -> Callable[..., Value]:
    """Return what draws numbers by an op of this type, in the shape and dtype of x."""

    def drawn(x: Value, seed: int) -> Value:
        seeds = {"seed": seed, "seed2": SEED_2}
        return op(op_type, x.sizes, shape=x.shape, dtype="float32", **seeds).cast(x.dtype)

    return drawn


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
53 bits; part: from 0 to 1.
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


_WIDE = {"": NATIVE, "single": SINGLE, "double": DOUBLE}
_SEQUENCES: Mapping[str, FunctionBuilder] = {
    **{"power": power, "contrary": contrary, "sign": sign, "erf": erf, "clip": clip},
    **{"minimum": minimum, "maximum": maximum, "broadcast_like": broadcast_like},
    **{"transpose": transpose, "matmul": matmul, "split": split, "quantile": quantile},
    "cast_like": lambda a, b: a.cast(b.dtype),
    "reshape_like": lambda a, b: op("Reshape", a, b.sizes, shape=b.shape),
    "sum_like": lambda a, b: sum_to(a, b.sizes, a.sizes, b.shape),
    "concat": lambda *x, axis=0: op("ConcatV2", x, x[0].program.scalar(axis, "int32")),
    "gather": lambda x, at, axis=0: op("GatherV2", x, at, x.program.scalar(axis, "int32")),
    **{"normal": random_like("RandomStandardNormal"), "uniform": random_like("RandomUniform")},
    "reduced_sum": reduction(lambda by, x: by("Sum", x)),
    "reduced_mean": reduction(lambda by, x: by("Mean", x)),
    **{"reduced_max": reduction(extreme("Max")), "reduced_min": reduction(extreme("Min"))},
    "euclidean": reduction(lambda by, x: op("Sqrt", by("Sum", op("Square", x)))),
}
"""What strings several ops together, by its name in the table."""

_OPERATORS = """
+(a, b) | AddV2 | | number | sum
-(a, b) | Sub | | number | difference
*(a, b) | Mul | | number | product
/(a, b) | RealDiv | single | number | quotient
**(a, b) | power | single | number | power
-x(x) | Neg | | number | the number with its sign changed
<(a, b) | Less | | number | less
<=(a, b) | LessEqual | | number | less or equal
>(a, b) | Greater | | number | greater
>=(a, b) | GreaterEqual | | number | greater or equal
==(a, b) | Equal | | number | equal
!=(a, b) | NotEqual | | number | unequal
and(a, b) | LogicalAnd | | truth | both
or(a, b) | LogicalOr | | truth | one or both
not(x) | contrary | | truth | the contrary
"""
_FUNCTIONS = """
where(condition, a, b) | SelectV2 | | truth number
  | a where the condition holds, else b, whatever the other is (NaN too)
abs(x) | Abs | | number | absolute value
sign(x) | sign | single | number | -1, 0 or 1; NaN for NaN
exp(x) | Exp | single | number | e ** x
expm1(x) | Expm1 | single | number | exp(x) - 1, exact near 0
log(x) | Log | single | number | natural logarithm
log1p(x) | Log1p | single | number | log(1 + x), exact near 0
sqrt(x) | Sqrt | double | number | square root
rsqrt(x) | Rsqrt | double | number | 1 / sqrt(x)
square(x) | Square | | number | x * x
pow(a, b) | power | single | number | a ** b
tanh(x) | Tanh | single | number | hyperbolic tangent
sigmoid(x) | Sigmoid | single | number | 1 / (1 + exp(-x))
softplus(x) | Softplus | single | number | log(1 + exp(x))
relu(x) | Relu | | number | x where positive, else 0; NaN for NaN
softmax(x) | Softmax | single | tensor | exp(x), divided by its sum over the last axis
erf(x) | erf | single | number | error function
sin(x) | Sin | single | number | sine of an angle in radians
cos(x) | Cos | single | number | cosine of an angle in radians
floor(x) | Floor | single | number | the next integer down
round(x) | Round | single | number | the nearest integer, halves to the even one
minimum(a, b) | minimum | | number | the smaller; NaN where one is
maximum(a, b) | maximum | | number | the larger; NaN where one is
clip(x, min, max) | clip | | number | x kept within min and max
is_finite(x) | IsFinite | single | number | neither NaN nor infinite
is_nan(x) | IsNan | | number | NaN
zeros_like(x) | ZerosLike | | number | zeros of the same shape and dtype
ones_like(x) | OnesLike | | number | ones of the same shape and dtype
stop(x) | StopGradient | | number | x, through which no gradient flows
cast_like(a, b) | cast_like | | any tensor | a in the dtype of b; true is 1, false 0
sum(x, axes=, from_axis=, keepdims=) | reduced_sum | single | number | sum
mean(x, axes=, from_axis=, keepdims=) | reduced_mean | single | number | mean
max(x, axes=, from_axis=, keepdims=) | reduced_max | | number | largest element
min(x, axes=, from_axis=, keepdims=) | reduced_min | | number | smallest element
norm(x, axes=, from_axis=, keepdims=) | euclidean | double | number | Euclidean norm
reshape_like(a, b) | reshape_like | | tensor like
  | a in the shape of b, which has as many elements
broadcast_like(a, b) | broadcast_like | | number like | a repeated up to the shape of b
sum_like(a, b) | sum_like | single | tensor like
  | a summed down to the shape of b, which broadcasts to that of a
transpose(x, perm=) | transpose | | tensor
  | the axes in the order of perm; the last two swapped without
matmul(a, b, transpose_a=, transpose_b=) | matmul | single | tensor
  | matrix product over the last two axes; those before are broadcast
split(x, parts=, index=, axis=) | split | | tensor
  | one of `parts` equal parts of x along an axis, the one numbered `index` from 0
concat(a, b, ..., axis=) | concat | | tensor | tensors one after the other along an axis
gather(x, indices, axis=) | gather | | tensor index
  | the parts of x at these places along an axis
quantile(x, q=, from_axis=) | quantile | single | tensor
  | the element that a part q of the elements lies below, over the axes from from_axis on
normal_like(x, seed=) | normal | | tensor
  | normal noise of the shape of x: another in each run, the same in each process
uniform_like(x, seed=) | uniform | | tensor
  | noise from 0 to 1, without 1, of the shape of x, drawn as that of normal_like
forward(x0, ...) | of op | | like
  | the op itself on other inputs, with its own attrs; inputs left out are its own
own(dy, ...) | of op | | tensor like
  | the op's own gradient of dy; with more arguments, at these inputs
conv2d(x, w) | window | | tensor | convolution of x with the filter w
conv2d_transpose(dy, w, x) | window | | tensor | its gradient by x: an image of that shape
depthwise_conv2d(x, w) | window | | tensor | depthwise convolution of x with the filter w
depthwise_conv2d_transpose(dy, w, x) | window | | tensor
  | its gradient by x: an image of that shape
avg_pool(x) | window | | tensor | the mean of each window
avg_pool_transpose(dy, x) | window | | tensor | each mean in equal parts to the places of x
max_pool(x) | window | | tensor | the largest element of each window
max_pool_transpose(dy, x) | window | | tensor | to the place of the largest element of x
bias_add(x, bias) | window | | tensor | x plus a bias of its channels
"""
"""How each is called, what computes it, in which dtype if not that of its arguments, the kinds of
its arguments (the last one that of all that follow), and what it gives. What computes it is an op,
a sequence, or the op that the gradient is for: as a whole, or one with its windows."""


def _row(line: str) -> tuple[str, Function]:
    """Return a function, and what computes it as the table says."""
    spelled, by, wide, kinds, does = map(str.strip, line.split(" |", 4))
    name, _, words = spelled.rstrip(")").partition("(")
    arguments = [word for word in re.split(", *", words) if word[-1] not in "=."]
    options = {word: OPTIONS[word] for word in re.findall(r"\w+(?==)", words)}
    each = kinds.split()
    each += each[-1:] * (len(arguments) - len(each))
    return by, Function(
        name,
        spelled,
        tuple(arguments),
        options,
        "x" if "..." in words else "",
        f"{does}, with the op's own attrs" if by == "window" else does,
        _SEQUENCES.get(by, by),
        _WIDE[wide],
        msgspec.convert(each, tuple[ArgumentKind, ...]),
    )


def _rows(table: str) -> list[tuple[str, Function]]:
    return [_row(line) for line in table.strip().replace("\n  |", " |").split("\n")]


OPERATORS: Mapping[str, Function] = {row.name: row for _, row in _rows(_OPERATORS)}
FUNCTIONS: Mapping[str, Function] = {row.name: row for _, row in _rows(_FUNCTIONS)}
WINDOWED = frozenset(row.name for by, row in _rows(_FUNCTIONS) if by == "window")
OF_THE_OP = frozenset({"forward", "own"}) | WINDOWED
"""Functions that take from the op that the gradient is for: see `op_gradients`."""


def look_up(name: str) -> Function:
    """Return the function or operator of a Call."""
    return FUNCTIONS.get(name) or OPERATORS[name]
