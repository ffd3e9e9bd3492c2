"""Functions on tensors for programs that build a model: forward a value, backward another one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar

import numpy as np

from graphpatch.errors import RulesError, wrong_argument
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.spec import (
    Computed,
    GradientSpec,
    InlineFormula,
    LibraryGradient,
    parse_gradient,
)
from graphpatch.runtime import tf
from graphpatch.runtime.gradient_functions import (
    GradientFunction,
    as_list,
    check_formula,
    dtypes_of,
    tensorflow_gradient,
)
from graphpatch.runtime.graph_run import require_tensorflow

Spec: TypeAlias = GradientSpec | Callable[..., Any]
# Gradients that give the same whether slices are added up before or after: G(a + b) = G(a) + G(b).
_ADDITIVE = frozenset({"scale", "reverse", "identity", "straight_through"})
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

# What AutoGraph looks for on a function: it calls one that has it, and converts any other.
AUTOGRAPH_INFO = "autograph_info__"


def unconverted(function: Decorated) -> Decorated:
    """Return the function, which runs as it is in a tf.function; functions that it is given do not.

    Those are converted as far as the tf.function asks for it: they are the user's. TensorFlow is
    imported when the function is called, not before.
    """

    @functools.wraps(function)
    def called(*args: Any, **keywords: Any) -> Any:
        require_tensorflow(f"{function.__name__} works on graphs of")
        args = tuple(map(_as_asked, args))
        return tf.autograph.experimental.do_not_convert(function)(*args, **keywords)

    setattr(called, AUTOGRAPH_INFO, {})
    return called  # type: ignore[return-value]


def _as_asked(argument: Any) -> Any:
    autograph = tf.__internal__.autograph
    context = autograph.control_status_ctx()
    if context.status.name != "ENABLED" or not inspect.isroutine(argument):
        return argument
    return autograph.tf_convert(argument, context)


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
        return _filtered("filter_gradient", x, spec)
    meant = gradient_meant("filter_gradient", spec)
    is_additive = isinstance(meant, LibraryGradient) and meant.name in _ADDITIVE
    return _filtered("filter_gradient", x, meant.formula, is_additive=is_additive)


@unconverted
def library_gradient(
    function: str, x: Any, name: str, parameters: Mapping[str, Any], complex_too: bool = False
) -> Any:
    """Return the filter of the library, with parameters that are numbers or tensors."""
    scalars = ((key, number_in(value)) for key, value in parameters.items())
    numbers = {key: number for key, number in scalars if number is not None}
    formula = LIBRARY[name].partly(numbers)
    tensors = {key: value for key, value in parameters.items() if key not in numbers}
    return _filtered(function, x, formula, tensors, name in _ADDITIVE, complex_too)


def _filtered(
    function: str,
    x: Any,
    spec: Formula | Callable[[Any], Any],
    parameters: Mapping[str, Any] | None = None,
    is_additive: bool = False,
    complex_too: bool = False,
) -> Any:
    """Return a value as it is; what flows back passes a formula, or a function of dy.

    `parameters` are those of the formula that are tensors, to which nothing flows.
    """

    def on_tensor(value: Any) -> Any:
        tensor, named = carrying(function, value, complex_too), parameters or {}
        numbers = [fitting(function, name, number, tensor) for name, number in named.items()]
        inputs = [tensor, *numbers]
        if isinstance(spec, Formula):
            dtype = tensor.dtype.real_dtype.name
            formula = spec.with_more_inputs([dtype], list(named))
            check_formula(formula, (dtype,) * len(inputs), (dtype,))
            gradient = tensorflow_gradient(formula)
        else:
            gradient = _checked(lambda _, dy: [spec(tf.convert_to_tensor(dy))])
        return with_gradient([tensor], inputs, _by_part(gradient) if is_additive else gradient)[0]

    return on_values(on_tensor, x)


def _by_part(gradient: GradientFunction) -> GradientFunction:
    """Return a gradient that is a factor of dy, for slices and for complex numbers too."""

    def by_part(op: Any, dy: Any) -> list[Any]:
        _, *numbers = op.inputs
        if isinstance(dy, tf.IndexedSlices) and all(number.shape == () for number in numbers):
            rows = SimpleNamespace(inputs=[dy.values, *numbers], outputs=[dy.values])
            [dx, *nothing] = by_part(rows, dy.values)
            return [tf.IndexedSlices(dx, dy.indices, dy.dense_shape), *nothing]
        if not dy.dtype.is_complex:
            return gradient(op, dy)
        # Formulas know real numbers: the factor is the gradient of dy = 1.
        inputs, outputs = ([*map(tf.math.real, some)] for some in (op.inputs, op.outputs))
        real = SimpleNamespace(inputs=inputs, outputs=outputs)
        [factor, *nothing] = gradient(real, tf.ones_like(outputs[0]))
        return [tf.convert_to_tensor(dy) * tf.cast(factor, dy.dtype), *nothing]

    return by_part


@unconverted
def override_gradient(f: Callable[..., Any], spec: Spec) -> Callable[..., Any]:
    """Return a function that computes what `f` does, with another gradient.

    Forward: `f(*x)`, bit for bit. Backward: what `spec` computes of the inputs, outputs and
    upstream gradients, of the shape and dtype of each input; a result that is larger is summed, a
    smaller one is repeated. Second derivatives are those of that gradient.

    Args:
        f: A function of one or more tensors that returns a tensor, or a list or tuple of tensors.
            No gradient flows to what it reads besides its arguments.
        spec: A gradient as a rules file has it: a name of the library (`"guided_relu"`), a name
            with parameters, a formula of `x0`, `y0`, `dy0`, ... or a list with one for each input
            (`{"formula": ["dy * x1", null]}`); or a Python function `(op, *dy)` that returns the
            gradient of each of `op.inputs` and may read `op.outputs`.

    Raises:
        RulesError: There is no such gradient, or it is one that only a rules file can name.
        FormulaError: The formula is not valid; when the new function is called, it does not suit
            the tensors.
        TypeError: When called: no argument is a floating tensor.
        ValueError: When called: `f` reads trainable variables, which would never be trained. When
            the gradient is taken: the Python function gives too few, or one of a wrong shape.

    When not to use it: where a gradient should also flow to variables that `f` reads: pass them as
    arguments, or write a tf.custom_gradient.

    Example:
        >>> relu = graphpatch.override_gradient(tf.nn.relu, "guided_relu")
        >>> x = tf.Variable([-2.0, 2.0, 2.0])
        >>> with tf.GradientTape() as tape:
        ...     y = relu(x)
        >>> tape.gradient(y, x, tf.constant([1.0, 1.0, -1.0])).numpy()
        array([0., 1., 0.], dtype=float32)
    """
    check_function("override_gradient", "f", f)
    formula: Formula | None = None
    if callable(spec):
        gradient = _checked(spec)
    else:
        formula = gradient_meant("override_gradient", spec).formula
        gradient = tensorflow_gradient(formula)

    @unconverted
    def computed_as(f: Callable[..., Any], *x: Any) -> Any:
        inputs = [as_tensor("override_gradient", tensor) for tensor in x]
        if not any(tensor.dtype.is_floating or tensor.dtype.is_complex for tensor in inputs):
            dtypes = ", ".join(tensor.dtype.name for tensor in inputs) or "no tensors"
            raise TypeError(
                f"override_gradient: the function takes {dtypes}, and gradients flow to floating "
                f"tensors only"
            )
        y, variables = _called(f, *inputs)
        _refuse_lost("override_gradient", variables)
        outputs = [tf.convert_to_tensor(tensor) for tensor in tf.nest.flatten(y)]
        if formula is not None:
            check_formula(formula, dtypes_of(inputs), dtypes_of(outputs))
        return tf.nest.pack_sequence_as(y, with_gradient(outputs, inputs, gradient))

    def overridden(*x: Any, **options: Any) -> Any:
        if options:
            raise TypeError(
                f"override_gradient: the function takes tensors by position, and found "
                f"{', '.join(options)}; bind options before, as by functools.partial"
            )
        return computed_as(f, *x)

    return overridden


def _checked(function: Callable[..., Any]) -> GradientFunction:
    """Return a gradient function of the user's, which must give one gradient for each input."""

    def gradient(op: Any, *upstream: Any) -> list[Any]:
        dxs = as_list(function(op, *upstream))
        if len(dxs) != len(op.inputs):
            raise ValueError(
                f"override_gradient: the gradient function returned {len(dxs)} gradients for "
                f"{len(op.inputs)} inputs; it must return one for each, or None"
            )
        return [checked_gradient(dx, x) for dx, x in zip(dxs, op.inputs, strict=True)]

    return gradient


