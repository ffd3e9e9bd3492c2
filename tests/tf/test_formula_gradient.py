"""A formula as the gradient function of real ops: in graphs, on tapes, to second order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.library import LIBRARY
from tests.gradients.regimes import SELU, SELU_ALPHA

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

_KEYS = itertools.count()


def registered(formula: Formula) -> str:
    """A fresh key under which the formula is registered."""
    from graphpatch.runtime.gradient_functions import tensorflow_gradient

    key = f"tests.formula.{next(_KEYS)}"
    tf.RegisterGradient(key)(tensorflow_gradient(formula))
    return key


def gradients(
    op_type: str, formula: Formula, build: Callable[..., Any], *arrays: Any, fed: bool = False
) -> tuple[Any, Any]:
    """The gradients of a sum of what `build` makes, and TensorFlow's own ones, by its inputs."""
    found = []
    for overrides in ({op_type: registered(formula)}, {}):
        with tf1.Graph().as_default() as graph:
            if fed:
                inputs = [tf1.placeholder(np.asarray(array).dtype) for array in arrays]
            else:
                inputs = [tf.constant(array) for array in arrays]
            with graph.gradient_override_map(overrides):
                outputs = tf.nest.flatten(build(*inputs))
            weighted = [tf.reduce_sum(y * (place + 1)) for place, y in enumerate(outputs)]
            wanted = tf1.gradients(weighted, inputs)
            asked = {place: dx for place, dx in enumerate(wanted) if dx is not None}
            with tf1.Session() as session:
                values = session.run(asked, dict(zip(inputs, arrays, strict=True)) if fed else None)
        found.append([values.get(place) for place in range(len(arrays))])
    return found[0], found[1]


