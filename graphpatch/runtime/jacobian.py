"""The full Jacobian of some tensors by others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphpatch.errors import CutError
from graphpatch.runtime.tf_gradients import gradients

if TYPE_CHECKING:
    import tensorflow as tf

# What TensorFlow raises where it cannot vectorize an op.
NOT_VECTORIZED = (ValueError, NotImplementedError, TypeError)


@dataclass(frozen=True, eq=False)
class Jacobian:
    """The derivative of each element of `of` by each of `by`, of shape `of_shape + by_shape`."""

    of: str
    by: str
    of_shape: tuple[int, ...]
    by_shape: tuple[int, ...]
    tensor: tf.Tensor = field(repr=False)


def jacobians(graph: Any, of: Sequence[str], by: Sequence[str]) -> dict[tuple[str, str], Jacobian]:
    """The Jacobian of each tensor `of` by each `by`, those of `by` held fixed against each other.

    One gradient is taken for all elements at once (tf.vectorized_map); where TensorFlow cannot
    do that for an op, one after the other. Raises CutError where a shape is not known.
    """
    shapes = {name: _shape_run(graph, name) for name in (*of, *by)}
    xs = [graph.get_tensor_by_name(name) for name in by]
    blocks = {}
    for target in of:
        rows = _gradient_rows(graph.get_tensor_by_name(target), xs, [shapes[name] for name in by])
        for name, tensor in zip(by, rows, strict=True):
            blocks[target, name] = _jacobian(target, name, shapes, tensor)
    return blocks


def _jacobian(of: str, by: str, shapes: dict[str, tuple[int, ...]], rows: Any) -> Jacobian:
    import tensorflow as tf

    shape = (*shapes[of], *shapes[by])
    return Jacobian(of, by, shapes[of], shapes[by], tf.reshape(rows, shape))


def _gradient_rows(y: Any, xs: list[Any], shapes: list[tuple[int, ...]]) -> list[Any]:
    """For each of `xs` the gradients of the elements of y, one below the other."""
    import tensorflow as tf

    flat = tf.reshape(y, [-1])

    def row(place: Any) -> list[Any]:
        row_gradients = gradients([tf.gather(flat, place)], xs, apart=True)
        return [
            tf.zeros(shape, y.dtype) if dx is None else tf.convert_to_tensor(dx)
            for dx, shape in zip(row_gradients, shapes, strict=True)
        ]

    count = int(flat.shape[0])
    try:
        return list(tf.vectorized_map(row, tf.range(count), fallback_to_while_loop=False))
    except NOT_VECTORIZED:
        rows = [row(place) for place in range(count)]
        return [tf.stack(column) for column in zip(*rows, strict=True)]


def _shape_run(graph: Any, name: str) -> tuple[int, ...]:
    import tensorflow as tf

    tensor = graph.get_tensor_by_name(name)
    shape = tensor.shape
    if tensor.dtype == tf.resource:
        shape = tf.TensorShape(tensor.op.get_attr("shape"))
    if not shape.is_fully_defined():
        raise CutError(
            f"the shape of {name} is {shape}: a Jacobian needs shapes that are known; without "
            f"jacobian=True the gradients do not"
        )
    return tuple(shape.as_list())
