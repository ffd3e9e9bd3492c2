"""The places in which an op of a graph may stand, each built around the same few ops.

A place takes a unit, a function of a tensor of shape [3] that keeps its shape, and applies it to x
so many times. TensorFlow differentiates it op by op, or as a whole (SymbolicGradient), or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

Unit = Callable[[Any], Any]

NUMBERS = itertools.count()


class Place(NamedTuple):
    """`whole`: the unit stands in a function that a Session differentiates as a whole."""

    build: Callable[[Unit, Any], Any]
    times: int = 1
    whole: bool = False
    v1: bool = False
    unknown_to: str = ""


def function(unit: Unit, **options: Any) -> Unit:
    """A function that is called by PartitionedCall, or StatefulPartitionedCall."""
    import tensorflow as tf

    return tf.function(lambda x: unit(x), autograph=False, **options)


def legacy(unit: Unit, **options: Any) -> Unit:
    """A function that is called as an op of its own."""
    import tensorflow as tf
    from tensorflow.python.framework.function import Defun

    def call(x: Any) -> Any:
        y = defined(x)
        y.set_shape([3])
        return y

    defined = Defun(tf.float32, func_name=f"legacy_{next(NUMBERS)}", **options)(unit)
    return call


def loop(unit: Unit, x: Any, times: int = 2) -> Any:
    import tensorflow as tf

    def body(step: Any, x: Any) -> tuple[Any, Any]:
        return step + 1, unit(x)

    return tf.while_loop(lambda step, _: step < times, body, [0, x])[1]


def branch(unit: Unit, x: Any) -> Any:
    import tensorflow as tf

    return tf.cond(tf.reduce_sum(x) < 1e6, lambda: unit(x), lambda: x)


def case(unit: Unit, x: Any) -> Any:
    import tensorflow as tf

    return tf.switch_case(tf.size(x) - 3, [lambda: unit(x), lambda: x])


def noinline_call(unit: Unit, x: Any) -> Any:
    import tensorflow as tf

    y = function(unit)(x)
    for op in y.graph.get_operations():
        if op.type == "PartitionedCall":
            op._set_attr("_noinline", tf.compat.v1.AttrValue(b=True))
    return y


def _sin(x: Any) -> Any:
    import tensorflow as tf

    return tf.sin(x)


def with_variable(unit: Unit) -> Unit:
    """The unit on what a variable of value 1 is multiplied with: its call is stateful."""
    import tensorflow as tf

    initial = tf.constant(1.0)
    one = tf.compat.v1.get_variable("one", initializer=initial, use_resource=True)
    return lambda x: unit(one.read_value() * x)


def twice(unit: Unit, x: Any) -> Any:
    called = function(unit)
    return called(called(x))


def called_inside_and_outside(unit: Unit, x: Any) -> Any:
    called = function(unit)
    return function(called)(called(x))


def nested_called_twice(unit: Unit, x: Any) -> Any:
    called = function(unit)
    return function(lambda x: called(called(x)))(x)


def in_and_beside_a_loop(unit: Unit, x: Any) -> Any:
    called = function(unit)
    return loop(called, called(x))


# fmt: off
PLACES: dict[str, Place] = {
    "main": Place(lambda unit, x: unit(x)),
    "While": Place(loop, 2),
    "If": Place(branch),
    "Case": Place(case, unknown_to="tensorflow1"),
    "If in While": Place(lambda unit, x: loop(lambda x: branch(unit, x), x), 2),
    "While in If": Place(lambda unit, x: branch(lambda x: loop(unit, x), x), 2),
    "While in While": Place(lambda unit, x: loop(lambda x: loop(unit, x), x), 4),
    "stateful While": Place(lambda unit, x: loop(with_variable(unit), x), 2),
    "PartitionedCall": Place(lambda unit, x: function(unit)(x), 1, True),
    "StatefulPartitionedCall": Place(lambda u, x: function(with_variable(u))(x), 1, True),
    "PartitionedCall not inlined": Place(noinline_call, 1, True),
    "PartitionedCall for XLA": Place(lambda u, x: function(u, jit_compile=True)(x), 1, True),
    "PartitionedCall twice": Place(twice, 2, True),
    "nested two deep": Place(lambda u, x: function(function(u))(x), 1, True),
    "nested three deep": Place(lambda u, x: function(function(function(u)))(x), 1, True),
    "nested, stateful": Place(lambda u, x: function(function(with_variable(u)))(x), 1, True),
    "nested, called twice": Place(nested_called_twice, 2, True),
    "nested and in main": Place(called_inside_and_outside, 2, True),
    "PartitionedCall in While": Place(lambda u, x: loop(function(u), x), 2, True),
    "PartitionedCall in If": Place(lambda u, x: branch(function(u), x), 1, True),
    "nested in While": Place(lambda u, x: loop(function(function(u)), x), 2, True),
    "PartitionedCall in While and in main": Place(in_and_beside_a_loop, 3, True),
    "legacy call": Place(lambda u, x: legacy(u)(x), 1, True),
    "legacy call not inlined": Place(lambda u, x: legacy(u, noinline=True)(x), 1, True),
    "legacy call in PartitionedCall": Place(lambda u, x: function(legacy(u))(x), 1, True),
    "legacy call in While": Place(lambda u, x: loop(legacy(u), x), 2, True),
    "v1 while": Place(loop, 2, v1=True),
    "v1 cond": Place(branch, 1, v1=True),
    "v1 cond in v1 while": Place(lambda u, x: loop(lambda x: branch(u, x), x), 2, v1=True),
    "v1 while in v1 cond": Place(lambda u, x: branch(lambda x: loop(u, x), x), 2, v1=True),
    "v1 while in v1 while": Place(lambda u, x: loop(lambda x: loop(u, x), x), 4, v1=True),
    "PartitionedCall in v1 while": Place(lambda u, x: loop(function(u), x), 2, True, v1=True),
}

# A Session gives no gradient here, whatever is patched: zeros for a loop, an error for a branch.
UNREACHED: dict[str, Place] = {
    "While in PartitionedCall": Place(lambda u, x: function(lambda x: loop(u, x))(x)),
    "If in PartitionedCall": Place(lambda u, x: function(lambda x: branch(u, x))(x)),
    "Case in PartitionedCall": Place(lambda u, x: function(lambda x: case(u, x))(x)),
    "PartitionedCall in While in PartitionedCall":
        Place(lambda u, x: function(lambda x: loop(function(u), x))(x)),
    "PartitionedCall not inlined in PartitionedCall":
        Place(lambda u, x: function(function(u, experimental_attributes={"_noinline": True}))(x)),
    "v1 while in legacy call": Place(lambda u, x: legacy(lambda x: loop(u, x))(x), v1=True),
    "v1 cond in legacy call": Place(lambda u, x: legacy(lambda x: branch(u, x))(x), v1=True),
    "before a While in PartitionedCall":
        Place(lambda u, x: function(lambda x: loop(_sin, u(x)))(x)),
    "before a While in a nested call":
        Place(lambda u, x: function(lambda x: loop(_sin, function(u)(x)))(x)),
    "before a call not inlined":
        Place(lambda u, x: function(
            lambda x: function(_sin, experimental_attributes={"_noinline": True})(u(x)))(x)),
    "before a v1 while in legacy call":
        Place(lambda u, x: legacy(lambda x: loop(_sin, u(x)))(x), v1=True),
    "before a v1 cond in legacy call":
        Place(lambda u, x: legacy(lambda x: branch(_sin, u(x)))(x), v1=True),
    "PartitionedCall in v1 while in legacy call":
        Place(lambda u, x: legacy(lambda x: loop(function(u), x))(x), v1=True),
}
# fmt: on
