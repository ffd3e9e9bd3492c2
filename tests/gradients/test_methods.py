"""LRP, DeepLIFT, DeepSHAP and learned quantization against what defines them, in numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from graphpatch.gradients.formula import Formula
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.library.differences import one_active
from graphpatch.gradients.library.relevance import OF_RELEVANCE
from graphpatch.gradients.spec import InlineFormula, parse_gradient
from graphpatch.recipes import FORMULAS, recipe_rules, several_ops
from tests.gradients.oracle import numpy_gradient, numpy_op_forward

IMAGE = {"strides": [1, 2, 1, 1], "padding": "SAME"}
LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "MatMul": ((2, 5), (5, 3), {}),
    "BatchMatMulV2": ((2, 3, 4), (2, 5, 4), {"adj_y": True}),
    "Conv2D": ((2, 4, 5, 2), (3, 2, 2, 3), IMAGE),
    "DepthwiseConv2dNative": ((2, 4, 5, 2), (2, 3, 2, 2), IMAGE | {"strides": [1, 1, 1, 1]}),
}


def drawn(*shape: int, seed: int) -> Any:
    return np.random.default_rng([*shape, seed]).normal(size=shape)


def dense(op_type: str, x: Any, weights: Any, attrs: Any) -> Any:
    """A linear op as one matrix: what each input gives each output, for an input of ones."""
    rows = [numpy_op_forward(op_type, [one.reshape(x.shape), weights], attrs).ravel()
            for one in np.eye(x.size)]  # fmt: skip
    return np.stack(rows)


def ratio(a: Any, b: Any) -> Any:
    return np.divide(a, b, out=np.zeros_like(a + b), where=b != 0)


def relevance(name: str, op_type: str, x: Any, weights: Any, above: Any) -> Any:
    """What a rule gives the inputs: each output's share, in proportion to what defines the rule."""
    attrs = LAYERS[op_type][2]
    matrix, squares, ones = (
        dense(op_type, x, w, attrs) for w in (weights, weights**2, weights * 0 + 1)
    )
    parts = x.ravel()[:, np.newaxis] * matrix
    positive, negative = np.maximum(parts, 0), np.minimum(parts, 0)
    shares = {
        "lrp_zplus": [(1, positive)],
        "lrp_alpha_beta": [(2, positive), (-1, negative)],
        "lrp_gamma": [(1, parts + 0.25 * x.ravel()[:, np.newaxis] * np.maximum(matrix, 0))],
        "lrp_w2": [(1, squares)],
        "lrp_flat": [(1, ones)],
    }
    return sum(factor * ratio(some, some.sum(0)) @ above.ravel() for factor, some in shares[name])


# The rule, and the recipe whose formula takes relevance itself, in which units may be zero.
RULES = {
    "lrp_zplus": "deep_taylor",
    "lrp_alpha_beta": "",
    "lrp_gamma": "",
    "lrp_w2": "lrp_w2",
    "lrp_flat": "lrp_flat",
}


@pytest.mark.parametrize("op_type", LAYERS)
@pytest.mark.parametrize("name", RULES)
def test_relevance_is_shared_as_the_rule_says(name: str, op_type: str) -> None:
    first, second, attrs = LAYERS[op_type]
    x, weights = drawn(*first, seed=1), drawn(*second, seed=2)
    y = numpy_op_forward(op_type, [x, weights], attrs)
    dy = drawn(*y.shape, seed=3)
    dx, none = numpy_gradient(LIBRARY[name].formula(), [x, weights], [y], [dy], attrs, op_type)
    assert none is None
    assert dx is not None
    expected = relevance(name, op_type, x, weights, y * dy)
    np.testing.assert_allclose((dx * x).ravel(), expected, rtol=1e-5, atol=1e-8)
    if not RULES[name]:
        return
    x.flat[::3], above = 0, abs(dy)
    formula = Formula.parse([OF_RELEVANCE[RULES[name]], None])
    found, _ = numpy_gradient(formula, [x, weights], [y], [above], attrs, op_type)
    expected = relevance(name, op_type, x, weights, above)
    np.testing.assert_allclose(np.ravel(found), expected, rtol=1e-5, atol=1e-8)
    if name != "lrp_zplus":  # no relevance is lost, and units that are zero get some
        np.testing.assert_allclose((dx * drawn(*first, seed=1)).sum(), (y * dy).sum())
        assert np.ravel(found)[::3].all()
        np.testing.assert_allclose(np.sum(found), above.sum())


