"""Under XLA a gradient that a function carries raises, never zeros; a construction is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from tests.tf.batch import graph
from tests.tf.consumer import taped

pytestmark = pytest.mark.slow

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

Case = tuple[Callable[[Any], Any], dict[str, Any], dict[str, Any]]
X = [-0.7, 0.2, 0.6]
SIGN = "0.53 * sign(dy)"  # which no other test registers
TANH = {"op": "Tanh"}


def override(formula: Any) -> dict[str, Any]:
    return {"override_gradient": {"formula": formula}}


def tanh(x: Any) -> Any:
    return tf.tanh(2.0 * x)


def product(x: Any) -> Any:
    return tf.matmul(2.0 * x, tf.ones([3, 5]))


# fmt: off
# What is built, what is matched, the patch. Inputs and outputs differ in shape and number too.
CARRIED: dict[str, Case] = {
    "override": (tanh, TANH, override(SIGN)),
    "broadcast": (lambda x: tf.add(2.0 * x, tf.ones([4, 1, 3])), {"name": "Add"},
                  override([SIGN, None])),
    "product": (product, {"op": "MatMul"},
                override(["0.53 * sign(matmul(dy, x1, transpose_b=true))", None])),
    "match": (lambda x: (2.0 * x) * tf.sigmoid(x),
              {"pattern": "a:_ -> m:0; b:_ -> s:Sigmoid -> m:Mul:1"},
              {**override([SIGN, SIGN]), "on": "match"}),
}
LINEAR: dict[str, Case] = {
    "linear": (tanh, TANH, override("dy * x * y")),
    "broadcast": (lambda x: tf.multiply(2.0 * x, tf.ones([4, 1, 3])), {"name": "Mul_1"},
                  override(["dy * x1 * y", None])),
    "product": (product, {"op": "MatMul"},
                override(["matmul(dy, x1, transpose_b=true) * x0", None])),
    "filter": (tanh, TANH, {"filter_gradient": {"scale": 0.25}}),
}
# fmt: on


def patched(case: Case, folder: Path, emit: str) -> Any:
    build, match, patch = case
    (folder / "model.pb").write_bytes(graph(lambda x: build(x[tf.newaxis])).SerializeToString())
    return graphpatch.apply([{"match": match, "patch": patch, "emit": emit}], folder / "model.pb")


def differentiated(result: Any) -> list[Any]:
    """The sum of the gradient, or what was raised: by three ways, without XLA and with it."""
    model = result.graph_def()
    imported = tf1.wrap_function(lambda: tf1.import_graph_def(model, name=""), [])
    whole, answers = imported.prune("x:0", "y:0"), []
    for jit in (False, True):
        compiled = tf.function(whole, jit_compile=jit)
        inside = tf.function(lambda x: taped(whole, x)[1], jit_compile=jit)
        gradients = tf.function(lambda x: tf.gradients(whole(x), x)[0], jit_compile=jit)
        for ask in (lambda x, f=compiled: taped(f, x)[1], inside, gradients):
            try:
                answers.append(float(tf.reduce_sum(ask(tf.constant(X)))))
            except Exception as error:
                answers.append(type(error).__name__)
    assert float(tf.reduce_max(tf.abs(compiled(tf.constant(X)) - whole(tf.constant(X))))) < 1e-6
    return answers


@pytest.mark.parametrize("name", CARRIED)
def test_it_raises_where_nobody_registered_it(name: str, tmp_path: Path) -> None:
    result = patched(CARRIED[name], tmp_path, "auto")
    assert all(isinstance(answer, str) for answer in differentiated(result))
    graphpatch.register_gradients(result)
    sums = differentiated(result)
    assert sums == pytest.approx([sums[0]] * 6)
    assert sums[0] != 0


@pytest.mark.parametrize("name", LINEAR)
def test_a_construction_needs_no_registration(name: str, tmp_path: Path) -> None:
    sums = differentiated(patched(LINEAR[name], tmp_path, "auto"))
    function = patched(LINEAR[name], tmp_path, "function")
    graphpatch.register_gradients(function)
    assert sums == pytest.approx([differentiated(function)[0]] * 6, rel=1e-5)
    assert sums[0] != 0
