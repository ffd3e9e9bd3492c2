"""A formula in numpy: the reference that the other forms are compared with.

It reads the parsed formula itself and shares no code with the TensorFlow forms but the table of
functions, so that a mistake in one does not hide in the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from graphpatch.errors import FormulaError
from graphpatch.gradients import numpy_ops, options
from graphpatch.gradients.constants import FLOATS
from graphpatch.gradients.expression import (
    Call,
    Expression,
    Literal,
    NumberList,
    ParameterRef,
    Scalar,
    Variable,
)
from graphpatch.gradients.folding import fold
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.functions import OF_THE_OP, SINGLE, look_up
from graphpatch.gradients.numpy_functions import Array, numpy_function, sum_like
from graphpatch.gradients.tensors import ConstantTensor
from graphpatch.gradients.tokens import formula_error

Operand: TypeAlias = Scalar | Array


@dataclass(frozen=True, slots=True)
class FormulaOp:
    """The op that a formula is for, and the input whose gradient it is."""

    type: str
    place: int
    inputs: Sequence[Array]
    attrs: Mapping[str, Any]

    def at(self, given: Sequence[Array]) -> list[Array]:
        """These inputs, the op's own where fewer are given."""
        return [*given, *self.inputs[len(given) :]]


def numpy_gradient(
    formula: Formula,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    upstream: Sequence[Array],
    attrs: Mapping[str, Any] | None = None,
    op_type: str = "",
) -> list[Array | None]:
    """The dx of each input array, of its shape and dtype, or None.

    Arrays of bfloat16 are those of the package ml_dtypes. Raises FormulaError where the formula
    reads what is not there; it leaves further checks to the form that is written to files.
    `op_type` is that of the op, which `forward` and `own` compute.
    """
    variables = {f"x{place}": value for place, value in enumerate(inputs)}
    variables |= {f"y{place}": value for place, value in enumerate(outputs)}
    variables |= {f"dy{place}": value for place, value in enumerate(upstream)}
    values = dict(formula.values)
    default = next((dy.dtype for dy in upstream if dy.dtype.name in FLOATS), None)
    results: list[Array | None] = []
    for place, like in enumerate(inputs):
        at = 0 if formula.alike else place
        text, expression = formula.texts[at], formula.expressions[at]
        if text is None or expression is None or like.dtype.name not in FLOATS:
            results.append(None)
            continue
        op = FormulaOp(op_type, place, inputs, attrs or {})
        found = evaluate(expression, text, variables, values, attrs or {}, default, op)
        results.append(_fitted(found, like))
    return results


def evaluate(
    expression: Expression,
    text: str,
    variables: Mapping[str, Array],
    values: Mapping[str, Scalar | ConstantTensor],
    attrs: Mapping[str, Any],
    default: Any = np.float64,
    op: FormulaOp | None = None,
) -> Operand:
    """The array, or the plain number or boolean, that an expression is.

    `default` is the dtype of a `where` between plain numbers, and of tensors of the rule.
    """
    done: dict[int, Operand] = {}

    def value_of(part: Expression) -> Operand:
        if isinstance(part, Call):
            if id(part) not in done:
                done[id(part)] = _call(part, text, value_of, default, op)
            return done[id(part)]
        if isinstance(part, Literal):
            return part.value
        if isinstance(part, NumberList):
            raise formula_error(text, part.column, "a list stands only in axes=, perm= and gather")
        known: Mapping[str, Any] = (
            variables
            if isinstance(part, Variable)
            else values
            if isinstance(part, ParameterRef)
            else attrs
        )
        if part.name not in known:
            raise formula_error(
                text, part.column, f"there is no {part.name}; there is: {', '.join(known)}"
            )
        value = known[part.name]
        found: Operand = (
            value.array().astype(default) if isinstance(value, ConstantTensor) else value
        )
        return found

    with np.errstate(all="ignore"):
        return value_of(expression)


def _call(call: Call, text: str, value_of: Any, default: Any, op: FormulaOp | None) -> Operand:
    function = look_up(call.function)
    if function.name == "where":
        condition = value_of(call.arguments[0])
        if isinstance(condition, bool):
            return value_of(call.arguments[1 if condition else 2])  # type: ignore[no-any-return]
    kinds = function.kinds_of(len(call.arguments))
    operands: list[Any] = [
        np.array(options.integers(text, argument, value_of))
        if isinstance(argument, NumberList)
        else value_of(argument)
        for argument in call.arguments
    ]
    if function.name in OF_THE_OP:
        return _of_the_op(call, text, operands, op)
    given = options.option_values(text, call, value_of)
    if not function.options and not any(isinstance(operand, np.ndarray) for operand in operands):
        return fold(function, operands)
    computed = [
        operand
        for kind, operand in zip(kinds, operands, strict=True)
        if kind in ("number", "tensor") and isinstance(operand, np.ndarray)
    ]
    dtype = computed[0].dtype if computed else np.dtype(default)
    if any(operand.dtype != dtype for operand in computed) or dtype.name not in FLOATS:
        found = ", ".join(sorted({operand.dtype.name for operand in computed}))
        raise formula_error(
            text, call.column, f"{function.name!r} meets {found}; write: cast_like(...)"
        )
    wide = np.dtype(function.wide.get(dtype.name, dtype))
    arrays = [
        _as_array(operand, dtype).astype(wide)
        if kind in ("number", "tensor")
        else np.asarray(operand)
        for kind, operand in zip(kinds, operands, strict=True)
    ]
    result = np.asarray(numpy_function(function.numpy)(*arrays, **given))
    return result.astype(dtype) if result.dtype == wide else result


def _of_the_op(call: Call, text: str, operands: Sequence[Any], op: FormulaOp | None) -> Array:
    if call.function in numpy_ops.NUMPY_WINDOWS:
        return numpy_ops.numpy_windowed(call.function, operands, op.attrs if op is not None else {})
    if op is None or not op.type:
        raise formula_error(text, call.column, f"{call.function} needs one op, and there is none")
    if call.function == "forward":
        return numpy_ops.numpy_op_forward(op.type, op.at(operands), op.attrs)
    return numpy_ops.numpy_op_gradient(
        op.type, op.place, operands[0], op.at(operands[1:]), op.attrs
    )


def _as_array(operand: Operand, dtype: Any) -> Array:
    return np.asarray(operand, dtype=dtype)


def _fitted(found: Operand, like: Array) -> Array:
    """The result in the dtype of the input, summed down or repeated to its shape."""
    value = _as_array(found, None if isinstance(found, np.ndarray) else like.dtype)
    try:
        shape = np.broadcast_shapes(value.shape, like.shape)
    except ValueError:
        raise FormulaError(f"a gradient of shape {value.shape} for {like.shape}") from None
    wide = SINGLE.get(value.dtype.name, value.dtype)
    total = sum_like(np.broadcast_to(value, shape).astype(wide), like)
    return total.astype(value.dtype).astype(like.dtype)
