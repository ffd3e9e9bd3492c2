"""Programs in numpy: one function for each op type, for plots and `verify`.

It runs the ops that are written to files, so that what a plot shows is what a file computes. Ops
with windows and random numbers are left to TensorFlow: see `missing`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.ops import Signature, StepInput, Value, needed, op_def
from graphpatch.gradients.program import formula_ops, gradient_ops
from graphpatch.graph.attrs import DTYPE_NUMBERS

Array: TypeAlias = npt.NDArray[Any]
Attrs: TypeAlias = Mapping[str, Any]


def gradient(
    formula: Formula,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    upstream: Sequence[Array],
    attrs: Mapping[str, object] | None = None,
    op_type: str = "",
) -> list[Array | None]:
    """Return dx of each input array, of its shape and dtype, or None.

    The arrays of `tensors` that the formula reads by name are the last inputs. Arrays of bfloat16
    are those of the package ml_dtypes. `op_type` is that of the op, which
    `forward` and `own` compute. Raises FormulaError where the formula does not suit the arrays,
    or needs an op that numpy has not.
    """
    arguments: dict[str, Array] = {}
    for kind, arrays in (("x", inputs), ("y", outputs), ("dy", upstream)):
        arguments |= {f"{kind}{place}": array for place, array in enumerate(arrays)}
    return run(program(formula, _dtypes(inputs), _dtypes(outputs), attrs, op_type), arguments)


def program(
    formula: Formula,
    inputs: Sequence[str],
    outputs: Sequence[str],
    attrs: Mapping[str, object] | None = None,
    op_type: str = "",
) -> tuple[Value | None, ...]:
    """Return the program of a formula for tensors of these dtypes: see `gradient`."""
    more = len(formula.tensors)
    op = Signature.of(inputs, outputs, attrs, op_type=op_type, more=more)
    return gradient_ops(formula.with_more_inputs(inputs[: len(inputs) - more]), op)


def missing(values: Sequence[Value | None]) -> list[str]:
    """Return the op types that these values of a program are computed by, and numpy has not."""
    wanted = [item for item in values if item is not None]
    types = {wanted[0].program.steps[number].op_type for number in needed(wanted)}
    return sorted(types - _PLAIN.keys() - _KERNELS.keys())


def value(formula: Formula, inputs: Sequence[Array]) -> Array:
    """Return what one formula of the inputs `x0, x1, ...` is."""
    dtype = inputs[0].dtype.name
    result = formula_ops(formula, Signature.of(_dtypes(inputs), [dtype]), dtype)
    arguments = {f"x{place}": array for place, array in enumerate(inputs)}
    return np.asarray(run([result], arguments)[0])


def op_output(op_type: str, inputs: Sequence[Any], attrs: Attrs) -> Any:
    """Return output 0 of one op, a list where it is one. Raises FormulaError for foreign types."""
    if op_type not in _PLAIN and op_type not in _KERNELS:
        known = ", ".join(sorted(_PLAIN | _KERNELS))
        raise FormulaError(f"numpy has no {op_type}; there is: {known}")
    definition = op_def(op_type)
    texts = {k: v.decode() if isinstance(v, bytes) else v for k, v in attrs.items()}
    try:
        if op_type in _PLAIN:
            result = _PLAIN[op_type](*inputs)
        else:
            result = _KERNELS[op_type](*inputs, {**definition.defaults, **texts})
    except (ValueError, IndexError) as error:  # shapes that do not fit
        raise FormulaError(f"{op_type}: {error}") from None
    if isinstance(result, list):
        return result
    result, output = np.asarray(result), definition.outputs[0]
    dtype = output.dtype or attrs.get(output.type_attr)
    return result if dtype is None else result.astype(np.dtype(dtype), copy=False)


def run(
    values: Sequence[Value | None],
    arguments: Mapping[str, Any],
    output: Callable[[str, list[Any], dict[str, Any]], Any] = op_output,
) -> list[Any]:
    """Return the arrays that these values of a program are, or what `output` makes of each op."""
    computed: dict[str | int, Any] = dict(arguments.items())
    wanted = [item for item in values if item is not None]

    def array(item: StepInput) -> Any:
        if not isinstance(item, Value):
            return list(map(array, item))
        value = computed[item.source]
        return value[item.output] if isinstance(value, list | tuple) else value

    with np.errstate(all="ignore"):
        for number in needed(wanted):
            step = wanted[0].program.steps[number]
            computed[number] = output(step.op_type, [*map(array, step.inputs)], dict(step.attrs))
    return [None if item is None else array(item) for item in values]


def _dtypes(arrays: Sequence[Array]) -> list[str]:
    """Return the dtype of each array; what has no number counts as string."""
    names = (array.dtype.name for array in arrays)
    return [name if name in DTYPE_NUMBERS else "string" for name in names]


Kernel = Callable[..., Any]
"""A function of the inputs of an op, and of its attrs."""


def _sigmoid(x: Array) -> Array:
    tail = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, tail, np.ones_like(x)) / (1 + tail))


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x), x.dtype)


def _softmax(x: Array) -> Array:
    tops = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(tops / tops.sum(axis=-1, keepdims=True))


def _reduction(reduce: Callable[..., Any]) -> Kernel:
    return lambda x, axes, attrs: reduce(
        x, axis=tuple(np.ravel(axes)), keepdims=bool(attrs["keep_dims"])
    )


def _product(first: str, second: str) -> Kernel:
    def matmul(a: Array, b: Array, attrs: Attrs) -> Array:
        pair = ((a, attrs[first]), (b, attrs[second]))
        return np.asarray(np.matmul(*(np.swapaxes(x, -1, -2) if turn else x for x, turn in pair)))

    return matmul


def _repeated_axes(shape: Array, target: Array) -> Array:
    """Return the axes along which a tensor of this shape is repeated to that of the other."""
    sizes = (1,) * (len(target) - len(shape)) + tuple(shape)
    return np.array([axis for axis, size in enumerate(sizes) if size == 1], np.int32)


def _part_of_vector(x: Array, begin: Array, end: Array, _: Array, attrs: Attrs) -> Array:
    """Return a StridedSlice of a vector, in steps of 1."""
    return np.asarray(x[begin[0] : None if attrs["end_mask"] else end[0]])


_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.7580993408473768

_BY_NAME = (  # numpy calls these as TensorFlow does, in small letters
    "Abs Add Cos Equal Exp Expm1 Floor Greater Greater_Equal Less Less_Equal Log Log1p Logical_And"
    " Logical_Or Maximum Minimum Not_Equal Ones_Like Sign Sin Sqrt Square Tanh Zeros_Like IsFinite"
    " IsNan"
)

_PLAIN: dict[str, Callable[..., Any]] = {
    **{name.replace("_", ""): getattr(np, name.lower()) for name in _BY_NAME.split()},
    "AddV2": np.add,
    "BroadcastArgs": lambda a, b: np.array(np.broadcast_shapes(tuple(a), tuple(b)), np.int32),
    "BroadcastGradientArgs": _repeated_axes,
    "BroadcastTo": lambda x, sizes: np.broadcast_to(x, tuple(sizes)),
    "ConcatV2": lambda arrays, axis: np.concatenate(arrays, int(axis)),
    "Div": np.divide,
    "Elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "EluGrad": lambda dy, y: np.where(y < 0, dy * (y + 1), dy),
    "Erf": _erf,
    "FloorDiv": np.floor_divide,
    "GatherV2": lambda x, indices, axis: np.take(x, indices, int(axis)),
    "Identity": np.asarray,
    "Mul": np.multiply,
    "Neg": np.negative,
    "NthElement": lambda x, n: np.sort(x, axis=-1)[..., int(n)],
    "Pow": np.power,
    "Range": lambda start, stop, step: np.arange(start, stop, step, dtype=np.int32),
    "Rank": lambda x: np.array(x.ndim, np.int32),
    "RealDiv": np.divide,
    "Relu": lambda x: np.maximum(x, np.zeros_like(x)),
    "Relu6": lambda x: np.clip(x, 0, 6),
    "Relu6Grad": lambda dy, x: np.where((x > 0) & (x < 6), dy, np.zeros_like(dy)),
    "ReluGrad": lambda dy, x: np.where(x > 0, dy, np.zeros_like(dy)),
    "Reshape": lambda x, sizes: x.reshape(tuple(sizes)),
    "Round": np.rint,
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "SelectV2": np.where,
    "Selu": lambda x: np.where(x < 0, _SELU_ALPHA * np.expm1(x), _SELU_SCALE * x),
    "SeluGrad": lambda dy, y: dy * np.where(y < 0, y + _SELU_ALPHA, _SELU_SCALE),
    "Shape": lambda x: np.array(x.shape, np.int32),
    "Sigmoid": _sigmoid,
    "SigmoidGrad": lambda y, dy: dy * y * (1 - y),
    "Softmax": _softmax,
    "Softplus": lambda x: np.logaddexp(x, np.zeros_like(x)),
    "SoftplusGrad": lambda dy, x: dy * _sigmoid(x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "SoftsignGrad": lambda dy, x: dy / np.square(1 + np.abs(x)),
    "SquaredDifference": lambda a, b: np.square(a - b),
    "StopGradient": np.asarray,
    "Sub": np.subtract,
    "TanhGrad": lambda y, dy: dy * (1 - y * y),
    "Transpose": lambda x, order: np.transpose(x, tuple(order)),
}
"""The functions of ops without attrs."""

_KERNELS: dict[str, Kernel] = {
    "Any": _reduction(np.any),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2"), _product("adj_x", "adj_y")),
    "Cast": lambda x, attrs: x.astype(np.dtype(attrs["DstT"])),
    "Const": lambda attrs: attrs["value"].array(),
    "LeakyRelu": lambda x, attrs: np.where(x > 0, x, x * attrs["alpha"]),
    "LeakyReluGrad": lambda dy, x, attrs: np.where(x > 0, dy, dy * attrs["alpha"]),
    "MatMul": _product("transpose_a", "transpose_b"),
    "Max": _reduction(np.max),
    "Mean": _reduction(np.mean),
    "Min": _reduction(np.min),
    "Prod": _reduction(np.prod),
    "Split": lambda axis, x, attrs: np.split(x, attrs["num_split"], int(axis)),
    "SparseMatMul": _product("transpose_a", "transpose_b"),
    "StridedSlice": _part_of_vector,
    "Sum": _reduction(np.sum),
}
"""The functions of other ops."""