@unconverted
def straight_through(f: Callable[[Any], Any], x: Any) -> Any:
    """Return `f(x)`, whose gradient is that of the identity of `x`.

    Forward: `f(x)`, bit for bit. Backward: `dy`, summed to the shape of `x` where `f` repeats it,
    and cast to its dtype. The second derivative is that of the identity, 0.

    Args:
        f: A function of a tensor that returns a floating or complex tensor of the same shape, or
            of one that the shape of `x` broadcasts to: `tf.round`, `tf.sign`, a quantizer.
        x: A floating or complex tensor of any shape.

    Raises:
        TypeError: `x` or `f(x)` is neither floating nor complex, or `x` alone is complex.
        ValueError: The shape of `x` does not broadcast to that of `f(x)`, or `f` reads trainable
            variables, which would never be trained.

    When not to use it: where units saturate; `surrogate` lets nothing flow there.

    Example:
        >>> x = tf.Variable([0.2, 1.7])
        >>> with tf.GradientTape() as tape:
        ...     y = 3.0 * graphpatch.straight_through(tf.round, x)
        >>> tape.gradient(y, x).numpy()
        array([3., 3.], dtype=float32)
    """
    check_function("straight_through", "f", f)
    x = on_values(lambda value: carrying("straight_through", value, complex_too=True), x)
    return _counted("straight_through", f, lambda x: x, x)