WITH_BIAS = {"": "MatMul", "_conv": "Conv2D", "_depthwise": "DepthwiseConv2dNative"}


@pytest.mark.parametrize("whole", [0, 1])
@pytest.mark.parametrize("word", WITH_BIAS)
def test_alpha_beta_gives_biases_a_share(word: str, whole: int) -> None:
    """Bach et al., 2015, equation 60: each sum has the part of the bias that is of its sign.

    With `whole` the whole bias, as iNNvestigate's AlphaBetaRule adds it.
    """
    op_type = WITH_BIAS[word]
    first, second, attrs = LAYERS[op_type]
    x, weights = drawn(*first, seed=1), drawn(*second, seed=2)
    product = numpy_op_forward(op_type, [x, weights], attrs)
    bias = drawn(product.shape[-1], seed=4)
    y, dy = product + bias, drawn(*product.shape, seed=3)
    formula = LIBRARY[f"lrp_alpha_beta_bias{word}"].formula({"whole": whole})
    found, *others = numpy_gradient(formula, [x, weights, bias], [y], [dy], attrs)
    assert others == [None, None]
    parts = x.ravel()[:, np.newaxis] * dense(op_type, x, weights, attrs)
    of_bias = np.broadcast_to(bias, y.shape).ravel()
    gives, relevances, shares, shared_out = (y * dy).ravel(), 0.0, 0.0, 0.0
    for weight, sign in ((2, 1), (-1, -1)):
        some = np.maximum(sign * parts, 0)
        added = sign * of_bias if whole else np.maximum(sign * of_bias, 0)
        relevances += weight * ratio(some, some.sum(0) + added) @ gives
        shares += weight * (ratio(added, some.sum(0) + added) @ gives)
        shared_out += weight * gives[some.sum(0) + added != 0].sum()
    assert found is not None
    np.testing.assert_allclose((found * x).ravel(), relevances, rtol=1e-5, atol=1e-8)
    # What the inputs and the biases get is the relevance of the outputs; a sum of none gives none.
    np.testing.assert_allclose((found * x).sum() + shares, shared_out, rtol=1e-5)
    if not word:
        np.testing.assert_allclose(shared_out, gives.sum())


PAIRS: dict[str, Any] = {
    "RealDiv": np.divide,
    "Pow": np.power,
    "SquaredDifference": lambda a, b: (a - b) ** 2,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
}


@pytest.mark.parametrize("op_type", PAIRS)
def test_two_inputs_get_the_shapley_values_of_the_difference(op_type: str) -> None:
    a, b = abs(drawn(4, 5, seed=1)) + 0.5, abs(drawn(4, 1, seed=2)) + 0.5
    a[2, 0] = a[0, 0]
    of, dy = PAIRS[op_type], np.tile(drawn(2, 5, seed=3), (2, 1))
    formula = LIBRARY["deeplift_pair_batch"].formula()
    da, db = numpy_gradient(formula, [a, b], [of(a, b)], [dy], {}, op_type)
    assert da is not None
    assert db is not None
    (a1, a0), (b1, b0) = np.split(a, 2), np.split(b, 2)
    of_a = 0.5 * (of(a1, b1) - of(a0, b1) + of(a1, b0) - of(a0, b0))
    np.testing.assert_allclose(da[:2] * (a1 - a0), dy[:2] * of_a)
    of_b = (of(a1, b1) - of(a0, b0) - of_a) * dy[:2]
    np.testing.assert_allclose(db[:2] * (b1 - b0), of_b.sum(1, keepdims=True))
    np.testing.assert_allclose(da[2:], da[:2])
    assert da[0, 0] == 0


