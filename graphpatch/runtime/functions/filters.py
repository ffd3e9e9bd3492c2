"""Functions that return their tensor as it is, and change the gradient that flows back to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.spec import LibraryGradient
from graphpatch.runtime.functions.tensors import (
    BackwardFunction,
    Spec,
    by_formula,
    by_python,
    carrying,
    check_filter,
    fitting,
    gradient_meant,
    number_in,
    on_values,
    reads_outputs,
    with_gradient,
)
from graphpatch.runtime.unconverted import unconverted

# Gradients that give the same whether slices are added up before or after: G(a + b) = G(a) + G(b).
_ADDITIVE = frozenset({"scale", "reverse", "identity", "straight_through"})


def clip_gradient(x: Any, min: Any, max: Any) -> Any:
    """Return `x` unchanged; clip each element of the gradient that flows back to it.

    Forward: `x`, bit for bit. Backward: `minimum(maximum(dy, min), max)`, of the shape and dtype of
    `x`. Infinities end at the bounds, NaN stays NaN. The second derivative is 1 where `dy` lies
    within the bounds, and 0 elsewhere.

    Args:
        x: A floating tensor of any shape; a variable, a ragged or a sparse tensor, too.
        min: The lower bound: a number, or a tensor or variable whose shape broadcasts to that of
            `x`. No gradient flows to it.
        max: The upper bound, likewise.

    Raises:
        TypeError: `x` is not a floating tensor.
        RulesError: A bound is NaN, or `min` is above `max` (numbers only: tensors are not checked).
        ValueError: A bound does not broadcast to the shape of `x`.

    When not to use it: to keep the direction of the gradient use
    `filter_gradient(x, {"clip_by_norm": 1.0})`.

    Example:
        >>> x = tf.Variable([1.0, 2.0])
        >>> with tf.GradientTape() as tape:
        ...     y = 3.0 * graphpatch.clip_gradient(x, -1.0, 1.0)
        >>> tape.gradient(y, x).numpy()
        array([1., 1.], dtype=float32)
    """
    return library_gradient("clip_gradient", x, "clip", {"min": min, "max": max})


def scale_gradient(x: Any, factor: Any) -> Any:
    """Return `x` unchanged; multiply the gradient that flows back to it by `factor`.

    Forward: `x`, bit for bit. Backward: `factor * dy`, of the shape and dtype of `x`. It is linear
    in `dy`, so its second derivative is `factor`. Slices (tf.IndexedSlices) stay slices.

    Args:
        x: A floating or complex tensor of any shape; a variable, a ragged or a sparse tensor, too.
        factor: A number, or a real tensor or variable whose shape broadcasts to that of `x`. No
            gradient flows to it.

    Raises:
        TypeError: `x` is neither a floating nor a complex tensor.
        RulesError: `factor` is a number that is not finite.
        ValueError: `factor` does not broadcast to the shape of `x`.

    When not to use it: before an optimizer such as Adam, whose steps do not depend on the scale.

    Example:
        >>> x = tf.Variable([1.0, 2.0])
        >>> with tf.GradientTape() as tape:
        ...     y = 3.0 * graphpatch.scale_gradient(x, 0.5)
        >>> tape.gradient(y, x).numpy()
        array([1.5, 1.5], dtype=float32)
    """
    return library_gradient("scale_gradient", x, "scale", {"factor": factor}, complex_too=True)


def reverse_gradient(x: Any, strength: Any = 1.0) -> Any:
    """Return `x` unchanged; reverse the gradient that flows back to it.

    Forward: `x`, bit for bit. Backward: `-strength * dy`, of the shape and dtype of `x`. It is
    linear in `dy`, so its second derivative is `-strength`. Slices (tf.IndexedSlices) stay slices.

    Args:
        x: A floating or complex tensor of any shape; a variable, a ragged or a sparse tensor, too.
        strength: A number that is not negative, or a real tensor or variable, such as a schedule,
            whose shape broadcasts to that of `x`. No gradient flows to it. Default: 1.

    Raises:
        TypeError: `x` is neither a floating nor a complex tensor.
        RulesError: `strength` is a number that is negative or not finite.
        ValueError: `strength` does not broadcast to the shape of `x`.

    When not to use it: where the two parts are trained in turns; minimise the negative loss there.

    Example:
        >>> x = tf.Variable([1.0, 2.0])
        >>> with tf.GradientTape() as tape:
        ...     y = 3.0 * graphpatch.reverse_gradient(x, strength=0.5)
        >>> tape.gradient(y, x).numpy()
        array([-1.5, -1.5], dtype=float32)
    """
    return library_gradient(
        "reverse_gradient", x, "reverse", {"strength": strength}, complex_too=True
    )


@unconverted
def filter_gradient(x: Any, spec: Spec) -> Any:
    """Return `x` unchanged; pass the gradient that flows back to it through `spec`.

    Forward: `x`, bit for bit. Backward: what `spec` computes of the upstream gradient `dy`, of the
    shape and dtype of `x`. Second derivatives are those of the formula.

    Args:
        x: A floating tensor of any shape; a variable, a ragged or a sparse tensor, too.
        spec: A gradient as a rules file has it: a name of the library (`"sign"`), a name with
            parameters (`{"clip_by_norm": 1.0}`), a formula of `dy` and `x`
            (`{"formula": "where(x > 0, dy, 0)"}`); or a Python function `dy -> dx`, which gives a
            tensor of the shape and dtype of `dy`, or None.

    Raises:
        TypeError: `x` is not a floating tensor.
        RulesError: There is no such gradient, a parameter is wrong, or it is one that only a rules
            file can name (`"default"`, an op type, `{"registered": ...}`, `{"python": ...}`).
        FormulaError: The formula is not valid, or does not suit one tensor.
        ValueError: When the gradient is taken: that of the Python function has another shape.

    When not to use it: for the gradient of a function of several tensors; `override_gradient` is.

    Example:
        >>> x = tf.Variable([-1.0, 2.0])
        >>> with tf.GradientTape() as tape:
        ...     y = 3.0 * graphpatch.filter_gradient(x, {"formula": "where(x > 0, dy, 0)"})
        >>> tape.gradient(y, x).numpy()
        array([0., 3.], dtype=float32)
    """
    if callable(spec):
        backward, formula, additive = by_python(spec), None, False
    else:
        gradient = gradient_meant("filter_gradient", spec)
        backward, formula = by_formula(gradient.formula), gradient.formula
        additive = isinstance(gradient, LibraryGradient) and gradient.name in _ADDITIVE

    def on_tensor(value: Any) -> Any:
        tensor = carrying("filter_gradient", value)
        if formula is not None:
            check_filter(formula, tensor.dtype.base_dtype.name)
        reads = formula is not None and reads_outputs(formula)
        return _put(tensor, [], backward, additive, reads)

    return on_values(on_tensor, x)


def _put(
    tensor: Any,
    more: Sequence[Any],
    backward: BackwardFunction,
    additive: bool,
    reads: bool = False,
) -> Any:
    """Return the tensor as it is, with a gradient that may read `more`, to which nothing flows."""

    def dense_or_slices(
        inputs: Sequence[Any], outputs: Sequence[Any], upstream: Sequence[Any]
    ) -> Sequence[Any]:
        import tensorflow as tf

        [dy] = upstream
        if not isinstance(dy, tf.IndexedSlices):
            return backward(inputs, outputs, upstream)
        if not additive:
            return backward(inputs, outputs, [tf.convert_to_tensor(dy)])
        values = [dy.values]
        filtered, *none = backward([*values, *inputs[1:]], values, values)
        return [tf.IndexedSlices(filtered, dy.indices, dy.dense_shape), *none]

    return with_gradient([tensor], [tensor, *more], dense_or_slices, reads)[0]


@unconverted
def library_gradient(
    function: str, x: Any, name: str, parameters: Mapping[str, Any], complex_too: bool = False
) -> Any:
    """Return the filter of the library, with parameters that are numbers or tensors."""
    numbers = {
        key: number for key, value in parameters.items() if (number := number_in(value)) is not None
    }
    tensors = {key: value for key, value in parameters.items() if key not in numbers}
    formula = LIBRARY[name].partly(numbers)

    def on_tensor(value: Any) -> Any:
        tensor = carrying(function, value, complex_too)
        fixed = {
            key: fitting(function, key, parameter, tensor) for key, parameter in tensors.items()
        }
        if tensor.dtype.is_complex:
            backward = _complex(name, numbers)
        else:
            backward = by_formula(formula, list(fixed))
            check_filter(formula, tensor.dtype.base_dtype.name, tuple(fixed))
        additive = name in _ADDITIVE and all(parameter.shape == () for parameter in fixed.values())
        return _put(tensor, list(fixed.values()), backward, additive)

    return on_values(on_tensor, x)


def _complex(name: str, numbers: Mapping[str, float]) -> BackwardFunction:
    """`scale` and `reverse` of complex tensors, of which formulas know nothing."""

    def backward(inputs: Sequence[Any], _: Sequence[Any], upstream: Sequence[Any]) -> list[Any]:
        import tensorflow as tf

        [factor] = numbers.values() or inputs[1:]
        scaled = upstream[0] * tf.convert_to_tensor(factor, upstream[0].dtype)
        return [-scaled if name == "reverse" else scaled, *[None] * len(inputs[1:])]

    return backward