@unconverted
def surrogate(f: Callable[..., Any], g: Callable[..., Any], *x: Any) -> Any:
    """Return `f(*x)`, whose gradient is that of `g(*x)`.

    Forward: `f(*x)`, bit for bit, also where `g` is infinite or NaN. Backward: `dy` flows through
    `g`, which TensorFlow differentiates, as often as you ask for. Variables that `g` reads get
    their gradients.

    Args:
        f: A function of tensors that returns a floating or complex tensor.
        g: A function of the same tensors; its shape must be that of `f(*x)`, or broadcast to it.
        *x: One or more tensors, of the shapes and dtypes that `f` and `g` take.

    Raises:
        TypeError: `f(*x)` or `g(*x)` is neither floating nor complex, or `g(*x)` alone is complex.
        ValueError: The shape of `g(*x)` does not broadcast to that of `f(*x)`, or `f` reads
            trainable variables that `g` does not read, which would never be trained.

    When not to use it: where the gradient itself is known, `override_gradient` needs no forward
    pass of `g`.

    Example:
        >>> v = tf.Variable([0.0])
        >>> with tf.GradientTape() as tape:
        ...     spikes = graphpatch.surrogate(lambda v: tf.cast(v > 0, v.dtype), tf.sigmoid, v)
        >>> tape.gradient(spikes, v).numpy()
        array([0.25], dtype=float32)
    """
    for argument, function in (("f", f), ("g", g)):
        check_function("surrogate", argument, function)
    x = tuple(on_values(lambda value: as_tensor("surrogate", value), value) for value in x)
    return _counted("surrogate", f, g, *x)


