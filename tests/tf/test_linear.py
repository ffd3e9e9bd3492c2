"""A gradient that is linear in dy: the construction gives what the function gives, in every place.

Bit for bit forward; backward the same numbers, NaN and infinities where the formula has them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import PatchError
from tests.draws import quick, selected
from tests.tf.batch import RUNTIMES, Batch, graph
from tests.tf.places import PLACES

tf = pytest.importorskip("tensorflow")

COLUMN = [[1.5], [np.inf], [0.0], [-2.0]]
KERNEL = np.sin(np.arange(18, dtype=np.float32)).reshape(3, 3, 1, 2)
MATRIX = np.arange(15, dtype=np.float32).reshape(3, 5) / 7


class Case(NamedTuple):
    """What is built of x (3 numbers), the name or type of the op, and its new gradient."""

    build: Callable[[Any], Any]
    op: str
    gradient: Any
    kind: str = "override_gradient"
    is_linear: bool = True


def on(op: str, gradient: Any, **rest: Any) -> Case:
    """A case on an op of one input: the type is that of the function, `tf.tanh` for Tanh."""
    return Case(lambda x: getattr(tf, op.lower())(2.0 * x), op, gradient, **rest)


def formula(*texts: str | None) -> dict[str, Any]:
    return {"formula": texts[0] if len(texts) == 1 else list(texts)}


def relu(x: Any) -> Any:
    return tf.nn.relu(2.0 * x)


def half(x: Any) -> Any:
    return tf.cast(tf.tanh(tf.cast(2.0 * x, tf.float16)), tf.float32)


def column(x: Any) -> Any:
    return tf.multiply(2.0 * x, tf.constant(COLUMN) + tf.reduce_sum(0.0 * x))


def convolved(x: Any) -> Any:
    image = tf.reshape(tf.tile(2.0 * x, [16]), [2, 4, 6, 1])
    return tf.nn.conv2d(image, KERNEL, 2, "SAME")


def pooled(x: Any) -> Any:
    image = tf.reshape(tf.tile(2.0 * x, [16]), [2, 4, 6, 1])
    return tf.nn.avg_pool2d(image, 3, 2, "SAME") + tf.nn.max_pool2d(image, 3, 2, "SAME")


def biased(x: Any) -> Any:
    return tf.nn.bias_add(tf.reshape(tf.tile(x, [4]), [4, 3]), 2.0 * x)


def product(x: Any) -> Any:
    return tf.matmul((2.0 * x)[tf.newaxis], MATRIX)


# fmt: off
CASES: dict[str, Case] = {
    "scale": on("Tanh", {"scale": 0.5}),
    "slope": on("Tanh", formula("dy * (1 - y * y) - -dy * x")),
    "infinite slope": on("Tanh", formula("dy / (0 * x)")),
    "choice": on("Tanh", formula("where(x > 0, dy * y, where(x < -1, dy / 0, 0))")),
    "choice by a parameter": on("Sign", "hard_tanh_ste"),
    "deeplift_rescale": Case(relu, "Relu", "deeplift_rescale"),
    "float16": Case(half, "Tanh", formula("dy / (1 + x * x)")),
    "sum over an axis": on("Tanh", formula("x * sum(dy * y, axes=[0], keepdims=true)")),
    "broadcast": Case(column, "Mul_2", "mul"),
    "matrix product": Case(product, "MatMul", "matmul"),
    "fixed matrix": Case(product, "MatMul", formula("2 * matmul(dy, x1, transpose_b=true)", None)),
    "let": on("Tanh", formula("let s = sigmoid(x); dy * s * (1 - s) + dy * s")),
    "own": on("Tanh", formula("own(dy) + own(2 * dy, x / 2)")),
    "own of a relu": Case(relu, "Relu", formula("own(x * dy)")),
    "own of a convolution": Case(convolved, "Conv2D", formula("own(dy * y)", None)),
    "z-plus of a convolution": Case(
        convolved, "Conv2D",
        formula("let w = relu(x1); own(dy * y / (forward(x0, w) + 1), x0, w)", None)),
    "by name": Case(convolved, "Conv2D", formula(
        "conv2d_transpose(dy * conv2d(x0, relu(x1)), x1, x0)", None)),
    "a mean for the largest": Case(pooled, "MaxPool", formula(
        "avg_pool_transpose(dy * avg_pool(x), x)")),
    "forward of dy": Case(convolved, "Conv2D", formula("own(forward(own(dy), x1))", None)),
    "own of a mean pool": Case(pooled, "AvgPool", formula("own(forward(own(dy)) * y)")),
    "own of a max pool": Case(pooled, "MaxPool", formula("own(dy * y)")),
    "own of a bias": Case(biased, "BiasAdd", formula("own(dy * y)", "own(dy * y)")),
    "own of a product": Case(product, "MatMul", formula("own(dy * y)", None)),
    "split": on("Tanh", formula("gather(concat(split(dy, 3, 0), split(dy * x, 3, 2), "
                                "split(y, 3, 1) * split(dy, 3, 1)), [0, 1, 2])"),
                is_linear=False),  # not known to have the shape of x
    "concat": on("Tanh", formula("concat(split(dy, 3, 0), split(dy * x, 3, 2), "
                                 "split(y, 3, 1) * split(dy, 3, 1)) + x * dy")),
    "constants": on("Tanh", {"formula": "dy * w + dy * c",
                             "constants": {"w": [1.5, -2.0, 0.25], "c": 2}}),
    "noise": on("Tanh", formula("dy + 0 * normal_like(dy, seed=1)"), is_linear=False),
    "filter": on("Tanh", {"scale": 0.25}, kind="filter_gradient"),
    "clip": on("Tanh", {"clip": {"min": -0.1, "max": 0.1}}, is_linear=False),
    "norm": on("Tanh", {"clip_by_norm": {"norm": 0.1}}, is_linear=False),
    "affine": on("Tanh", formula("dy + x"), is_linear=False),
    "of its sign": on("Tanh", formula("where(dy > 0, dy, 0)"), is_linear=False),
    "constant": on("Tanh", formula("x * ones_like(dy)"), is_linear=False),
}
# fmt: on
CHOSEN = ("While", "If in While", "PartitionedCall", "v1 while", "v1 cond")
EMITS = ("auto", "function")
NAMES = [*CASES, *(f"infinite slope, {place}" for place in CHOSEN)]
PARAMETERS = quick(NAMES, lambda name: name in list(CASES)[::3] or name.startswith("infinite"))


def case_of(name: str) -> Case:
    return CASES[name if name in CASES else name.rpartition(", ")[0]]


def place_of(name: str) -> Any:
    return PLACES["main" if name in CASES else name.rpartition(", ")[2]]


def rule_of(case: Case, emit: str) -> dict[str, Any]:
    match = {"name": case.op} if "_" in case.op else {"op": case.op}
    return {"match": match, "patch": {case.kind: case.gradient}, "emit": emit}


def built(name: str) -> Any:
    case, place = case_of(name), place_of(name)
    return graph(lambda x: place.build(lambda x: tf.sin(case.build(x)), x), place.v1)


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Batch:
    found = Batch(tmp_path_factory.mktemp("linear"))
    for name in selected(request, "name"):
        for emit in EMITS:
            # Built anew each time: TensorFlow 2 wants functions of one name to be the same.
            found.add(f"{name}, {emit}", built(name), [rule_of(case_of(name), emit)])
    return found.run(request)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", PARAMETERS)
def test_the_gradient_is_that_of_the_function(batch: Batch, name: str, runtime: str) -> None:
    auto, function = (batch.gradient(f"{name}, {emit}", runtime) for emit in EMITS)
    assert auto.shape == function.shape
    place = place_of(name)
    constructed = case_of(name).is_linear and not place.whole and not place.v1
    assert batch.emitted[f"{name}, auto"] == ("construction" if constructed else "function")
    assert batch.emitted[f"{name}, function"] == "function"
    np.testing.assert_allclose(auto, function, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_construction_is_refused_where_it_would_be_wrong(name: str, tmp_path: Path) -> None:
    case, place = case_of(name), place_of(name)
    path = tmp_path / ("model.meta" if place.v1 else "model.pb")
    path.write_bytes(built(name).SerializeToString())
    if case.is_linear and not place.whole and not place.v1:
        result = graphpatch.apply([rule_of(case, "construction")], path)
        assert result.report["rules"][0]["emit"] == "construction"
        assert result.report["consumer"] == {"session": [], "tape": []}
        return
    with pytest.raises(PatchError, match="cannot have this gradient by a construction"):
        graphpatch.apply([rule_of(case, "construction")], path)