@pytest.mark.parametrize("op_type", PAIRS)
@pytest.mark.parametrize("place", [0, 1])
def test_an_input_beside_a_constant_gets_the_whole_difference(op_type: str, place: int) -> None:
    varying, constant = abs(drawn(4, 5, seed=1)) + 0.5, np.array(0.7)
    inputs = [varying, constant] if place == 0 else [constant, varying]
    y, dy = PAIRS[op_type](*inputs), np.tile(drawn(2, 5, seed=3), (2, 1))
    formula = Formula.parse([one_active(f"x{n}") if n == place else None for n in (0, 1)])
    found = numpy_gradient(formula, inputs, [y], [dy], {}, op_type)
    assert found[1 - place] is None
    dx = found[place]
    assert dx is not None
    np.testing.assert_allclose(dx[:2] * (varying[:2] - varying[2:]), dy[:2] * (y[:2] - y[2:]))


FUNCTIONS: dict[str, Any] = {
    **{"Exp": np.exp, "Log": np.log, "Sqrt": np.sqrt, "Square": np.square, "Abs": abs},
    **{"Expm1": np.expm1, "Log1p": np.log1p, "Reciprocal": np.reciprocal},
    **{"Rsqrt": lambda x: 1 / np.sqrt(x), "Erf": np.vectorize(math.erf)},
}


def slope(function: Any, x: Any) -> Any:
    return (function(x + 1e-6) - function(x - 1e-6)) / 2e-6


@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_near_the_reference_a_function_has_its_derivative(op_type: str) -> None:
    rules = recipe_rules("@deeplift(of=x)")["rules"]
    (patch,) = (rule["patch"] for rule in rules if rule["match"].get("op") == [op_type])
    formula, function = Formula.parse(patch["override_gradient"]["formula"]), FUNCTIONS[op_type]
    x, dy = np.tile(abs(drawn(2, 3, seed=1)) + 0.5, (2, 1)), drawn(4, 3, seed=2)
    (dx,) = numpy_gradient(formula, [x], [function(x)], [dy], {}, op_type)
    np.testing.assert_allclose(dx, dy * slope(function, x), rtol=1e-6)


def one(name: str, op_type: str, x: Any, y: Any, dy: Any, attrs: Any = None, **given: Any) -> Any:
    """Dx of an op of one input."""
    formula = LIBRARY[name].formula(given or None)
    (found,) = numpy_gradient(formula, [x], [y], [dy], attrs, op_type)
    assert found is not None
    return found


@pytest.mark.parametrize("op_type", ["Relu", "Relu6", "Sigmoid", "Tanh", "Softplus", "Elu"])
def test_deeplift_gives_differences_from_the_reference(op_type: str) -> None:
    x, dy = 3 * drawn(4, 5, seed=1), drawn(4, 5, seed=2)
    x[3, 0] = x[1, 0]
    y = numpy_op_forward(op_type, [x], {})
    found = one("deeplift_batch", op_type, x, y, dy)
    delta, gives = x[:2] - x[2:], y[:2] - y[2:]
    np.testing.assert_allclose(found * np.tile(delta, (2, 1)), dy * np.tile(gives, (2, 1)))
    (own,) = numpy_gradient(Formula.parse("own(dy)"), [x], [y], [dy], {}, op_type)
    assert own is not None
    assert found[1, 0] == pytest.approx(own[1, 0])


