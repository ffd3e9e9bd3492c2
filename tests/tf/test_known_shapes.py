"""Formulas that the shapes of a model contradict: TensorFlow is asked whether they run.

What is refused fails in a Session, and what is not runs, where the shapes are known in full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import PatchError
from graphpatch.patches import shape_checks

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

Sizes = tuple[int, ...]
Case = tuple[Callable[..., Any], list[Sizes], Any]


def convolved(x: Any, w: Any) -> Any:
    return tf.nn.conv2d(x, w, 1, "SAME", name="op")


def fixed(x: Any) -> Any:
    kernel = np.ones((3, 3, x.shape[-1], 6), np.float32)
    return tf.nn.conv2d(x, tf.identity(tf.constant(kernel)), 1, "SAME", name="op")


# fmt: off
OVERRIDES: dict[str, Case] = {
    "Conv2D, other channels": (convolved, [(2, 4, 4, 3), (1, 1, 3, 6)], "dy"),
    "Conv2D, the same channels": (convolved, [(2, 4, 4, 3), (3, 3, 3, 3)], ["dy", "x1 * 2"]),
    "Conv2D, one channel": (convolved, [(2, 4, 4, 1), (3, 3, 1, 6)], ["dy", None]),
    "Conv2D, a list": (convolved, [(2, 4, 4, 3), (1, 1, 3, 6)], [None, "dy * x1"]),
    "Conv2D, the other input": (convolved, [(2, 4, 4, 3), (3, 3, 3, 3)], ["x1", None]),
    "Conv2D, a mean": (convolved, [(2, 4, 4, 3), (1, 1, 3, 6)], "mean(dy)"),
    "Conv2D, its own": (convolved, [(2, 4, 4, 3), (1, 1, 3, 6)], "2 * own(dy)"),
    "MatMul": (lambda x, w: tf.matmul(x, w, name="op"), [(2, 3), (3, 5)], ["dy", None]),
    "MatMul, square": (lambda x, w: tf.matmul(x, w, name="op"), [(3, 3), (3, 3)], "dy"),
    "MatMul, right": (lambda x, w: tf.matmul(x, w, name="op"), [(2, 3), (3, 5)],
                      ["matmul(dy, transpose(x1))", "matmul(transpose(x0), dy)"]),
    "BiasAdd": (lambda x, b: tf.nn.bias_add(x, b, name="op"), [(2, 3), (3,)], "dy"),
    "BiasAdd, NCHW": (lambda x, b: tf.nn.bias_add(x, b, "NCHW", name="op"), [(2, 3, 4, 4), (3,)],
                      [None, "dy"]),
    "Add, broadcast": (lambda x, y: tf1.add(x, y, name="op"), [(2, 3), (1, 3)], "dy"),
    "Add, a scalar": (lambda x, y: tf1.add(x, y, name="op"), [(2, 3), ()], "dy * x0 + x1"),
    "Mean": (lambda x: tf.reduce_mean(x, 1, name="op"), [(2, 3)], ["dy", None]),
    "Mean, kept": (lambda x: tf.reduce_mean(x, 1, True, name="op"), [(2, 3)], ["dy", None]),
    "Mean of all": (lambda x: tf.reduce_mean(x, name="op"), [(2, 3)], ["dy", None]),
    "MaxPool": (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID", name="op"), [(1, 4, 4, 2)], "dy"),
    "MaxPool to one": (lambda x: tf.nn.max_pool2d(x, 4, 4, "VALID", name="op"), [(1, 4, 4, 2)],
                       "dy"),
    "Reshape": (lambda x: tf.reshape(x, [6], name="op"), [(2, 3)], ["dy", None]),
    "Reshape, as x": (lambda x: tf.reshape(x, [6], name="op"), [(2, 3)],
                      ["reshape_like(dy, x0)", None]),
    "Reshape, more axes": (lambda x: tf.reshape(x, [1, 2, 3], name="op"), [(2, 3)], ["dy", None]),
    "Concat, of ones": (lambda x, y: tf.concat([x, y], 1, name="op"), [(2, 1), (2, 1)],
                        ["dy", "dy", None]),
    "Concat": (lambda x, y: tf.concat([x, y], 1, name="op"), [(2, 3), (2, 4)],
               ["dy", "dy", None]),
    "Transpose": (lambda x: tf.transpose(x, name="op"), [(2, 3)], ["dy", None]),
    "Relu": (lambda x: tf.nn.relu(x, name="op"), [(2, 3)], "dy * x"),
    "Conv2D, constant kernel": (fixed, [(2, 4, 4, 1)], "dy"),
    "Conv2D, constant kernel, other channels": (fixed, [(2, 4, 4, 2)], "dy"),
}

SURROGATES: dict[str, Case] = {
    "Mean": (lambda x: tf.reduce_mean(x, 1, name="op"), [(2, 3)], "x"),
    "Mean, a number": (lambda x: tf.reduce_mean(x, 1, name="op"), [(2, 3)], "mean(x)"),
    "MatMul": (lambda x, w: tf.matmul(x, w, name="op"), [(2, 3), (3, 5)], "x0"),
    "MatMul, itself": (lambda x, w: tf.matmul(x, w, name="op"), [(2, 3), (3, 5)],
                       "matmul(x0, x1)"),
    "MatMul, square": (lambda x, w: tf.matmul(x, w, name="op"), [(3, 3), (3, 3)], "x0 * x1"),
    "Mean, kept": (lambda x: tf.reduce_mean(x, 1, True, name="op"), [(2, 3)], "x"),
    "MaxPool": (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID", name="op"), [(1, 4, 4, 2)], "x"),
    "Sign": (lambda x: tf.sign(x, name="op"), [(2, 3)], "tanh(x)"),
    "Relu": (lambda x: tf.nn.relu(x, name="op"), [(2, 3)], "x"),
    "Conv2D, one channel more": (convolved, [(2, 4, 4, 1), (3, 3, 1, 6)], "x0"),
}

def dense(x: Any, w: Any) -> Any:
    bias = tf.constant(np.zeros(w.shape[-1], np.float32))
    return tf.nn.bias_add(tf.matmul(x, w), bias, name="op")


def norm(x: Any) -> Any:
    return tf.reduce_sum(tf.square(x), 1, name="op")


DENSE = "MatMul -> op:BiasAdd; c:Const -> op"
NORM = "Square -> op:Sum; c:Const -> op"

MATCHES: dict[str, tuple[Callable[..., Any], list[Sizes], Any, str, str]] = {
    "dense": (dense, [(2, 3), (3, 5)], "dy", DENSE, "override_gradient"),
    "dense, square": (dense, [(3, 3), (3, 3)], "dy", DENSE, "override_gradient"),
    "dense, right": (dense, [(2, 3), (3, 5)],
                     ["matmul(dy, transpose(x1))", "matmul(transpose(x0), dy)"], DENSE,
                     "override_gradient"),
    "dense, as its input": (dense, [(2, 3), (3, 5)], "x0", DENSE, "surrogate_gradient"),
    "dense, as a product": (dense, [(2, 3), (3, 5)], "matmul(x0, x1)", DENSE,
                            "surrogate_gradient"),
    "norm": (norm, [(2, 3)], "dy", NORM, "override_gradient"),
    "norm, right": (norm, [(2, 3)], "0 * x0 + 1", NORM, "override_gradient"),
    "norm, as its input": (norm, [(2, 3)], "tanh(x0)", NORM, "surrogate_gradient"),
    "norm, square": (norm, [(3, 3)], "dy", NORM, "override_gradient"),
    "Relu of a product": (lambda x, y: tf.nn.relu(x * y, name="op"), [(2, 3), (1, 3)], "dy * x1",
                          "Mul -> op:Relu", "override_gradient"),
}

# graphpatch does not infer the shapes that these give.
NOT_INFERRED: dict[str, Case] = {
    "Tile": (lambda x: tf.tile(x, [1, 2], name="op"), [(2, 3)], ["dy", None]),
    "Dilation2D": (lambda x, w: tf1.nn.dilation2d(x, w, [1, 1, 1, 1], [1, 1, 1, 1], "VALID",
                                                  name="op"), [(1, 4, 4, 2), (2, 2, 2)], "dy"),
}
# fmt: on

CASES = [
    *(
        pytest.param(*case, "override_gradient", id=f"override {key}")
        for key, case in OVERRIDES.items()
    ),
    *(
        pytest.param(*case, "surrogate_gradient", id=f"surrogate {key}")
        for key, case in SURROGATES.items()
    ),
]


def model_of(build: Callable[..., Any], sizes: list[Any]) -> Any:
    with tf.Graph().as_default() as graph:
        build(*[tf1.placeholder(tf.float32, one, name=f"in{n}") for n, one in enumerate(sizes)])
    return graph.as_graph_def()


def rule_of(kind: str, formula: Any) -> dict[str, Any]:
    patch = {kind: formula if kind == "surrogate_gradient" else {"formula": formula}}
    return {"match": {"name": "op"}, "patch": patch}


def runs(graph_def: Any, sizes: list[Sizes]) -> bool:
    """Whether a Session computes the op, and the gradients by all that it reads."""
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        try:
            tf1.import_graph_def(graph_def, name="")
            given = [graph.get_tensor_by_name(f"in{n}:0") for n in range(len(sizes))]
            op = graph.get_tensor_by_name("op:0")
            asked = [one for one in tf1.gradients(op, given) if one is not None]
            values = [np.random.default_rng(0).random(one, np.float32) + 1 for one in sizes]
            session.run([op, *asked], dict(zip(given, values, strict=True)))
        except (ValueError, tf.errors.InvalidArgumentError):
            return False
    return True


def refusal(rule: dict[str, Any], model: Any) -> str:
    """What `apply` says where it refuses a rule, or nothing."""
    try:
        graphpatch.apply([rule], model)
    except PatchError as error:
        return str(error)
    return ""


def assert_refused_where_it_fails(
    rule: dict[str, Any], model: Any, sizes: list[Sizes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as unchecked:
        unchecked.setattr(shape_checks, "_fits", lambda *_: True)
        result = runs(graphpatch.apply([rule], model).graph_def(), sizes)
    refused = refusal(rule, model)
    assert bool(refused) is not result, refused
    assert not refused or "the formula has the shape of" in refused


@pytest.mark.every(5)
@pytest.mark.parametrize(("build", "sizes", "formula", "kind"), CASES)
def test_what_is_refused_fails_and_what_is_not_runs(
    build: Any, sizes: list[Sizes], formula: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, model = rule_of(kind, formula), model_of(build, sizes)
    assert_refused_where_it_fails(rule, model, sizes, monkeypatch)


@pytest.mark.parametrize("case", MATCHES)
def test_a_match_as_one_op_is_refused_where_it_fails(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, sizes, formula, pattern, kind = MATCHES[case]
    rule = rule_of(kind, formula)
    rule = {"match": {"pattern": pattern}, "patch": {**rule["patch"], "on": "match"}}
    model = model_of(build, sizes)
    assert_refused_where_it_fails(rule, model, sizes, monkeypatch)


def test_each_match_is_compared_with_the_shapes_of_the_model() -> None:
    """The second match reads what the first, which is patched by then, gives."""

    def twice(x: Any, w: Any) -> Any:
        first = tf.nn.relu(tf.matmul(x, w))
        return tf.nn.relu(tf.matmul(first, tf.ones([3, 5])), name="op")

    model = model_of(twice, [(2, 3), (3, 3)])
    patch = {"override_gradient": {"formula": ["dy", None]}, "on": "match"}
    rule = {"match": {"pattern": "MatMul -> Relu"}, "patch": patch}
    with pytest.raises(PatchError, match=r"op.*shape of (dy0|y0), .2, 5., .* of x0, .2, 3."):
        graphpatch.apply([rule], model)


def test_an_op_of_other_dtypes_before_it_does_not_hide_an_op() -> None:
    """A Concat of integers, which the formula does not suit, stands before it."""

    def both(x: Any, y: Any) -> Any:
        tf.concat([tf.constant([1]), tf.constant([2])], 0, name="sizes")
        return tf.concat([x, y], 1, name="op")

    rule = {"match": {"op": "ConcatV2"}, "patch": {"override_gradient": {"formula": "dy * 0.5"}}}
    with pytest.raises(PatchError, match="ConcatV2 'op': the formula has the shape of"):
        graphpatch.apply([rule], model_of(both, [(2, 3), (2, 4)]))


def test_a_model_with_a_batch_of_any_size_is_refused_by_its_channels() -> None:
    sizes = [(None, 4, 4, 3), (1, 1, 3, 6)]
    with pytest.raises(PatchError) as caught:
        graphpatch.apply([rule_of("override_gradient", "dy")], model_of(convolved, sizes))
    assert (
        "the formula has the shape of y0, [?, 4, 4, 6], and cannot be summed down or repeated to "
        "that of x0, [?, 4, 4, 3]; filter_gradient changes what flows back to its output"
    ) in str(caught.value)


@pytest.mark.parametrize("case", NOT_INFERRED)
def test_an_op_that_is_not_inferred_is_not_refused(case: str) -> None:
    build, sizes, formula = NOT_INFERRED[case]
    rule = rule_of("override_gradient", formula)
    assert graphpatch.apply([rule], model_of(build, sizes)).report["rules"]


@pytest.mark.parametrize(("build", "sizes", "formula", "kind"), CASES)
def test_nothing_is_refused_where_no_size_is_known(
    build: Any, sizes: list[Sizes], formula: Any, kind: str
) -> None:
    if build is not fixed:  # which must know the channels
        model = model_of(build, [None] * len(sizes))
        assert graphpatch.apply([rule_of(kind, formula)], model).report["rules"]


def weighted(formula: str) -> Callable[[Any], dict[str, Any]]:
    return lambda w: {"formula": formula, "constants": {"w": w}}


CONSTANTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "override": lambda w: {"override_gradient": weighted("dy * w")(w)},
    "chosen": lambda w: {"override_gradient": weighted("where(w > x, dy, 0)")(w)},
    "a filter": lambda w: {"filter_gradient": weighted("dy * w")(w)},
    "before it": lambda w: {"filter_gradient": weighted("dy + w")(w), "at": "inputs"},
    "a reference": lambda w: {"override_gradient": {"deeplift_rescale": {"reference": w}}},
}


@pytest.mark.every(5)
@pytest.mark.parametrize("sizes", [(7,), (3,), (1,), (4, 1), (2, 1, 4, 3), (5, 1, 1, 1, 1), (2, 3)])
@pytest.mark.parametrize("case", CONSTANTS)
def test_tensors_of_a_rule_that_cannot_meet_the_op_are_refused(case: str, sizes: Sizes) -> None:
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [2, 4, 4, 3], name="x")
        tf.nn.relu(x, name="op")
    rule = {"match": {"op": "Relu"}, "patch": CONSTANTS[case](np.ones(sizes).tolist())}
    try:
        np.broadcast_shapes(sizes, (2, 4, 4, 3))
    except ValueError:
        with pytest.raises(PatchError, match="the shape of a constant"):
            graphpatch.apply([rule], graph)
        return
    result = graphpatch.apply([rule], graph)
    with tf.Graph().as_default() as patched, tf1.Session() as session:
        graphpatch.import_model(result)
        y, x = (patched.get_tensor_by_name(name) for name in ("op:0", "x:0"))
        dx = session.run(tf1.gradients(y, [x])[0], {x: np.ones((2, 4, 4, 3))})
    assert dx.shape == (2, 4, 4, 3)
