"""What the functions take as a gradient: a spec of a rules file, or a Python function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from graphpatch.arguments import wrong_argument
from graphpatch.errors import RulesError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.program import gradient_ops
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.spec import (
    Computed,
    GradientSpec,
    InlineFormula,
    LibraryGradient,
    parse_gradient,
)
from graphpatch.runtime.functions.with_gradient import BackwardFunction

Spec: TypeAlias = GradientSpec | Callable[..., Any]


def gradient_meant(function: str, spec: Any) -> Computed:
    """The gradient of the library, or the formula, that is meant.

    Raises RulesError for a gradient of another kind, TypeError for what is not one.
    """
    if not isinstance(spec, str | dict):
        taken = 'a gradient as a rules file has it, such as "sign" or {"scale": 0.5}'
        raise wrong_argument(function, taken, spec)
    found = parse_gradient(spec)
    if not isinstance(found, LibraryGradient | InlineFormula):
        raise RulesError(
            f'{function} takes a gradient of the library, {{"formula": ...}} or a Python '
            f"function, and found {spec!r}, which is for ops of a graph that exists already"
        )
    return found


@functools.lru_cache
def check_filter(formula: Formula, dtype: str, tensors: tuple[str, ...] = ()) -> None:
    """Raise FormulaError where a formula does not suit one tensor of this dtype.

    `tensors` are those of its parameters that are tensors.
    """
    more = [(f"x{place}", dtype) for place in range(1, 1 + len(tensors))]
    signature = Signature.of([("x0", dtype), *more], [("y0", dtype)], same_shape=True)
    gradient_ops(formula.with_parameter_inputs(1, tensors), signature)


def by_formula(formula: Formula, tensors: Sequence[str] = ()) -> BackwardFunction:
    """The gradient that a formula computes; the last inputs are the parameters in `tensors`."""

    def backward(
        inputs: Sequence[Any], outputs: Sequence[Any], upstream: Sequence[Any]
    ) -> Sequence[Any]:
        from graphpatch.runtime.formula_in_tensorflow import formula_gradients

        count = len(inputs) - len(tensors)
        given = dict(zip(tensors, inputs[count:], strict=True))
        found = formula_gradients(formula, inputs[:count], outputs, upstream, given=given)
        return [*found, *[None] * len(tensors)]

    return backward


def reads_outputs(formula: Formula) -> bool:
    """Whether a formula reads what the op gives."""
    return any(name.startswith("y") for name in formula.variables)


def by_python(function: Callable[..., Any]) -> BackwardFunction:
    """The gradient of one tensor that a Python function `dy -> dx` computes."""

    def backward(inputs: Sequence[Any], _: Sequence[Any], upstream: Sequence[Any]) -> list[Any]:
        return [checked_gradient(function(upstream[0]), inputs[0])]

    return backward


def checked_gradient(gradient: Any, tensor: Any) -> Any:
    """What a Python function returned, as the gradient of a tensor; None stays.

    Raises ValueError where dtype or shape are not those of the tensor.
    """
    import tensorflow as tf

    if gradient is None or isinstance(gradient, tf.IndexedSlices):
        return gradient
    found = tf.convert_to_tensor(gradient, dtype_hint=tensor.dtype)
    if found.dtype != tensor.dtype or not found.shape.is_compatible_with(tensor.shape):
        raise ValueError(
            f"the gradient function returned {found.dtype.name} {found.shape}; the gradient of "
            f"this tensor is {tensor.dtype.name} {tensor.shape}"
        )
    return found
