"""What the functions are given: tensors that carry a gradient, or an error that says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphpatch.arguments import wrong_argument
from graphpatch.table import plural

DENSE = "dense tensor"


def as_tensor(function: str, value: Any, hint: Any = None) -> Any:
    """The value as a tensor; numbers of Python have the dtype of `hint` where they can.

    Raises TypeError for a symbolic tensor of Keras, for which there are layers, and for one that is
    ragged or sparse.
    """
    import tensorflow as tf

    if type(value).__name__ == "KerasTensor":
        legacy = type(value).__module__.partition(".")[0] == "tf_keras"
        layers = "graphpatch.tf_keras" if legacy else "graphpatch.keras"
        raise TypeError(
            f"{function} takes tensors and found a KerasTensor, which stands for the output of a "
            f"layer; in a functional model use a layer of {layers}"
        )
    if _kind(value) != DENSE:
        raise TypeError(
            f"{function} takes dense tensors here and found a {_kind(value)}; use it on the values "
            f"alone, as tf.ragged.map_flat_values and tf.sparse.map_values do"
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


def check_function(function: str, argument: str, given: Any) -> None:
    """Raise TypeError where what is to be a function of tensors cannot be called."""
    if not callable(given):
        raise wrong_argument(f"{function}: {argument}", "a function of tensors", given)


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


def in_places_of(function: str, value: Any, other: Any) -> Any:
    """`other`, whose values must stand in the places of those of `value`, ragged or sparse.

    Raises TypeError where one is ragged or sparse and the other is not, ValueError where they are
    nested in other ways. TensorFlow raises InvalidArgumentError where places are found to differ.
    """
    import tensorflow as tf

    kinds = _kind(value), _kind(other)
    if kinds[0] != kinds[1]:
        raise TypeError(f"{function}: the value is a {kinds[0]}, what it counts as a {kinds[1]}")
    places, others = _value_places(value), _value_places(other)
    if len(places) != len(others):
        raise ValueError(
            f"{function}: the value has {plural(len(places), 'ragged dimension')}, what it counts "
            f"as has {len(others)}"
        )
    said = f"{function}: what the value counts as has its values in other places"
    checks = [
        tf.debugging.assert_equal(tf.cast(one, tf.int64), tf.cast(two, tf.int64), message=said)
        for one, two in zip(places, others, strict=True)
        if one is not two
    ]
    with tf.control_dependencies(checks if not tf.executing_eagerly() else []):
        return on_values(tf.identity, other) if checks else other


def _kind(value: Any) -> str:
    import tensorflow as tf

    composite = isinstance(value, tf.RaggedTensor | tf.SparseTensor)
    return type(value).__name__ if composite else DENSE


def _value_places(value: Any) -> list[Any]:
    """The tensors that say where the values of a ragged or sparse tensor stand."""
    import tensorflow as tf

    if isinstance(value, tf.RaggedTensor):
        return list(value.nested_row_splits)
    return [value.indices, value.dense_shape] if isinstance(value, tf.SparseTensor) else []


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
