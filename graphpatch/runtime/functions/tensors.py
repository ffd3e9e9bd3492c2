"""Tensors and gradients that the functions are given, and the construction that all of them use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from graphpatch.table import plural

BackwardFunction: TypeAlias = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Sequence[Any]]
"""(inputs, outputs, upstream gradients) -> the gradient of each input, or None."""


def with_gradient(
    values: Sequence[Any],
    inputs: Sequence[Any],
    backward: BackwardFunction,
    reads_outputs: bool = False,
) -> list[Any]:
    """Return the values, bit for bit, with `backward` as their gradient by the inputs.

    Nothing flows back to what the values are computed from. With `reads_outputs` the outputs that
    `backward` is given carry the same gradient, so that second derivatives pass through them, too.
    """
    import tensorflow as tf

    count = len(values)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def carry(*tensors: Any) -> Any:
        forward, inputs_read = tensors[:count], tensors[count:]

        def gradient(*upstream: Any) -> list[Any]:
            outputs = (
                with_gradient(forward, inputs_read, backward, True) if reads_outputs else forward
            )
            return [*[None] * count, *backward(inputs_read, outputs, upstream)]

        return tuple(tf.identity(value) for value in forward), gradient

    return list(carry(*(tf.stop_gradient(value) for value in values), *inputs))


Spec: TypeAlias = GradientSpec | Callable[..., Any]


def gradient_meant(function: str, spec: Any) -> Computed:
    """Return the gradient of the library, or the formula, that is meant.

    Raises RulesError for a gradient of another kind, TypeError for what is not one.
    """
    if not isinstance(spec, str | dict):
        taken = 'a gradient as a rules file has it, such as "sign" or {"scale": 0.5}'
        raise wrong_argument(function, taken, spec)
    gradient = parse_gradient(spec)
    if not isinstance(gradient, LibraryGradient | InlineFormula):
        raise RulesError(
            f'{function} takes a gradient of the library, {{"formula": ...}} or a Python '
            f"function, and found {spec!r}, which is for ops of a graph that exists already"
        )
    return gradient


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
        from graphpatch.runtime.gradient_functions import formula_gradients

        count = len(inputs) - len(tensors)
        parameters = dict(zip(tensors, inputs[count:], strict=True))
        dxs = formula_gradients(formula, inputs[:count], outputs, upstream, parameters=parameters)
        return [*dxs, *[None] * len(tensors)]

    return backward


def reads_outputs(formula: Formula) -> bool:
    """Return whether a formula reads what the op gives."""
    return any(name.startswith("y") for name in formula.variables)


def by_python(function: Callable[..., Any]) -> BackwardFunction:
    """Return the gradient of one tensor that a Python function `dy -> dx` computes."""

    def backward(inputs: Sequence[Any], _: Sequence[Any], upstream: Sequence[Any]) -> list[Any]:
        return [checked_gradient(function(upstream[0]), inputs[0])]

    return backward


def checked_gradient(gradient: Any, tensor: Any) -> Any:
    """Return what a Python function returned, as the gradient of a tensor; None stays.

    Raises ValueError where dtype or shape are not those of the tensor.
    """
    import tensorflow as tf

    if gradient is None or isinstance(gradient, tf.IndexedSlices):
        return gradient
    dx = tf.convert_to_tensor(gradient, dtype_hint=tensor.dtype)
    if dx.dtype != tensor.dtype or not dx.shape.is_compatible_with(tensor.shape):
        raise ValueError(
            f"the gradient function returned {dx.dtype.name} {dx.shape}; the gradient of "
            f"this tensor is {tensor.dtype.name} {tensor.shape}"
        )
    return dx


DENSE = "dense tensor"


def as_tensor(function: str, value: Any, hint: Any = None) -> Any:
    """Return the value as a tensor; numbers of Python have the dtype of `hint` where they can.

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


def check_function(function: str, argument: str, value: Any) -> None:
    """Raise TypeError where what is to be a function of tensors cannot be called."""
    if not callable(value):
        raise wrong_argument(f"{function}: {argument}", "a function of tensors", value)


def on_values(change: Callable[..., Any], *tensors: Any) -> Any:
    """`change` of the tensors; of the values of ragged and sparse tensors, whose form is kept."""
    import tensorflow as tf

    first = tensors[0]
    if isinstance(first, tf.RaggedTensor):
        return first.with_flat_values(change(*(tensor.flat_values for tensor in tensors)))
    if isinstance(first, tf.SparseTensor):
        changed = change(*(tensor.values for tensor in tensors))
        return tf.SparseTensor(first.indices, changed, first.dense_shape)
    return change(*tensors)


