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
from graphpatch.patches import reach

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

Sizes = tuple[int, ...]
Case = tuple[Callable[..., Any], list[Sizes], Any]


def convolved(x: Any, w: Any) -> Any:
    return tf.nn.conv2d(x, w, 1, "SAME", name="op")


def fixed(x: Any) -> Any:
    kernel = np.ones((3, 3, x.shape[-1], 6), np.float32)
    return tf.nn.conv2d(x, tf.identity(tf.constant(kernel)), 1, "SAME", name="op")


def product(x: Any, w: Any) -> Any:
    return tf.matmul(x, w, name="op")


def added(x: Any, y: Any) -> Any:
    return tf1.add(x, y, name="op")


def joined(x: Any, y: Any) -> Any:
    return tf.concat([x, y], 1, name="op")


def mean(axis: Any, keeps: bool = False) -> Callable[..., Any]:
    return lambda x: tf.reduce_mean(x, axis, keeps, name="op")


def pooled(size: int) -> Callable[..., Any]:
    return lambda x: tf.nn.max_pool2d(x, size, size, "VALID", name="op")


def reshaped(*sizes: int) -> Callable[..., Any]:
    return lambda x: tf.reshape(x, sizes, name="op")


def relu(x: Any) -> Any:
    return tf.nn.relu(x, name="op")


def dense(x: Any, w: Any) -> Any:
    bias = tf.constant(np.zeros(w.shape[-1], np.float32))
    return tf.nn.bias_add(tf.matmul(x, w), bias, name="op")


def norm(x: Any) -> Any:
    return tf.reduce_sum(tf.square(x), 1, name="op")


IMAGE, FEW, SQUARE, WIDE = [(2, 4, 4, 3)], [(2, 3)], [(3, 3), (3, 3)], [(2, 3), (3, 5)]
NARROW, SAME = [*IMAGE, (1, 1, 3, 6)], [*IMAGE, (3, 3, 3, 3)]
OWN = ["matmul(dy, transpose(x1))", "matmul(transpose(x0), dy)"]

# fmt: off
OVERRIDES: list[Case] = [
    (convolved, NARROW, "dy"), (convolved, SAME, ["dy", "x1 * 2"]),
    (convolved, [(2, 4, 4, 1), (3, 3, 1, 6)], ["dy", None]), (convolved, NARROW, [None, "dy * x1"]),
    (convolved, SAME, ["x1", None]), (convolved, NARROW, "mean(dy)"),
    (convolved, NARROW, "2 * own(dy)"), (fixed, [(2, 4, 4, 1)], "dy"),
    (fixed, [(2, 4, 4, 2)], "dy"), (product, WIDE, ["dy", None]), (product, SQUARE, "dy"),
    (product, WIDE, OWN), (lambda x, b: tf.nn.bias_add(x, b, name="op"), [(2, 3), (3,)], "dy"),
    (lambda x, b: tf.nn.bias_add(x, b, "NCHW", name="op"), [(2, 3, 4, 4), (3,)], [None, "dy"]),
    (added, [(2, 3), (1, 3)], "dy"), (added, [(2, 3), ()], "dy * x0 + x1"),
    (mean(1), FEW, ["dy", None]), (mean(1, True), FEW, ["dy", None]),
    (mean(None), FEW, ["dy", None]),
    (pooled(2), [(1, 4, 4, 2)], "dy"), (pooled(4), [(1, 4, 4, 2)], "dy"),
    (reshaped(6), FEW, ["dy", None]), (reshaped(6), FEW, ["reshape_like(dy, x0)", None]),
    (reshaped(1, 2, 3), FEW, ["dy", None]), (joined, [(2, 1), (2, 1)], ["dy", "dy", None]),
    (joined, [(2, 3), (2, 4)], ["dy", "dy", None]), (relu, FEW, "dy * x"),
    (lambda x: tf.transpose(x, name="op"), FEW, ["dy", None]),
]
SURROGATES: list[Case] = [
    (mean(1), FEW, "x"), (mean(1), FEW, "mean(x)"), (mean(1, True), FEW, "x"),
    (product, WIDE, "x0"), (product, WIDE, "matmul(x0, x1)"), (product, SQUARE, "x0 * x1"),
    (pooled(2), [(1, 4, 4, 2)], "x"), (lambda x: tf.sign(x, name="op"), FEW, "tanh(x)"),
    (relu, FEW, "x"), (convolved, [(2, 4, 4, 1), (3, 3, 1, 6)], "x0"),
]
DENSE, NORM = "MatMul -> op:BiasAdd; c:Const -> op", "Square -> op:Sum; c:Const -> op"
MATCHES: list[tuple[str, Case, str]] = [
    (DENSE, (dense, WIDE, "dy"), "override"), (DENSE, (dense, SQUARE, "dy"), "override"),
    (DENSE, (dense, WIDE, OWN), "override"), (DENSE, (dense, WIDE, "x0"), "surrogate"),
    (DENSE, (dense, WIDE, "matmul(x0, x1)"), "surrogate"), (NORM, (norm, FEW, "dy"), "override"),
    (NORM, (norm, FEW, "0 * x0 + 1"), "override"), (NORM, (norm, FEW, "tanh(x0)"), "surrogate"),
    (NORM, (norm, [(3, 3)], "dy"), "override"),
    ("Mul -> op:Relu", (lambda x, y: relu(x * y), [(2, 3), (1, 3)], "dy * x1"), "override"),
]
# fmt: on
CASES = [
    *(("", case, "override") for case in OVERRIDES),
    *(("", case, "surrogate") for case in SURROGATES),
    *MATCHES,
]