def floats(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def test_a_multiply_that_gives_one_input_nothing() -> None:
    formula = Formula.parse(["dy * x1", None])
    found, own = gradients("Mul", formula, _mul, 3.0, 10.0)
    assert found == [10.0, None]
    assert own == [10.0, 3.0]


def _mul(w: Any, i: Any) -> Any:
    return tf.raw_ops.Mul(x=w, y=i)


def test_an_op_with_three_outputs_takes_all_three_upstream_gradients() -> None:
    def split(x: Any) -> Any:
        a, b, c = tf.split(x, 3)
        return a, 10 * b, 100 * c

    formula = Formula.parse([None, "dy0 + dy1 + dy2"])
    (found,), (own,) = gradients("Split", formula, split, floats(3))
    np.testing.assert_array_equal(own, [1, 20, 300])
    np.testing.assert_array_equal(found, [321, 321, 321])


def test_an_output_that_nothing_uses_counts_as_zeros() -> None:
    def split(x: Any) -> Any:
        return tf.split(x, 3)[1]

    formula = Formula.parse([None, "dy0 + 5 * dy1 + dy2"])
    (found,), _ = gradients("Split", formula, split, floats(3))
    np.testing.assert_array_equal(found, [5, 5, 5])


def test_an_upstream_gradient_that_is_none_counts_as_zeros() -> None:
    from graphpatch.runtime.gradient_functions import formula_gradients

    x, y, dy = tf.ones([3]), tf.ones([3]), 5 * tf.ones([3])
    formula = Formula.parse("dy0 + dy1")
    (found,) = formula_gradients(formula, [x], [y, y], [None, dy])
    np.testing.assert_array_equal(found, [5, 5, 5])
    with pytest.raises(FormulaError, match="2 outputs, and 1 upstream gradients"):
        formula_gradients(formula, [x], [y, y], [dy])


def test_attrs_are_those_of_the_op() -> None:
    formula = LIBRARY["guided_leaky_relu"].formula()
    x = floats(50)
    (found,), (own,) = gradients(
        "LeakyRelu", formula, lambda x: tf.raw_ops.LeakyRelu(features=x, alpha=0.3), x
    )
    np.testing.assert_array_equal(found, own)
    with pytest.raises(FormulaError, match=r"\(LeakyRelu\) has no attr 'beta'"):
        gradients("LeakyRelu", Formula.parse("dy * attr.beta"), tf.nn.leaky_relu, x)


@pytest.mark.every(4)
@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 4), (3, 4)),
        ((3, 4), (4,)),
        ((3, 1), (1, 4)),
        ((), (2, 3)),
        ((2, 1, 3), (4, 1)),
        ((3, 0), (1,)),
    ],
)
def test_gradients_are_summed_where_the_op_broadcasts(shapes: Any, fed: bool) -> None:
    a, b = (floats(*shape, seed=place) for place, shape in enumerate(shapes))
    found, own = gradients("AddV2", Formula.parse("dy"), lambda a, b: a + b, a, b, fed=fed)
    for ours, theirs in zip(found, own, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    found, own = gradients("Mul", LIBRARY["mul"].formula(), lambda a, b: a * b, a, b, fed=fed)
    for ours, theirs in zip(found, own, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.every(4)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_matrix_products_have_their_own_gradient(first: bool, second: bool, dtype: Any) -> None:
    a = floats(*((5, 2) if first else (2, 5)), dtype=dtype)
    b = floats(*((3, 5) if second else (5, 3)), seed=1, dtype=dtype)
    limit = 1e-2 if dtype is np.float16 else 1e-5
    found, own = gradients(
        "MatMul",
        LIBRARY["matmul"].formula(),
        lambda a, b: tf.raw_ops.MatMul(a=a, b=b, transpose_a=first, transpose_b=second) ** 2,
        *(a, b),
    )
    for ours, theirs in zip(found, own, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=limit, atol=limit)
    found, own = gradients(
        "BatchMatMulV2",
        LIBRARY["batch_matmul"].formula(),
        lambda a, b: tf.raw_ops.BatchMatMulV2(x=a, y=b, adj_x=first, adj_y=second) ** 2,
        *(np.stack([a, 2 * a, 3 * a]), b[np.newaxis]),
    )
    for ours, theirs in zip(found, own, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=limit, atol=limit * 10)


FAMILY: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "guided_relu": ("Relu", lambda x: tf.nn.relu(x)),
    "guided_relu6": ("Relu6", lambda x: tf.nn.relu6(4 * x)),
    "guided_leaky_relu": ("LeakyRelu", lambda x: tf.nn.leaky_relu(x)),
    "guided_elu": ("Elu", lambda x: tf.nn.elu(x)),
    "guided_selu": ("Selu", lambda x: tf.nn.selu(x)),
    "guided_softplus": ("Softplus", lambda x: tf.nn.softplus(x)),
}


@pytest.mark.parametrize("name", FAMILY)
def test_guided_gradients_are_the_own_ones_where_dy_is_positive(name: str) -> None:
    op_type, build = FAMILY[name]
    assert op_type in LIBRARY[name].ops
    x = np.concatenate([floats(200), np.zeros(1, np.float32)])
    (found,), (own,) = gradients(op_type, LIBRARY[name].formula(), build, x)
    np.testing.assert_allclose(found, own, rtol=1e-5)
    (blocked,), _ = gradients(op_type, LIBRARY[name].formula(), lambda x: -build(x), x)
    np.testing.assert_array_equal(blocked, np.zeros_like(x))


def test_selu_has_the_constants_of_tensorflow() -> None:
    y = tf.nn.selu(tf.constant([1.0, -1e3], tf.float64))
    np.testing.assert_allclose(y, [SELU, -SELU_ALPHA], rtol=1e-7)


SURROGATES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "sigmoid_surrogate": (3, lambda x: tf.sigmoid(3 * x)),
    "arctan_surrogate": (3, lambda x: tf.atan(np.pi / 2 * 3 * x) / np.pi),
    "fast_sigmoid_surrogate": (3, lambda x: x / (1 + 3 * tf.abs(x))),
    "hard_tanh_ste": (None, lambda x: tf.clip_by_value(x, -1, 1)),
    "triangle_surrogate": (
        {"height": 0.3, "width": 2},
        lambda x: 0.3 * tf.where(tf.abs(x) < 2, x - x * tf.abs(x) / 4, tf.sign(x)),
    ),
    "straight_through": (None, tf.identity),
}


