"""What the functions are given: tensors that carry a gradient, or an error that says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def as_tensor(function: str, value: Any, hint: Any = None) -> Any:
    """The value as a tensor; numbers of Python have the dtype of `hint` where they can.

    Raises TypeError for a symbolic tensor of Keras, for which there are layers.
    """
    import tensorflow as tf

    if type(value).__name__ == "KerasTensor":
        raise TypeError(
            f"{function} takes tensors and found a KerasTensor, which stands for the output of a "
            f"layer; in a functional model use a layer of graphpatch.keras"
        )
    return tf.convert_to_tensor(value, dtype_hint=hint)


def carrying(function: str, value: Any, complex_too: bool = False) -> Any:
    """The value as a tensor of a dtype that carries a gradient. Raises TypeError for others."""
    tensor = as_tensor(function, value)
    dtype = tensor.dtype.base_dtype
    if not (dtype.is_floating or (dtype.is_complex and complex_too)):
        legal = "floating or complex" if complex_too else "floating"
        raise TypeError(
            f"{function} takes a {legal} tensor and found {dtype.name}, which carries no gradient"
            f"{' that it can compare or clip' if dtype.is_complex else ''}"
        )
    return tensor


def on_values(change: Callable[..., Any], *tensors: Any) -> Any:
    """`change` of the tensors; of the values of ragged and sparse tensors, whose form is kept."""
    import tensorflow as tf

    first = tensors[0]
    if isinstance(first, tf.RaggedTensor):
        return first.with_flat_values(change(*(one.flat_values for one in tensors)))
    if isinstance(first, tf.SparseTensor):
        found = change(*(one.values for one in tensors))
        return tf.SparseTensor(first.indices, found, first.dense_shape)
    return change(*tensors)


def number_in(value: Any) -> Any:
    """The number that a Python or numpy scalar is, None for a tensor or a variable."""
    import numpy as np

    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value if isinstance(value, bool | int | float) else None


def fitting(function: str, name: str, value: Any, tensor: Any) -> Any:
    """A parameter that is a tensor, in the dtype of the tensor that it is for.

    Nothing flows back to it. Raises TypeError where it is not a real number, ValueError where its
    shape does not broadcast to that of the tensor.
    """
    import tensorflow as tf

    found = as_tensor(function, value, tensor.dtype.real_dtype)
    if not (found.dtype.is_floating or found.dtype.is_integer):
        raise TypeError(f"{function}: {name} is {found.dtype.name}; it must be a real number")
    try:
        fits = tf.broadcast_static_shape(found.shape, tensor.shape).is_compatible_with(tensor.shape)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{function}: {name} has shape {found.shape}, which does not broadcast to that of the "
            f"tensor, {tensor.shape}"
        )
    return tf.stop_gradient(tf.cast(found, tensor.dtype))
