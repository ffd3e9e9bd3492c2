"""Functions with one value forward and the gradient of something else backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from graphpatch.gradients.formula import Formula
from graphpatch.runtime.functions.tensors import (
    BackwardFunction,
    Spec,
    as_tensor,
    by_formula,
    carrying,
    check_function,
    checked_gradient,
    gradient_meant,
    in_places_of,
    on_values,
    reads_outputs,
    watching,
    with_gradient,
)
from graphpatch.runtime.unconverted import unconverted


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
    if callable(spec):
        return _with_gradient(f, _backward_by_function(spec), None)
    formula = gradient_meant("override_gradient", spec).formula
    return _with_gradient(f, by_formula(formula), formula)


def _with_gradient(
    f: Callable[..., Any], backward: BackwardFunction, formula: Formula | None
) -> Callable[..., Any]:
    """Return the function f with another gradient; the formula of it, if it is one."""

    @unconverted
    def computed_as(f: Callable[..., Any], *x: Any) -> Any:
        import tensorflow as tf

        from graphpatch.runtime.gradient_functions import check_formula

        inputs = [as_tensor("override_gradient", tensor) for tensor in x]
        _need_one_that_carries(inputs)
        with watching("override_gradient", f) as watched:
            y = f(*inputs)
        watched.refuse()
        outputs = [tf.convert_to_tensor(tensor) for tensor in tf.nest.flatten(y)]
        if formula is not None:
            check_formula(formula, inputs, outputs)
        reads = formula is None or reads_outputs(formula)
        return tf.nest.pack_sequence_as(y, with_gradient(outputs, inputs, backward, reads))

    def overridden(*x: Any, **options: Any) -> Any:
        if options:
            raise TypeError(
                f"override_gradient: the function takes tensors by position, and found "
                f"{', '.join(options)}; bind options before, as by functools.partial"
            )
        return computed_as(f, *x)

    return overridden


def _need_one_that_carries(inputs: Sequence[Any]) -> None:
    if not any(tensor.dtype.is_floating or tensor.dtype.is_complex for tensor in inputs):
        dtypes = ", ".join(tensor.dtype.name for tensor in inputs) or "no tensors"
        raise TypeError(
            f"override_gradient: the function takes {dtypes}, and gradients flow to floating "
            f"tensors only"
        )


@dataclass(frozen=True, eq=False)
class GradientOp:
    """What a gradient function of TensorFlow's convention is given as `op`."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]


def _backward_by_function(spec: Callable[..., Any]) -> BackwardFunction:
    def backward(
        inputs: Sequence[Any], outputs: Sequence[Any], upstream: Sequence[Any]
    ) -> list[Any]:
        result = spec(GradientOp(inputs, outputs), *upstream)
        listed = list(result) if isinstance(result, list | tuple) else [result]
        if len(listed) != len(inputs):
            raise ValueError(
                f"override_gradient: the gradient function returned {len(listed)} gradients for "
                f"{len(inputs)} inputs; it must return one for each, or None"
            )
        return [checked_gradient(dx, x) for dx, x in zip(listed, inputs, strict=True)]

    return backward


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
    clean = on_values(lambda value: carrying("straight_through", value, complex_too=True), x)
    with watching("straight_through", f) as watched:
        noisy = f(clean)
    watched.refuse()
    return _two_functions("straight_through", noisy, clean)


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
    with watching("surrogate", f) as watched:
        noisy = f(*x)
    with watching("surrogate", g) as read:
        clean = g(*x)
    watched.refuse(read)
    return _two_functions("surrogate", noisy, clean)


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
    clean = in_places_of(function, noisy, clean)
    return on_values(lambda a, b: _forward_and_backward(function, a, b), noisy, clean)


def _forward_and_backward(function: str, forward: Any, backward: Any) -> Any:
    """Return the first of two tensors, with the gradient of the second."""
    import tensorflow as tf

    forward = carrying(function, forward, complex_too=True)
    backward = carrying(function, backward, complex_too=True)
    if backward.dtype.is_complex and not forward.dtype.is_complex:
        raise TypeError(
            f"{function}: the value is {forward.dtype.name}, and what it counts as is "
            f"{backward.dtype.name}, whose gradient a real value cannot stand for"
        )
    counted = tf.cast(backward, forward.dtype)
    if not (forward.shape.is_fully_defined() and forward.shape == counted.shape):
        _check_broadcast(function, forward, counted)
        counted = tf.broadcast_to(counted, tf.shape(forward))
    [joined] = with_gradient([forward], [counted], lambda _inputs, _outputs, upstream: upstream)
    return joined


def _check_broadcast(function: str, forward: Any, backward: Any) -> None:
    import tensorflow as tf

    try:
        joint = tf.broadcast_static_shape(forward.shape, backward.shape)
        fits = joint.is_compatible_with(forward.shape)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{function}: what the value counts as has shape {backward.shape}, which does not "
            f"broadcast to the shape of the value, {forward.shape}"
        )