@pytest.mark.parametrize("name", SURROGATES)
def test_surrogates_are_the_derivatives_of_what_they_stand_for(name: str) -> None:
    parameters, smooth = SURROGATES[name]
    x = floats(100, dtype=np.float64) * 2
    formula = LIBRARY[name].formula(parameters)
    (found,), (own,) = gradients("Sign", formula, tf.sign, x)
    assert own is None or not own.any()
    with tf.GradientTape() as tape:
        given = tf.constant(x)
        tape.watch(given)
        y = smooth(given)
    np.testing.assert_allclose(found, tape.gradient(y, given), rtol=1e-12, atol=1e-14)


def test_guided_relu_is_the_classic_script_to_the_bit() -> None:
    key = f"tests.formula.{next(_KEYS)}"

    @tf.RegisterGradient(key)
    def classic(op: Any, dy: Any) -> Any:
        own = tf.raw_ops.ReluGrad(gradients=dy, features=op.outputs[0])
        return tf.where(dy > 0.0, own, tf.zeros_like(own))

    values = []
    for name in (key, registered(LIBRARY["guided_relu"].formula())):
        with tf1.Graph().as_default() as graph:
            x = tf.constant(floats(7, 300))
            with graph.gradient_override_map({"Relu": name}):
                hidden = tf.nn.relu(x @ tf.constant(floats(300, 300, seed=1)))
                y = tf.nn.relu(hidden @ tf.constant(floats(300, 5, seed=2)))
            with tf1.Session() as session:
                values.append(session.run(tf1.gradients(y * tf.constant(floats(7, 5)), x)[0]))
    assert values[0].tobytes() == values[1].tobytes()
    assert values[0].any()


def wrapped(formula: Formula, build: Callable[[Any], Any], op_type: str) -> Any:
    """A function for tapes, whose ops of one type have the gradient of the formula."""
    key = registered(formula)

    def body(x: Any) -> Any:
        with tf1.get_default_graph().gradient_override_map({op_type: key}):
            return build(x)

    return tf.function(body, input_signature=[tf.TensorSpec(None, tf.float32)])


def test_a_tape() -> None:
    function = wrapped(LIBRARY["clip"].formula({"min": -0.5, "max": 0.5}), tf.square, "Square")
    x = tf.constant([1.0, 2.0, -3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x) * tf.constant([0.1, 1.0, -4.0])
    np.testing.assert_allclose(tape.gradient(y, x), [0.1, 0.5, -0.5], rtol=1e-6)


def test_second_order() -> None:
    function = wrapped(Formula.parse("3 * dy * x ** 2 * where(x > 0, 1, 0)"), tf.square, "Square")
    x = tf.constant([2.0, -2.0])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        first = inner.gradient(y, x)
    np.testing.assert_allclose(first, [12, 0])
    np.testing.assert_allclose(outer.gradient(first, x), [12, 0])


def test_sparse_upstream_gradients_are_made_dense() -> None:
    def build(x: Any) -> Any:
        return tf.gather(tf.identity(x), [0, 2, 2])

    (found,), _ = gradients("Identity", Formula.parse("-dy"), build, floats(4, 1))
    np.testing.assert_array_equal(found, [[-1], [0], [-2], [0]])


def test_a_cast_has_the_dtype_of_its_input() -> None:
    def build(x: Any) -> Any:
        return tf.cast(x, tf.float64)

    (found,), _ = gradients("Cast", Formula.parse("2 * dy"), build, floats(3))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [2, 2, 2])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (["dy"], "the list has 1 formula, and the op has 2 inputs"),
        ("dy * x2", "column 6: the op has no x2"),
        ("dy1", "column 1: the op has no dy1"),
        ("dy > 0", "a gradient is a number"),
    ],
)
def test_a_formula_that_does_not_suit_the_op(source: Any, message: str) -> None:
    with pytest.raises(FormulaError) as caught:
        gradients("AddV2", Formula.parse(source), lambda a, b: a + b, floats(2), floats(2))
    assert message in str(caught.value)