def _counted(function: str, f: Callable[..., Any], g: Callable[..., Any], *x: Any) -> Any:
    """Return `f(*x)` with the gradient of `g(*x)`, which reads all variables that `f` reads."""
    (noisy, variables), (clean, trained) = _called(f, *x), _called(g, *x)
    _refuse_lost(function, variables, trained)
    return _two_functions(function, noisy, clean)


@unconverted
def backward_as(noisy: Any, clean: Any) -> Any:
    """Return `noisy`, whose gradient is that of `clean`.

    Forward: `noisy`, bit for bit. Backward: `dy` flows to `clean` as it comes, summed to its shape
    where it is smaller, and cast to its dtype; nothing flows to `noisy`, so `tf.gradients` by it is
    None. The second derivative is that of `clean`.

    Args:
        noisy: A floating or complex tensor of any shape.
        clean: A tensor of the same shape, or of one that broadcasts to it.

    Raises:
        TypeError: One of the two is neither floating nor complex, or `clean` alone is complex.
        ValueError: The shape of `clean` does not broadcast to that of `noisy`.

    When not to use it: for a graph that exists already; the rule `backward_as` clones what lies
    between.

    Example:
        >>> y, u = tf.Variable([4.0]), tf.random.uniform([1])
        >>> with tf.GradientTape() as tape:
        ...     z = graphpatch.backward_as(tf.sqrt(y * u), tf.sqrt(y))
        >>> tape.gradient(z, y).numpy()
        array([0.25], dtype=float32)
    """
    return _two_functions("backward_as", noisy, clean)


def _two_functions(function: str, noisy: Any, clean: Any) -> Any:
    """Return the first of two values, with the gradient of the second."""

    def on_tensors(forward: Any, backward: Any) -> Any:
        forward = carrying(function, forward, complex_too=True)
        backward = carrying(function, backward, complex_too=True)
        if backward.dtype.is_complex and not forward.dtype.is_complex:
            raise TypeError(
                f"{function}: the value is {forward.dtype.name}, and what it counts as is "
                f"{backward.dtype.name}, whose gradient a real value cannot stand for"
            )
        counted = tf.cast(backward, forward.dtype)
        if not (forward.shape.is_fully_defined() and forward.shape == counted.shape):
            if not _broadcasts(counted.shape, forward.shape):
                raise ValueError(
                    f"{function}: what the value counts as has shape {counted.shape}, which does "
                    f"not broadcast to the shape of the value, {forward.shape}"
                )
            counted = tf.broadcast_to(counted, tf.shape(forward))
        return with_gradient([forward], [counted], lambda _, dy: [dy])[0]

    kinds = _kind(noisy), _kind(clean)
    if kinds[0] != kinds[1]:
        raise TypeError(f"{function}: the value is a {kinds[0]}, what it counts as a {kinds[1]}")
    return on_values(on_tensors, noisy, clean)


def _broadcasts(shape: Any, whole: Any) -> bool:
    """Return whether a shape broadcasts to another, as far as both are known."""
    try:
        return bool(tf.broadcast_static_shape(shape, whole).is_compatible_with(whole))
    except ValueError:
        return False


def with_gradient(
    values: Sequence[Any], inputs: Sequence[Any], gradient: GradientFunction, **more: Any
) -> list[Any]:
    """Return the values, bit for bit, with a gradient (op, *dy) with respect to the inputs.

    Nothing flows back to what the values are computed from. The outputs of the op that `gradient`
    sees, which has `more`, carry the same gradient: second derivatives pass through them, too.
    """
    count, outputs = len(values), list[Any]()

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def carry(*tensors: Any) -> Any:
        forward, read = tensors[:count], tensors[count:]

        def by_op(*upstream: Any) -> list[Any]:
            # Forward mode asks before there are any outputs.
            op = {"inputs": read, "outputs": outputs or forward, "type": "", **more}
            return [*[None] * count, *gradient(SimpleNamespace(**op), *upstream)]

        return tuple(tf.identity(value) for value in forward), by_op

    outputs += carry(*(tf.stop_gradient(value) for value in values), *inputs)
    return outputs


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
    if gradient.formula.tensors:
        raise RulesError(
            f"{function}: rules read a tensor of a graph by name; here a Python function dy -> dx "
            f"can read the tensor itself"
        )
    return gradient


