"""The gradient function that a key of ours means, as TensorFlow takes it for registration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphpatch.dtypes import DIFFERENTIABLE
from graphpatch.gradients.composed import (
    ComposedGradient,
    GradientLayer,
    composed_gradient,
    python_of,
    surrogate_of,
)
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.program import formula_ops
from graphpatch.gradients.spec import (
    KEY_PREFIX,
    DefaultGradient,
    Gradient,
    PythonGradient,
    RegisteredKey,
    from_key,
)
from graphpatch.runtime.formula_in_tensorflow import (
    GradientFunction,
    formula_gradients,
    op_attrs,
    result_values,
    signature_of,
    tensorflow_gradient,
)
from graphpatch.runtime.tf_gradients import gradients


def gradient_of(key: str, allow_python: bool = False) -> GradientFunction | None:
    """The gradient function (op, *dy) -> [dx...] that a key of ours means; None for other keys.

    A function in Python is one only with `allow_python`, as its module is imported.
    """
    if not key.startswith(KEY_PREFIX):
        return None
    whole = composed_gradient(key)
    if whole.own != key:
        return _composed_gradient(whole, allow_python)
    formula = surrogate_of(key)
    if formula is not None:
        return surrogate_gradient(formula)
    path = python_of(key)
    if path is not None:
        from graphpatch.runtime.trace import gradient_at

        return gradient_at(path) if allow_python else None
    found = from_key(key)
    return None if found is None else tensorflow_gradient(found.formula)


def registered_gradient(key: str) -> GradientFunction | None:
    """The gradient function that TensorFlow has under a key; None where nothing flows back.

    Raises LookupError where nobody registered the key.
    """
    from tensorflow.python.framework import ops

    found: GradientFunction | None = ops.gradient_registry.lookup(key)
    return found


def _composed_gradient(whole: ComposedGradient, allow_python: bool) -> GradientFunction | None:
    own = gradient_of(whole.own, allow_python)
    if own is None and whole.own.startswith(KEY_PREFIX):
        return None  # in Python, and not allowed

    def gradient(op: Any, *upstream: Any) -> list[Any]:
        found = list(upstream)
        for layer in whole.outputs:
            found = _filtered_gradients(layer, op.outputs, found)
        found = _own_gradient(own or registered_gradient(whole.own), op, found)
        for layer in whole.inputs:
            found = _filtered_gradients(layer, op.inputs, found)
        return found

    return gradient


def _own_gradient(function: GradientFunction | None, op: Any, upstream: list[Any]) -> list[Any]:
    """What the op's gradient makes of the upstream gradients, for each input."""
    if function is None or all(dy is None for dy in upstream):
        return [None] * len(op.inputs)
    return as_list(function(op, *upstream))


def as_list(found: Any) -> list[Any]:
    """The gradients of all inputs: of one input a gradient function may give it alone."""
    return list(found) if isinstance(found, list | tuple) else [found]


def _filtered_gradients(
    layer: GradientLayer, tensors: Sequence[Any], flowing: list[Any]
) -> list[Any]:
    """The gradients at these tensors, those at which the filter is put through it."""
    return [
        _filtered(layer.gradient, tensor, dy)
        if dy is not None and layer.holds(place) and tensor.dtype.base_dtype.name in DIFFERENTIABLE
        else dy
        for place, (tensor, dy) in enumerate(zip(tensors, flowing, strict=True))
    ]


def _filtered(gradient: Gradient | None, tensor: Any, dy: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, RegisteredKey | PythonGradient):
        return _by_identity(gradient, tensor, dy)
    assert not isinstance(gradient, DefaultGradient), "it is not a filter"
    return formula_gradients(gradient.formula, [tensor], [tensor], [dy])[0]


def _by_identity(gradient: RegisteredKey | PythonGradient, tensor: Any, dy: Any) -> Any:
    """What a gradient function makes of dy, as the gradient of an Identity of the tensor."""
    import tensorflow as tf

    if isinstance(gradient, RegisteredKey):
        function = registered_gradient(gradient.key)
    else:
        from graphpatch.runtime.trace import gradient_at

        function = gradient_at(gradient.path)
    return None if function is None else as_list(function(tf.identity(tensor).op, dy))[0]


def surrogate_gradient(formula: Formula) -> GradientFunction:
    """The gradient function (op, dy) -> [dx...] of an op that counts as `formula` backward.

    The formula is computed where the gradient is asked for, of the op's inputs, in the dtype and
    shape of its output, and TensorFlow differentiates it there. None for an input that the
    formula does not read, or through which nothing flows.
    """

    def gradient(op: Any, dy: Any) -> list[Any]:
        import tensorflow as tf

        inputs = [tf.identity(tensor) for tensor in op.inputs]
        value = _formula_value(formula, op, inputs)
        if not (value.shape.is_fully_defined() and value.shape == op.outputs[0].shape):
            value = tf.broadcast_to(value, tf.shape(op.outputs[0]))
        return gradients([value], inputs, [tf.convert_to_tensor(dy)])

    return gradient


def _formula_value(formula: Formula, op: Any, inputs: Sequence[Any]) -> Any:
    """The formula of these tensors, in the dtype of the op's output."""
    signature = signature_of(inputs, op.outputs, op_attrs(formula, op))
    arguments = {f"x{place}": tensor for place, tensor in enumerate(inputs)}
    dtype = op.outputs[0].dtype.base_dtype.name
    return result_values(formula_ops(formula, signature, dtype), arguments)[0]