@pytest.mark.parametrize("name", FORMULAS)
def test_a_leaky_relu_of_several_ops_has_the_gradient_of_one(name: str) -> None:
    x, dy, slope = 3 * drawn(4, 6, seed=1), drawn(4, 6, seed=2), np.array(0.2)
    x[3, 0] = x[1, 0]
    y = np.where(x > 0, x, x * slope)
    single = LIBRARY[LIBRARY[name].by_op_type.get("LeakyRelu", name)]
    expected = one(single.name, "LeakyRelu", x, y, dy, {"alpha": 0.2})
    rule, *_ = several_ops("any", name, {})
    gradient = parse_gradient(rule["patch"]["override_gradient"])
    assert isinstance(gradient, InlineFormula)
    found, of_slope = numpy_gradient(gradient.formula, [x, slope], [y], [dy])
    assert of_slope is None
    np.testing.assert_allclose(found, expected)  # type: ignore[arg-type]


SMOOTH: dict[str, Any] = {
    "swish": lambda x: x / (1 + np.exp(-x)),
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "gelu": lambda x: x * (0.5 + 0.5 * np.vectorize(math.erf)(x / math.sqrt(2))),
}


def of_recipe(kind: str, recipe: str, inputs: list[Any], y: Any, dy: Any) -> Any:
    rules = {rule["name"]: rule for rule in several_ops("any", recipe, {})}
    gradient = parse_gradient(rules[f"@any: {kind}"]["patch"]["override_gradient"])
    assert isinstance(gradient, InlineFormula)
    return numpy_gradient(gradient.formula, inputs, [y], [dy])[0]


@pytest.mark.parametrize("kind", SMOOTH)
def test_smooth_activations_of_several_ops_give_differences(kind: str) -> None:
    x, dy, function = 3 * drawn(4, 6, seed=1), drawn(4, 6, seed=2), SMOOTH[kind]
    x[2:, 0] = x[:2, 0]
    y = function(x)
    found = of_recipe(kind, "deeplift_batch", [x], y, dy)
    given, moved = np.tile(y[:2] - y[2:], (2, 1)), np.tile(x[:2] - x[2:], (2, 1))
    np.testing.assert_allclose(found * moved, dy * given, atol=1e-12)
    np.testing.assert_allclose(found[:, 0], dy[:, 0] * slope(function, x[:, 0]), rtol=1e-6)
    found = of_recipe(kind, "lrp_epsilon", [x], y, dy)
    np.testing.assert_allclose(found, dy * y / np.where(x < 0, x - 1e-4, x + 1e-4))


def test_shap_max_pool_gives_the_difference_of_the_outputs() -> None:
    x = drawn(4, 4, 6, 2, seed=1)
    attrs = {"ksize": [1, 2, 3, 1], "strides": [1, 2, 3, 1], "padding": "VALID"}
    y = numpy_op_forward("MaxPool", [x], attrs)
    dy = np.tile(drawn(2, *y.shape[1:], seed=3), (2, 1, 1, 1))
    found = one("shap_max_pool_batch", "MaxPool", x, y, dy, attrs)[:2]
    axes = (1, 2, 3)
    given, wanted = (x[:2] - x[2:]) * found, dy[:2] * (y[:2] - y[2:])
    np.testing.assert_allclose(given.sum(axes), wanted.sum(axes))


def test_shap_softmax_gives_the_difference_of_the_outputs() -> None:
    x = 2 * drawn(6, 4, seed=1)
    y = numpy_op_forward("Softmax", [x], {})
    for which in range(4):
        dy = np.zeros_like(y)
        dy[:, which] = 1
        found = one("shap_softmax_batch", "Softmax", x, y, dy)[:3]
        # The largest logit is taken from all: its own difference goes to no one.
        top = x.max(axis=1, keepdims=True)
        moved = (x - top)[:3] - (x - top)[3:]
        np.testing.assert_allclose((moved * ratio(found * (x[:3] - x[3:]), moved)).sum(1),
                                   (y[:3] - y[3:])[:, which])  # fmt: skip


def revealed(name: str, inputs: Any, y: Any, dy: Any, attrs: Any = None) -> Any:
    found, *others = numpy_gradient(LIBRARY[name].formula(), inputs, [y], [dy], attrs)
    assert others == [None, None]
    return found