def checked_gradient(gradient: Any, tensor: Any) -> Any:
    """Return what a Python function returned, as the gradient of a tensor; None stays.

    Raises ValueError where dtype or shape are not those of the tensor.
    """
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
    """Return the value as a tensor that carries a gradient; TypeError for other dtypes."""
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
    """Return `change` of the tensors; of ragged and sparse ones of their values, in their form.

    TensorFlow raises ValueError or InvalidArgumentError where the values of several are in other
    places.
    """
    if isinstance(tensors[0], tf.RaggedTensor):
        return tf.ragged.map_flat_values(change, *tensors)
    if isinstance(tensors[0], tf.SparseTensor):
        return tf.sparse.map_values(change, *tensors)
    return change(*tensors)


def _kind(value: Any) -> str:
    composite = isinstance(value, tf.RaggedTensor | tf.SparseTensor)
    return type(value).__name__ if composite else DENSE


def number_in(value: Any) -> Any:
    """Return the number that a Python or numpy scalar is, None for a tensor or a variable."""
    is_number = isinstance(value, bool | int | float | np.generic | np.ndarray)
    return np.asarray(value).item() if is_number and np.ndim(value) == 0 else None


def fitting(function: str, name: str, value: Any, tensor: Any) -> Any:
    """Return a parameter that is a tensor, in the dtype of the tensor that it is for.

    Nothing flows back to it. Raises TypeError where it is not a real number, ValueError where its
    shape does not broadcast to that of the tensor.
    """
    parameter = as_tensor(function, value, tensor.dtype.real_dtype)
    if not (parameter.dtype.is_floating or parameter.dtype.is_integer):
        raise TypeError(f"{function}: {name} is {parameter.dtype.name}; it must be a real number")
    if not _broadcasts(parameter.shape, tensor.shape):
        raise ValueError(
            f"{function}: {name} has shape {parameter.shape}, which does not broadcast to that of "
            f"the tensor, {tensor.shape}"
        )
    return tf.stop_gradient(tf.cast(parameter, tensor.dtype))


def _called(f: Callable[..., Any], *x: Any) -> tuple[Any, list[Any]]:
    """Return what a function computes, and the trainable variables that it reads.

    Left out are those that `f`, a layer of Keras, freezes: TensorFlow is not told of it.
    """
    with tf.GradientTape() as tape:
        y = f(*x)
    frozen = {id(_handle(variable)) for variable in getattr(f, "non_trainable_variables", ())}
    return y, [v for v in tape.watched_variables() if id(_handle(v)) not in frozen]


def _refuse_lost(function: str, variables: Sequence[Any], trained: Sequence[Any] = ()) -> None:
    """Raise ValueError where a variable was read that would never be trained."""
    refs = {variable.ref() for variable in trained}
    lost = [repr(variable.name) for variable in variables if variable.ref() not in refs]
    if lost:
        raise ValueError(
            f"{function}: the function reads the trainable variable {', '.join(lost)}, to which no "
            f"gradient would flow; read it outside of the function, as tf.stop_gradient(variable) "
            f"if it should not be trained; a layer of Keras may have trainable=False"
        )


def _handle(variable: Any) -> Any:
    """Return what stands for the memory of a variable, whether of Keras or of TensorFlow."""
    inner = getattr(variable, "_value", variable)
    return getattr(inner, "handle", inner)
