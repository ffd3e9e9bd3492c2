"""The gradient function of a surrogate: TensorFlow differentiates a formula of the op's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphpatch.gradients.formula import Formula
from graphpatch.gradients.gradient import Gradients
from graphpatch.gradients.lowering import Lowering
from graphpatch.gradients.program import Program
from graphpatch.runtime.formula import GradientFunction, op_attrs, result_values, signature_of
from graphpatch.runtime.gradients import gradients


def surrogate_gradient(formula: Formula) -> GradientFunction:
    """The gradient function (op, dy) -> [dx...] of an op that counts as `formula` backward.

    The formula is computed where the gradient is asked for, of the op's inputs, in the dtype and
    shape of its output, and TensorFlow differentiates it there. None for an input that the
    formula does not read, or through which nothing flows.
    """

    def gradient(op: Any, dy: Any) -> list[Any]:
        import tensorflow as tf

        inputs = [tf.identity(tensor) for tensor in op.inputs]
        value = _value(formula, op, inputs)
        if not _same_shape(value, op.outputs[0]):
            value = tf.broadcast_to(value, tf.shape(op.outputs[0]))
        return gradients([value], inputs, [tf.convert_to_tensor(dy)])

    return gradient


def _value(formula: Formula, op: Any, inputs: Sequence[Any]) -> Any:
    """The formula of these tensors, in the dtype of the op's output."""
    signature = signature_of(inputs, op.outputs, op_attrs(formula, op))
    text, expression = formula.texts[0], formula.expressions[0]
    assert text is not None, "a surrogate is one formula"
    assert expression is not None, "a surrogate is one formula"
    dtype, program = op.outputs[0].dtype.base_dtype.name, Program()
    number = Lowering(program, signature, dict(formula.values), text).number(expression, dtype)
    arguments = {f"x{place}": tensor for place, tensor in enumerate(inputs)}
    found = Gradients(program, (program.cast(number, dtype),))
    return result_values(found, arguments)[0]


def _same_shape(one: Any, other: Any) -> bool:
    return bool(one.shape.is_fully_defined()) and bool(one.shape == other.shape)
