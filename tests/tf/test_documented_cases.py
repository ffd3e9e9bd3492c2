"""The cases that are documented for gradient_override_map and its like, by rules files.

Each graph is built with tf.compat.v1, saved, patched, loaded, and differentiated in a Session.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import graphpatch
from tests.tf import consumer

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

Rule = dict[str, Any]
CLIP = {"clip": {"min": -0.1, "max": 0.1}}
STRENGTHS = {"a": 0.1, "b": 1.0, "c": 2.5}
THREE = ["dy0 + 10 * dy1 + 100 * dy2", "dy0 * dy1 * dy2 + x0 + y1"]


def filtered(name: str, gradient: Any, **more: Any) -> Rule:
    return {"match": {"name": name}, "patch": {"filter_gradient": gradient, **more}}


def overridden(name: str, gradient: Any) -> Rule:
    return {"match": {"name": name}, "patch": {"override_gradient": gradient}}


class Case(NamedTuple):
    """A graph with placeholders of these values, and the gradients of `loss` by them."""

    loss: Callable[..., Any]
    fed: dict[str, Any]
    rules: list[Rule]
    before: list[Any]
    after: list[Any]

    def build(self) -> None:
        inputs = [tf1.placeholder(tf.float32, np.shape(x), name) for name, x in self.fed.items()]
        tf.identity(self.loss(*inputs), name="loss")


def reversals(*inputs: Any) -> Any:
    named = zip(STRENGTHS, inputs, strict=True)
    return tf.add_n([tf.square(tf.identity(x, name=f"reversed_{name}")) for name, x in named])


def three(a: Any, b: Any) -> Any:
    """Each of three upstream gradients is in what flows back to either input of a call."""
    y = tf.function(lambda a, b: (a * b, a + b, a - b))(a, b)
    return tf.add_n([2.0 * y[0], 3.0 * y[1], 5.0 * y[2]])


def weighted(outputs: Callable[[Any], list[Any]]) -> Callable[[Any], Any]:
    return lambda x: tf.add_n([tf.reduce_sum(y) * 10.0**k for k, y in enumerate(outputs(x))])


def of_several(outputs: Callable[[Any], list[Any]], before: Any, after: Any) -> Case:
    """Output 0 of an op of two outputs is scaled by 100."""
    rule, fed = filtered("op", {"scale": 100.0}, at="output:0"), {"x": [3.0, 1.0, 2.0, 0.0]}
    return Case(weighted(outputs), fed, [rule], [before], [after])


def clipped(rule: Rule) -> Case:
    """An identity whose gradient is clipped."""
    return Case(
        lambda x: tf.reduce_sum(tf.identity(x, name="features") * [1.0, -0.01]),
        *({"x": [5.0, 6.0]}, [rule], [[1.0, -0.01]], [[0.1, -0.01]]),
    )


# fmt: off
CASES = {
    "clipped by a filter": clipped(filtered("features", CLIP)),
    "clipped by an override": clipped(overridden("features", CLIP)),
    "the square of 6x with half the gradient": Case(
        lambda x: tf.square(tf.multiply(6.0, x, name="six")), {"x": 3.0},
        [filtered("six", {"scale": 0.5})], [216.0], [108.0]),
    "a reversal of strength 0.3": Case(
        lambda x: tf.reduce_sum(tf.identity(x, name="domain") * [2.0, 5.0]), {"x": [1.0, 1.0]},
        [filtered("domain", {"reverse": {"strength": 0.3}})], [[2.0, 5.0]], [[-0.6, -1.5]]),
    "several reversals in one graph": Case(
        reversals, dict.fromkeys(STRENGTHS, 2.0),
        [filtered(f"reversed_{n}", {"reverse": {"strength": s}}) for n, s in STRENGTHS.items()],
        [4.0] * 3, [-4.0 * strength for strength in STRENGTHS.values()]),
    # What is fed is x itself, and the gradient at it is that which came through the filter.
    "a placeholder": Case(
        lambda x: tf.square(x) + x, {"x": 3.0}, [filtered("x", {"scale": 10.0})], [7.0], [70.0]),
    "Split": of_several(lambda x: tf.split(x, 2, name="op"), [1, 1, 10, 10], [100, 100, 10, 10]),
    "TopKV2": of_several(
        lambda x: [tf.nn.top_k(x, 2, name="op")[0]], [1, 0, 1, 0], [100, 0, 100, 0]),
    "IdentityN": of_several(
        lambda x: tf.identity_n([x, 2 * x], name="op"), [21] * 4, [120] * 4),
    "a multiply that gives one input nothing": Case(
        lambda w, i: tf.multiply(w, i, name="Multiply"), {"W": 3.0, "I": 10.0},
        [overridden("Multiply", {"formula": ["dy * x1", None]})], [10.0, 3.0], [10.0, None]),
    "two inputs and three outputs": Case(
        three, {"a": 7.0, "b": 11.0}, [overridden("PartitionedCall", {"formula": THREE})],
        [2.0 * 11 + 3 + 5, 2.0 * 7 + 3 - 5], [2.0 + 30 + 500, 30.0 + 7 + 18]),
}
# fmt: on


@pytest.mark.parametrize("emit", ["auto", "function", "attr"])
@pytest.mark.parametrize("name", CASES)
def test_in_closed_form_however_the_gradients_travel(
    name: str,
    emit: str,
    tmp_path: Path,
    run_cli: Callable[..., Any],
    rules_file: Callable[..., Path],
) -> None:
    case, target = CASES[name], tmp_path / "patched.pb"
    model = consumer.save(case.build, tmp_path / "model.pb")
    words = (rules_file(*case.rules), model, "-o", target, "--emit", emit, "--json")
    done = run_cli("apply", *words)
    assert done.code == 0, done.stderr
    needed = done.json["outputs"][0]["consumer"]["session"]
    assert bool(needed) == (emit == "attr")
    assert set(graphpatch.register_gradients(target)) >= set(needed)
    feeds = {f"{key}:0": value for key, value in case.fed.items()}
    for path, expected in ((model, case.before), (target, case.after)):
        found = consumer.differentiate(path, "loss:0", list(feeds), feeds)
        values = [dx if dx is None else dx.tolist() for dx in found]
        assert values == [dx if dx is None else pytest.approx(dx) for dx in expected]
    ops = consumer.imported(model).get_operations()
    names = [output.name for op in ops for output in op.outputs]
    both = [consumer.run(path, feeds, names) for path in (model, target)]
    assert all(map(consumer.same_bits, *both))


def test_the_gradient_stops_at_one_input_of_matmul() -> None:
    def build() -> None:
        x = tf1.placeholder(tf.float32, [1, 2], name="x")
        tf.matmul(x, tf1.placeholder(tf.float32, [2, 3], name="w"), name="product")

    feeds = {"x:0": [[1.0, 2.0]], "w:0": np.full([2, 3], 0.5)}
    rule = {"match": {"op": "MatMul"}, "patch": {"stop_gradient": True, "at": "input:1"}}
    model = consumer.built(build)
    after = graphpatch.apply([rule], model).graph_def()
    dx, dw = consumer.differentiate(after, "product:0", ["x:0", "w:0"], feeds)
    assert (dx.tolist(), dw) == ([[1.5, 1.5]], None)
    both = [consumer.run(one, feeds, ["product:0"]) for one in (model, after)]
    assert all(map(consumer.same_bits, *both))


@pytest.mark.parametrize("patched", [{"stop_gradient": True}, {"filter_gradient": CLIP}])
def test_a_v1_loop_without_its_context_runs_as_before(patched: Rule) -> None:
    def build() -> None:
        x = tf1.placeholder(tf.float32, [3], name="x")
        loop = tf.while_loop(
            lambda step, _: step < 3, lambda step, x: (step + 1, tf.tanh(x * 1.5)), [0, x]
        )
        tf.identity(loop[1], name="y")

    model = consumer.built(build, control_flow_v2=False)
    after = graphpatch.apply([{"match": {"op": ["Tanh", "Mul"]}, "patch": patched}], model)
    feeds = {"x:0": [-1.0, 0.25, np.inf]}
    both = [consumer.run(one, feeds, ["y:0"]) for one in (model, after.graph_def())]
    assert all(map(consumer.same_bits, *both))
    with pytest.raises(AttributeError, match="outer_context"):
        consumer.differentiate(model, "y:0", ["x:0"], feeds)