def in_places_of(function: str, value: Any, like: Any) -> Any:
    """`other`, whose values must stand in the places of those of `value`, ragged or sparse.

    Raises TypeError where one is ragged or sparse and the other is not, ValueError where they are
    nested in other ways. TensorFlow raises InvalidArgumentError where places are found to differ.
    """
    import tensorflow as tf

    kinds = _kind(value), _kind(like)
    if kinds[0] != kinds[1]:
        raise TypeError(f"{function}: the value is a {kinds[0]}, what it counts as a {kinds[1]}")
    places, others = _value_places(value), _value_places(like)
    if len(places) != len(others):
        raise ValueError(
            f"{function}: the value has {plural(len(places), 'ragged dimension')}, what it counts "
            f"as has {len(others)}"
        )
    said = f"{function}: what the value counts as has its values in other places"
    checks = [
        tf.debugging.assert_equal(tf.cast(a, tf.int64), tf.cast(b, tf.int64), message=said)
        for a, b in zip(places, others, strict=True)
        if a is not b
    ]
    with tf.control_dependencies(checks if not tf.executing_eagerly() else []):
        return on_values(tf.identity, like) if checks else like


def _kind(value: Any) -> str:
    import tensorflow as tf

    composite = isinstance(value, tf.RaggedTensor | tf.SparseTensor)
    return type(value).__name__ if composite else DENSE


def _value_places(value: Any) -> list[Any]:
    """Return the tensors that say where the values of a ragged or sparse tensor stand."""
    import tensorflow as tf

    if isinstance(value, tf.RaggedTensor):
        return list(value.nested_row_splits)
    return [value.indices, value.dense_shape] if isinstance(value, tf.SparseTensor) else []


def number_in(value: Any) -> Any:
    """Return the number that a Python or numpy scalar is, None for a tensor or a variable."""
    import numpy as np

    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value if isinstance(value, bool | int | float) else None


def fitting(function: str, name: str, value: Any, tensor: Any) -> Any:
    """Return a parameter that is a tensor, in the dtype of the tensor that it is for.

    Nothing flows back to it. Raises TypeError where it is not a real number, ValueError where its
    shape does not broadcast to that of the tensor.
    """
    import tensorflow as tf

    parameter = as_tensor(function, value, tensor.dtype.real_dtype)
    if not (parameter.dtype.is_floating or parameter.dtype.is_integer):
        raise TypeError(f"{function}: {name} is {parameter.dtype.name}; it must be a real number")
    try:
        fits = tf.broadcast_static_shape(parameter.shape, tensor.shape).is_compatible_with(
            tensor.shape
        )
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{function}: {name} has shape {parameter.shape}, which does not broadcast to that of "
            "the "
            f"tensor, {tensor.shape}"
        )
    return tf.stop_gradient(tf.cast(parameter, tensor.dtype))


@dataclass(eq=False)
class WatchedVariables:
    """The trainable variables that were read while `watching`."""

    function: str
    variables: list[Any] = field(default_factory=list)

    def refuse(self, others: WatchedVariables | None = None) -> None:
        """Raise ValueError where a variable was read that `others` did not read."""
        carried = {variable.ref() for variable in others.variables} if others is not None else set()
        lost = [variable.name for variable in self.variables if variable.ref() not in carried]
        if lost:
            raise ValueError(
                f"{self.function}: the function reads the trainable variable "
                f"{', '.join(map(repr, lost))}, to which no gradient would flow; read it outside "
                f"of the function, as tf.stop_gradient(variable) if it should not be trained; a "
                f"layer of Keras may have trainable=False"
            )


@contextmanager
def watching(function: str, called: Any) -> Iterator[WatchedVariables]:
    """Note the trainable variables that are read, but for those that `called`, a layer, freezes.

    Keras freezes a layer without telling the variables of TensorFlow.
    """
    import tensorflow as tf

    watched = WatchedVariables(function)
    with tf.GradientTape() as tape:
        yield watched
    frozen = {id(_handle(variable)) for variable in getattr(called, "non_trainable_variables", ())}
    watched.variables += [
        variable for variable in tape.watched_variables() if id(_handle(variable)) not in frozen
    ]


def _handle(variable: Any) -> Any:
    """Return what stands for the memory of a variable, whether of Keras or of TensorFlow."""
    inner = getattr(variable, "_value", variable)
    return getattr(inner, "handle", inner)
