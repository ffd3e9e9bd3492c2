"""A formula as the gradient function of real ops in a graph, beside TensorFlow's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.library import LIBRARY
from graphpatch.runtime.gradient_functions import formula_gradients, tensorflow_gradient
from tests.gradients.regimes import SELU, SELU_ALPHA

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

_KEYS = itertools.count()


def registered(function: Callable[..., Any]) -> str:
    """A fresh key under which the gradient is registered."""
    key = f"tests.formula.{next(_KEYS)}"
    tf.RegisterGradient(key)(function)
    return key


def gradients(
    op_type: str, formula: Any, build: Callable[..., Any], *arrays: Any, fed: bool = False
) -> tuple[Any, Any]:
    """The gradients of a sum of what `build` makes, and TensorFlow's own ones, by its inputs."""
    formula = formula if isinstance(formula, Formula) else Formula.parse(formula)
    found = []
    for overrides in ({op_type: registered(tensorflow_gradient(formula))}, {}):
        with tf1.Graph().as_default() as graph, tf1.Session() as session:
            make = (lambda x: tf1.placeholder(np.asarray(x).dtype)) if fed else tf.constant
            inputs = [make(array) for array in arrays]
            with graph.gradient_override_map(overrides):
                outputs = tf.nest.flatten(build(*inputs))
            weighted = [tf.reduce_sum(y * (place + 1)) for place, y in enumerate(outputs)]
            wanted = tf1.gradients(weighted, inputs)
            asked = {place: dx for place, dx in enumerate(wanted) if dx is not None}
            values = session.run(asked, dict(zip(inputs, arrays, strict=True)) if fed else None)
        found.append([values.get(place) for place in range(len(arrays))])
    return found[0], found[1]


def floats(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def test_an_upstream_gradient_that_is_none_or_not_asked_for_counts_as_zeros() -> None:
    formula = [None, "dy0 + 5 * dy1 + dy2"]
    (found,), _ = gradients("Split", formula, lambda x: tf.split(x, 3)[1], floats(3))
    np.testing.assert_array_equal(found, [5, 5, 5])
    x, y, dy = tf.ones([3]), tf.ones([3]), 5 * tf.ones([3])
    (found,) = formula_gradients(Formula.parse("dy0 + dy1"), [x], [y, y], [None, dy])
    np.testing.assert_array_equal(found, [5, 5, 5])
    with pytest.raises(FormulaError, match="2 outputs, and 1 upstream gradients"):
        formula_gradients(Formula.parse("dy0 + dy1"), [x], [y, y], [dy])


def test_attrs_are_those_of_the_op() -> None:
    formula, x = LIBRARY["guided_leaky_relu"].formula(), floats(50)
    build = lambda x: tf.nn.leaky_relu(x, alpha=0.3)  # noqa: E731
    (found,), (own,) = gradients("LeakyRelu", formula, build, x)
    np.testing.assert_array_equal(found, own)
    with pytest.raises(FormulaError, match=r"\(LeakyRelu\) has no attr 'beta'"):
        gradients("LeakyRelu", "dy * attr.beta", build, x)


SHAPES = [
    *([(3, 4), (3, 4)], [(3, 4), (4,)], [(3, 1), (1, 4)], [(), (2, 3)]),
    *([(2, 1, 3), (4, 1)], [(3, 0), (1,)]),
]


@pytest.mark.every(4)
@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("shapes", SHAPES)
def test_gradients_are_summed_where_the_op_broadcasts(shapes: Any, fed: bool) -> None:
    arrays = [floats(*shape, seed=place) for place, shape in enumerate(shapes)]
    for op_type, formula, build in (
        ("AddV2", "dy", lambda a, b: a + b),
        ("Mul", LIBRARY["mul"].formula(), lambda a, b: a * b),
    ):
        found, own = gradients(op_type, formula, build, *arrays, fed=fed)
        for ours, theirs in zip(found, own, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_selu_has_the_constants_of_tensorflow() -> None:
    y = tf.nn.selu(tf.constant([1.0, -1e3], tf.float64))
    np.testing.assert_allclose(y, [SELU, -SELU_ALPHA], rtol=1e-7)


def test_guided_relu_is_the_classic_script_to_the_bit() -> None:
    def classic(op: Any, dy: Any) -> Any:
        own = tf.raw_ops.ReluGrad(gradients=dy, features=op.outputs[0])
        return tf.where(dy > 0.0, own, tf.zeros_like(own))

    values = []
    for function in (classic, tensorflow_gradient(LIBRARY["guided_relu"].formula())):
        with tf1.Graph().as_default() as graph, tf1.Session() as session:
            x = tf.constant(floats(7, 300))
            with graph.gradient_override_map({"Relu": registered(function)}):
                hidden = tf.nn.relu(x @ tf.constant(floats(300, 300, seed=1)))
                y = tf.nn.relu(hidden @ tf.constant(floats(300, 5, seed=2)))
            values.append(session.run(tf1.gradients(y * tf.constant(floats(7, 5)), x)[0]))
    assert values[0].tobytes() == values[1].tobytes()
    assert values[0].any()


def test_sparse_upstream_gradients_are_made_dense() -> None:
    build = lambda x: tf.gather(tf.identity(x), [0, 2, 2])  # noqa: E731
    (found,), _ = gradients("Identity", "-dy", build, floats(4, 1))
    np.testing.assert_array_equal(found, [[-1], [0], [-2], [0]])


def test_a_cast_has_the_dtype_of_its_input() -> None:
    (found,), _ = gradients("Cast", "2 * dy", lambda x: tf.cast(x, tf.float64), floats(3))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [2, 2, 2])
