"""Formulas that the shapes of a model contradict: TensorFlow is asked whether they run.

What is refused fails in a Session, and what is not runs, where the shapes are known in full.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Wiring
from graphpatch.errors import PatchError
from graphpatch.patches import fit
from tests.examples import ROOT
from tests.tf import consumer

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

DIGITS = ROOT / "scripts" / "models" / "digits.pb"

Sizes = tuple[int, ...]
Case = tuple[Callable[..., Any], list[Sizes], Any]


def op(function: Callable[..., Any], *options: Any, **more: Any) -> Callable[..., Any]:
    """The op of this name."""
    return lambda *xs: function(*xs, *options, name="op", **more)


def fixed(x: Any) -> Any:
    kernel = np.ones((3, 3, x.shape[-1], 6), np.float32)
    return convolved(x, tf.identity(tf.constant(kernel)))


def dense(x: Any, w: Any) -> Any:
    bias = tf.constant(np.zeros(w.shape[-1], np.float32))
    return tf.nn.bias_add(tf.matmul(x, w), bias, name="op")


def norm(x: Any) -> Any:
    return tf.reduce_sum(tf.square(x), 1, name="op")


def joined(x: Any, y: Any) -> Any:
    return tf.concat([x, y], 1, name="op")


convolved, product, added = op(tf.nn.conv2d, 1, "SAME"), op(tf.matmul), op(tf1.add)
biased, relu, summed = op(tf.nn.bias_add), op(tf.nn.relu), op(tf.reduce_mean, 1)
kept, pooled = op(tf.reduce_mean, 1, True), op(tf.nn.max_pool2d, 2, 2, "VALID")
pooled_whole, flattened = op(tf.nn.max_pool2d, 4, 4, "VALID"), op(tf.reshape, [6])

IMAGE, FEW, SQUARE, WIDE = [(2, 4, 4, 3)], [(2, 3)], [(3, 3), (3, 3)], [(2, 3), (3, 5)]
NARROW, SAME = [*IMAGE, (1, 1, 3, 6)], [*IMAGE, (3, 3, 3, 3)]
OWN = ["matmul(dy, transpose(x1))", "matmul(transpose(x0), dy)"]

# fmt: off
OVERRIDES: list[Case] = [
    (op(tf.reshape, [2, 3]), [(6, 1)], ["dy", None]),
    (convolved, NARROW, "dy"), (convolved, SAME, ["dy", "x1 * 2"]),
    (convolved, [(2, 4, 4, 1), (3, 3, 1, 6)], ["dy", None]), (convolved, NARROW, [None, "dy * x1"]),
    (convolved, SAME, ["x1", None]), (convolved, NARROW, "mean(dy)"),
    (convolved, NARROW, "2 * own(dy)"), (fixed, [(2, 4, 4, 1)], "dy"),
    (fixed, [(2, 4, 4, 2)], "dy"), (product, WIDE, ["dy", None]), (product, SQUARE, "dy"),
    (product, WIDE, OWN), (biased, [(2, 3), (3,)], "dy"),
    (op(tf.nn.bias_add, "NCHW"), [(2, 3, 4, 4), (3,)], [None, "dy"]),
    (added, [(2, 3), (1, 3)], "dy"), (added, [(2, 3), ()], "dy * x0 + x1"),
    (summed, FEW, ["dy", None]), (kept, FEW, ["dy", None]), (op(tf.reduce_mean), FEW, ["dy", None]),
    (pooled, [(1, 4, 4, 2)], "dy"), (pooled_whole, [(1, 4, 4, 2)], "dy"),
    (flattened, FEW, ["dy", None]), (flattened, FEW, ["reshape_like(dy, x0)", None]),
    (op(tf.reshape, [1, 2, 3]), FEW, ["dy", None]), (joined, [(2, 1), (2, 1)], ["dy", "dy", None]),
    (joined, [(2, 3), (2, 4)], ["dy", "dy", None]), (relu, FEW, "dy * x"),
    (op(tf.transpose), FEW, ["dy", None]),
]
SURROGATES: list[Case] = [
    (summed, FEW, "x"), (summed, FEW, "mean(x)"), (kept, FEW, "x"), (product, WIDE, "x0"),
    (product, WIDE, "matmul(x0, x1)"), (product, SQUARE, "x0 * x1"),
    (pooled, [(1, 4, 4, 2)], "x"), (op(tf.sign), FEW, "tanh(x)"), (relu, FEW, "x"),
    (convolved, [(2, 4, 4, 1), (3, 3, 1, 6)], "x0"),
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
    values = [np.random.default_rng(0).random(one, np.float32) + 1 for one in sizes]
    feeds = {f"in{n}:0": value for n, value in enumerate(values)}
    try:
        consumer.run(graph_def, feeds, ["op:0"])
        consumer.differentiate(graph_def, "op:0", list(feeds), feeds)
    except (ValueError, tf.errors.InvalidArgumentError):
        return False
    return True


@pytest.mark.every(2)
@pytest.mark.parametrize(("pattern", "case", "kind"), CASES)
def test_what_is_refused_fails_and_what_is_not_runs(
    pattern: str, case: Case, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, sizes, formula = case
    rule, model = rule_of(kind, formula, pattern), model_of(build, sizes)
    if build not in (fixed, dense):  # which must know the channels
        unknown = model_of(build, [None] * len(sizes))
        assert graphpatch.apply([rule], unknown).report["rules"]  # nothing is refused
    with monkeypatch.context() as unchecked:
        unchecked.setattr(fit, "_fits", lambda *_: True)
        is_fit = runs(graphpatch.apply([rule], model).graph_def(), sizes)
    if is_fit:
        assert graphpatch.apply([rule], model)
        return
    with pytest.raises(PatchError, match="the formula has the shape of"):
        graphpatch.apply([rule], model)


def test_each_match_is_compared_with_the_shapes_of_the_model() -> None:
    """The second match reads what the first, which is patched by then, gives."""
    model = model_of(
        lambda x, w: relu(tf.matmul(tf.nn.relu(tf.matmul(x, w)), tf.ones([3, 5]))), [(2, 3), (3, 3)]
    )
    rule = rule_of("override", ["dy", None], "MatMul -> Relu")
    with pytest.raises(PatchError, match=r"op.*shape of (dy0|y0), .2, 5., .* of x0, .2, 3."):
        graphpatch.apply([rule], model)


def test_a_model_with_a_batch_of_any_size_is_refused_by_its_channels() -> None:
    sizes = [(None, 4, 4, 3), (1, 1, 3, 6)]
    with pytest.raises(PatchError) as caught:
        graphpatch.apply([rule_of("override", "dy")], model_of(convolved, sizes))
    assert (
        "the formula has the shape of y0, [?, 4, 4, 6], and cannot be summed down or repeated to "
        "that of x0, [?, 4, 4, 3]; filter_gradient changes what flows back to its output"
    ) in str(caught.value)


CONSTANTS: dict[str, Any] = {
    "override": {"override_gradient": {"formula": "dy * w"}},
    "chosen": {"override_gradient": {"formula": "where(w > x, dy, 0)"}},
    "a filter": {"filter_gradient": {"formula": "dy * w"}},
    "before it": {"filter_gradient": {"formula": "dy + w"}, "at": "inputs"},
}


@pytest.mark.parametrize("sizes", [(7,), (3,), (2, 1, 4, 3), (5, 1, 1, 1, 1)])
@pytest.mark.parametrize("case", CONSTANTS)
def test_tensors_of_a_rule_that_cannot_meet_the_op_are_refused(case: str, sizes: Sizes) -> None:
    patch = copy.deepcopy(CONSTANTS[case])
    next(iter(patch.values()))["constants"] = {"w": np.ones(sizes).tolist()}
    rule, model = {"match": {"op": "Relu"}, "patch": patch}, model_of(relu, [(2, 4, 4, 3)])
    try:
        np.broadcast_shapes(sizes, (2, 4, 4, 3))
    except ValueError:
        with pytest.raises(PatchError, match="the shape of a constant"):
            graphpatch.apply([rule], model)
        return
    patched, feeds = graphpatch.apply([rule], model).graph_def(), {"in0:0": np.ones((2, 4, 4, 3))}
    [dx] = consumer.differentiate(patched, "op:0", ["in0:0"], feeds)
    assert dx.shape == (2, 4, 4, 3)


@pytest.mark.parametrize(
    "patch",
    [
        {"override_gradient": "guided_relu"},
        {"filter_gradient": {"clip": {"min": -1, "max": 1}}},
        {"surrogate_gradient": "tanh(x)"},
        {"stop_gradient": True},
    ],
    ids=lambda patch: next(iter(patch)),
)
def test_shapes_behind_a_patch_are_those_that_tensorflow_infers(patch: dict[str, Any]) -> None:
    rule = {"match": {"op": ["Relu", "Relu6"]}, "patch": patch}
    model = graphpatch.load(graphpatch.apply([rule], DIGITS).graph_def())
    main, graph = model.graphs[0].main, consumer.imported(model.graph_def())
    shapes = Shapes(Wiring(main))
    for name in "block1/relu block1/pool block2/relu block2/pool dense/relu logits".split():
        inferred = graph.get_tensor_by_name(f"{name}:0").shape.as_list()
        assert list(shapes.of((main.by_name[name], 0)) or ()) == inferred