def model_of(build: Callable[..., Any], sizes: list[Any]) -> Any:
    with tf.Graph().as_default() as graph:
        build(*[tf1.placeholder(tf.float32, one, name=f"in{n}") for n, one in enumerate(sizes)])
    return graph.as_graph_def()


def rule_of(kind: str, formula: Any, pattern: str = "") -> dict[str, Any]:
    patch = {f"{kind}_gradient": formula if kind == "surrogate" else {"formula": formula}}
    if pattern:
        return {"match": {"pattern": pattern}, "patch": {**patch, "on": "match"}}
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


@pytest.mark.every(4)
@pytest.mark.parametrize(("pattern", "case", "kind"), CASES)
def test_what_is_refused_fails_and_what_is_not_runs(
    pattern: str, case: Case, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, sizes, formula = case
    rule, model = rule_of(kind, formula, pattern), model_of(build, sizes)
    with monkeypatch.context() as unchecked:
        unchecked.setattr(reach, "_fits", lambda *_: True)
        is_fit = runs(graphpatch.apply([rule], model).graph_def(), sizes)
    if is_fit:
        assert graphpatch.apply([rule], model)
        return
    with pytest.raises(PatchError, match="the formula has the shape of"):
        graphpatch.apply([rule], model)


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
        return joined(x, y)

    rule = {"match": {"op": "ConcatV2"}, "patch": {"override_gradient": {"formula": "dy * 0.5"}}}
    with pytest.raises(PatchError, match="ConcatV2 'op': the formula has the shape of"):
        graphpatch.apply([rule], model_of(both, [(2, 3), (2, 4)]))


def test_a_model_with_a_batch_of_any_size_is_refused_by_its_channels() -> None:
    sizes = [(None, 4, 4, 3), (1, 1, 3, 6)]
    with pytest.raises(PatchError) as caught:
        graphpatch.apply([rule_of("override", "dy")], model_of(convolved, sizes))
    assert (
        "the formula has the shape of y0, [?, 4, 4, 6], and cannot be summed down or repeated to "
        "that of x0, [?, 4, 4, 3]; filter_gradient changes what flows back to its output"
    ) in str(caught.value)


@pytest.mark.parametrize(("pattern", "case", "kind"), CASES)
def test_nothing_is_refused_where_no_size_is_known(pattern: str, case: Case, kind: str) -> None:
    build, sizes, formula = case
    if build not in (fixed, dense):  # which must know the channels
        model = model_of(build, [None] * len(sizes))
        assert graphpatch.apply([rule_of(kind, formula, pattern)], model).report["rules"]


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