@pytest.mark.parametrize("word", ["_conv", "_depthwise"])
def test_reveal_cancel_of_a_convolution_is_that_of_its_matrix(word: str) -> None:
    """And what it gives the inputs is the difference of the outputs."""
    op_type, attrs = WITH_BIAS[word], {"strides": [1, 1, 1, 1], "padding": "SAME"}
    x, weights = drawn(4, 5, 4, 2, seed=1), drawn(2, 3, 2, 2, seed=2)
    pre = numpy_op_forward(op_type, [x, weights], attrs)
    bias = drawn(pre.shape[-1], seed=3)
    y, dy = np.maximum(pre + bias, 0), np.tile(drawn(2, *pre.shape[1:], seed=4), (2, 1, 1, 1))
    found = revealed(f"reveal_cancel{word}_batch", [x, weights, bias], y, dy, attrs)
    matrix = dense(op_type, x[:1], weights, attrs)
    flat_x, flat_y, flat_dy, flat = (part.reshape(4, -1) for part in (x, y, dy, found))
    given = [flat_x, matrix, np.tile(bias, matrix.shape[1] // len(bias))]
    np.testing.assert_allclose(flat, revealed("reveal_cancel_batch", given, flat_y, flat_dy))
    parts = ((flat_x[:2] - flat_x[2:]) * flat[:2]).sum(1)
    np.testing.assert_allclose(parts, (flat_dy[:2] * (flat_y[:2] - flat_y[2:])).sum(1))


def test_reveal_cancel_shows_both_inputs_of_a_minimum() -> None:
    """min(a, b) = a - relu(a - b): the example of the paper, where rescale gives b alone."""
    x = np.array([[4.0, 1.0], [0.0, 0.0]])
    weights, bias = np.array([[1.0], [-1.0]]), np.zeros(1)
    y = np.maximum(x @ weights + bias, 0)
    found = revealed("reveal_cancel_batch", [x, weights, bias], y, np.full((2, 1), -1.0))
    of_min = found[0] * x[0] + [x[0, 0], 0]
    np.testing.assert_allclose(of_min, [0.5, 0.5])


def test_learned_step_size() -> None:
    x, step = np.array([-9.0, -1.4, 0.2, 1.6, 9.0]), np.array(2.0)
    formula = LIBRARY["lsq"].formula({"low": -2, "high": 3})
    dx, ds = numpy_gradient(formula, [x, step], [x], [np.ones(5)])
    np.testing.assert_allclose(dx, [0, 1, 1, 1, 0])  # type: ignore[arg-type]
    expected = (-2 + (-1 + 0.7) + (0 - 0.1) + (1 - 0.8) + 3) / math.sqrt(5 * 3)
    np.testing.assert_allclose(ds, expected)  # type: ignore[arg-type]


def test_rectified_gradient_and_noise() -> None:
    y = np.array([[1.0, 2.0, 3.0, 0.0], [4.0, 1.0, 1.0, 2.0]])
    dy = np.array([[1.0, 2.0, -1.0, 9.0], [1.0, 1.0, 5.0, 4.0]])
    found = one("rectified_gradient", "Relu", y, y, dy, q=0.5)
    np.testing.assert_allclose(found, [[1, 2, 0, 0], [0, 0, 5, 4]])
    found = one("gradient_noise", "", np.zeros((40, 50)), y, np.ones((40, 50)), stddev=0.5, seed=7)
    assert abs(found.mean() - 1) < 0.05
    assert abs(found.std() - 0.5) < 0.05


def test_a_unit_without_a_spike_passes_a_uniform_part_on() -> None:
    x = np.full((40, 50), -1.0)
    given = {"mean": 1.0, "variance": 0.5, "seed": 3}
    found = one("stochastic_spike_surrogate", "Sign", x, x, 2 * np.ones_like(x), **given)
    assert found.min() >= 0.5
    assert found.max() <= 1.5
    counts, _ = np.histogram(found, 5, (0.5, 1.5))
    assert counts.min() > 0.8 * counts.mean()
