"""Calls on plain numbers, computed before there is a tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphpatch.gradients.expression import Call, Expression, Literal, ParameterRef, Scalar
from graphpatch.gradients.functions import Function, look_up
from graphpatch.gradients.syntax import parse_formula

_QUICK: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "-x": operator.neg,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}

"""What Python does as IEEE 754 has it, without waiting for numpy to be imported."""


def fold(function: Function, operands: Sequence[Scalar]) -> Scalar:
    """The value of a function or operator on numbers and booleans, in double precision."""
    quick = _QUICK.get(function.name)
    if quick is not None:
        return _as_number(quick(*map(float, operands)))
    import numpy as np

    from graphpatch.gradients.numpy_functions import numpy_function

    arrays = [np.asarray(value if isinstance(value, bool) else float(value)) for value in operands]
    with np.errstate(all="ignore"):
        return _as_number(numpy_function(function.numpy)(*arrays).item())


def _as_number(value: Any) -> Scalar:
    return value if isinstance(value, bool) else float(value)


def condition_holds(condition: str, values: Mapping[str, Scalar]) -> bool:
    """Whether a condition of the formula language is true of these parameters."""
    return _folded(parse_formula(condition, values), values) is True


def _folded(expression: Expression, values: Mapping[str, Scalar]) -> Scalar:
    if isinstance(expression, Call):
        operands = [_folded(part, values) for part in expression.arguments]
        return fold(look_up(expression.function), operands)
    if isinstance(expression, ParameterRef):
        return values[expression.name]
    if isinstance(expression, Literal):
        return expression.value
    raise TypeError(f"{expression} is not a plain number")
