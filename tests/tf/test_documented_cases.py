"""The cases that are documented for gradient_override_map and its like, by rules files.

Each graph is built with tf.compat.v1, saved, patched, loaded, and differentiated in a Session.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from tests.tf import consumer

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

Rule = dict[str, Any]


@pytest.fixture(params=["auto", "function", "attr"])
def patch(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    run_cli: Callable[..., Any],
    rules_file: Callable[..., Path],
) -> Callable[..., Path]:
    """Patch a model by a rules file and the command line, however the gradients travel."""

    def patched(model: Path, *rules: Rule) -> Path:
        target = tmp_path / "patched.pb"
        done = run_cli(
            *("apply", rules_file(*rules), model, "-o", target, "--emit", request.param, "--json")
        )
        assert done.code == 0, done.stderr
        [report] = done.json["outputs"]
        needed = report["consumer"]["session"]
        assert bool(needed) == (request.param == "attr")
        assert set(graphpatch.register_gradients(target)) >= set(needed)
        return target

    return patched


def filtered(name: str, gradient: Any, **more: Any) -> Rule:
    return {"match": {"name": name}, "patch": {"filter_gradient": gradient, **more}}


def overridden(name: str, gradient: Any) -> Rule:
    return {"match": {"name": name}, "patch": {"override_gradient": gradient}}


CLIP = {"clip": {"min": -0.1, "max": 0.1}}


@pytest.mark.parametrize("rule", [filtered, overridden])
def test_an_identity_whose_gradient_is_clipped(
    tmp_path: Path, patch: Callable[..., Path], rule: Callable[[str, Any], Rule]
) -> None:
    def build() -> None:
        x = tf1.placeholder(tf.float32, [2], name="x")
        tf.reduce_sum(tf.identity(x, name="features") * [1.0, -0.01], name="loss")

    model, feeds = consumer.save(build, tmp_path / "model.pb"), {"x:0": [5.0, 6.0]}
    [before] = consumer.differentiate(model, "loss:0", ["x:0"], feeds)
    assert before.tolist() == pytest.approx([1.0, -0.01])
    target = patch(model, rule("features", CLIP))
    [after] = consumer.differentiate(target, "loss:0", ["x:0"], feeds)
    assert after.tolist() == pytest.approx([0.1, -0.01])
    both = [consumer.run(path, feeds, ["loss:0", "features:0"]) for path in (model, target)]
    assert all(map(consumer.same_bits, *both))


def test_the_square_of_6x_with_half_the_gradient(
    tmp_path: Path, patch: Callable[..., Path]
) -> None:
    def build() -> None:
        x = tf1.placeholder(tf.float32, [], name="x")
        tf.square(tf.multiply(6.0, x, name="six"), name="y")

    model, feeds = consumer.save(build, tmp_path / "model.pb"), {"x:0": 3.0}
    target = patch(model, filtered("six", {"scale": 0.5}))
    assert consumer.run(model, feeds, ["y:0"]) == consumer.run(target, feeds, ["y:0"]) == [324.0]
    assert consumer.differentiate(model, "y:0", ["x:0"], feeds) == [216.0]
    assert consumer.differentiate(target, "y:0", ["x:0"], feeds) == [108.0]


def test_a_reversal_of_strength_0_3(tmp_path: Path, patch: Callable[..., Path]) -> None:
    def build() -> None:
        x = tf1.placeholder(tf.float32, [2], name="x")
        tf.reduce_sum(tf.identity(x, name="domain") * [2.0, 5.0], name="loss")

    model, feeds = consumer.save(build, tmp_path / "model.pb"), {"x:0": [1.0, 1.0]}
    target = patch(model, filtered("domain", {"reverse": {"strength": 0.3}}))
    [gradient] = consumer.differentiate(target, "loss:0", ["x:0"], feeds)
    assert gradient.tolist() == pytest.approx([-0.6, -1.5])


def test_several_reversals_in_one_graph(tmp_path: Path, patch: Callable[..., Path]) -> None:
    strengths = {"a": 0.1, "b": 1.0, "c": 2.5}

    def build() -> None:
        for name in strengths:
            x = tf1.placeholder(tf.float32, [], name=f"{name}/x")
            tf.square(tf.identity(x, name=f"{name}/reversed"), name=f"{name}/loss")

    rules = [
        filtered(f"{name}/reversed", {"reverse": {"strength": strength}})
        for name, strength in strengths.items()
    ]
    target = patch(consumer.save(build, tmp_path / "model.pb"), *rules)
    for name, strength in strengths.items():
        feeds = {f"{name}/x:0": 2.0}
        [found] = consumer.differentiate(target, f"{name}/loss:0", [f"{name}/x:0"], feeds)
        assert found == pytest.approx(-strength * 4.0)


def test_a_placeholder_whose_gradient_is_filtered(
    tmp_path: Path, patch: Callable[..., Path]
) -> None:
    def build() -> None:
        x = tf1.placeholder(tf.float32, [], name="x")
        tf.add(tf.square(x), x, name="y")

    target = patch(consumer.save(build, tmp_path / "model.pb"), filtered("x", {"scale": 10.0}))
    # What is fed is x itself, and the gradient at it is that which came through the filter.
    assert consumer.run(target, {"x:0": 3.0}, ["y:0", "x:0"]) == [12.0, 3.0]
    assert consumer.differentiate(target, "y:0", ["x:0"], {"x:0": 3.0}) == [70.0]


SEVERAL: dict[str, tuple[Callable[[Any], Any], list[float], list[float]]] = {
    # The op on x = [3, 1, 2, 0], and the gradient of the outputs' sum with factors 1 and 10,
    # before and after output 0 is scaled by 100.
    "Split": (lambda x: tf.split(x, 2, name="op"), [1, 1, 10, 10], [100, 100, 10, 10]),
    "TopKV2": (lambda x: [tf.nn.top_k(x, 2, name="op")[0]], [1, 0, 1, 0], [100, 0, 100, 0]),
    "IdentityN": (
        lambda x: tf.identity_n([x, 2 * x], name="op"),
        [21, 21, 21, 21],
        [120, 120, 120, 120],
    ),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("op", SEVERAL)
def test_one_output_of_several(tmp_path: Path, patch: Callable[..., Path], op: str) -> None:
    make, before, after = SEVERAL[op]

    def build() -> None:
        x = tf1.placeholder(tf.float32, [4], name="x")
        weighted = [tf.reduce_sum(y) * 10.0**k for k, y in enumerate(make(x))]
        tf.add_n(weighted, name="loss")

    model, feeds = consumer.save(build, tmp_path / "model.pb"), {"x:0": [3.0, 1.0, 2.0, 0.0]}
    outputs = [
        output.name for output in consumer.imported(model).get_operation_by_name("op").outputs
    ]
    assert len(outputs) == 2
    target = patch(model, filtered("op", {"scale": 100.0}, at="output:0"))
    for path, expected in ((model, before), (target, after)):
        [gradient] = consumer.differentiate(path, "loss:0", ["x:0"], feeds)
        assert gradient.tolist() == expected
    both = [consumer.run(path, feeds, [*outputs, "loss:0"]) for path in (model, target)]
    assert all(map(consumer.same_bits, *both))


def test_the_gradient_of_matmul_by_the_consumer(tmp_path: Path) -> None:
    @tf.RegisterGradient("SwappedMatMul")
    def _swapped(op: Any, dy: Any) -> list[Any]:
        return [tf.ones_like(op.inputs[0]) * 7.0, tf.matmul(op.inputs[0], dy, transpose_a=True)]

    def build() -> None:
        x = tf1.placeholder(tf.float32, [1, 2], name="x")
        w = tf1.placeholder(tf.float32, [2, 3], name="w")
        tf.matmul(x, w, name="product")

    model, target = consumer.save(build, tmp_path / "model.pb"), tmp_path / "patched.pb"
    result = graphpatch.apply([overridden("product", {"registered": "SwappedMatMul"})], model)
    result.model.save(target)
    assert result.report["consumer"]["session"] == ["SwappedMatMul"]
    assert graphpatch.register_gradients(target) == []
    feeds = {"x:0": [[1.0, 2.0]], "w:0": np.full([2, 3], 0.5)}
    wrt = ["x:0", "w:0"]
    before = consumer.differentiate(model, "product:0", wrt, feeds)
    after = consumer.differentiate(target, "product:0", wrt, feeds)
    assert before[0].tolist() == [[1.5, 1.5]]
    assert after[0].tolist() == [[7.0, 7.0]]
    assert consumer.same_bits(before[1], after[1])


def test_default_takes_an_override_off_again(tmp_path: Path) -> None:
    def build() -> None:
        x = tf1.placeholder(tf.float32, [], name="x")
        with tf1.get_default_graph().gradient_override_map({"Identity": "Neg"}):
            y = tf.identity(x, name="reversed")
        tf.square(y, name="loss")

    model, target = consumer.save(build, tmp_path / "model.pb"), tmp_path / "patched.pb"
    graphpatch.apply([overridden("reversed", "default")], model).model.save(target)
    assert consumer.differentiate(model, "loss:0", ["x:0"], {"x:0": 3.0}) == [-6.0]
    assert consumer.differentiate(target, "loss:0", ["x:0"], {"x:0": 3.0}) == [6.0]
    node = consumer.imported(target).get_operation_by_name("reversed").node_def
    assert "_gradient_op_type" not in node.attr


def test_the_gradient_stops_at_one_input_of_matmul(tmp_path: Path) -> None:
    def build() -> None:
        x = tf1.placeholder(tf.float32, [1, 2], name="x")
        w = tf1.placeholder(tf.float32, [2, 1], name="w")
        tf.matmul(x, w, name="product")

    model, target = consumer.save(build, tmp_path / "model.pb"), tmp_path / "patched.pb"
    rule = {"match": {"op": "MatMul"}, "patch": {"stop_gradient": True, "at": "input:1"}}
    graphpatch.apply([rule], model).model.save(target)
    feeds = {"x:0": [[1.0, 2.0]], "w:0": [[3.0], [4.0]]}
    dx, dw = consumer.differentiate(target, "product:0", ["x:0", "w:0"], feeds)
    assert dx.tolist() == [[3.0, 4.0]]
    assert dw is None
    both = [consumer.run(path, feeds, ["product:0"]) for path in (model, target)]
    assert all(map(consumer.same_bits, *both))


def test_looking_up_multiply(tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    def build() -> None:
        w = tf1.get_variable("w", [2], use_resource=False)
        tf.multiply(w, tf.constant([1.0, 2.0], name="Const"), name="Multiply")

    model = consumer.save(build, tmp_path / "model.pb")
    [op] = run_cli("ops", model, "Multiply", "--json").json["ops"]
    assert (op["type"], op["inputs"]) == ("Mul", ["w/read", "Const"])
    shown = run_cli("ops", model, "Multiply").stdout
    assert all(text in shown for text in ("Mul", "w/read", "Const"))


# A key in the attr, where TensorFlow looks at it and where it does not.


def function(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return tf.function(call, autograph=False)


BODIES: dict[str, Callable[[Any], Any]] = {
    "While": lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, -x), [0, x])[1],
    "If": lambda x: tf.cond(x < 100.0, lambda: 3.0 * -x, lambda: x),
}


@pytest.mark.parametrize("caller", BODIES)
def test_a_key_in_a_body_that_is_differentiated_op_by_op(tmp_path: Path, caller: str) -> None:
    def build() -> None:
        tf.identity(BODIES[caller](tf1.placeholder(tf.float32, [], name="x")), name="y")

    model, target = consumer.save(build, tmp_path / "model.pb"), tmp_path / "patched.pb"
    rule = {"match": {"op": "Neg"}, "patch": {"override_gradient": {"registered": "Identity"}}}
    result = graphpatch.apply([rule], model)
    result.model.save(target)
    assert [match["body"] for match in result.report["rules"][0]["matches"]] != ["main"]
    expected = {"While": (1.0, 1.0), "If": (-3.0, 3.0)}[caller]
    found = [
        consumer.differentiate(path, "y:0", ["x:0"], {"x:0": 2.0})[0] for path in (model, target)
    ]
    assert tuple(found) == expected


def test_a_key_in_a_body_that_is_differentiated_as_a_whole_is_refused(
    tmp_path: Path, run_cli: Callable[..., Any], rules_file: Callable[..., Path]
) -> None:
    def build() -> None:
        x = tf1.placeholder(tf.float32, [], name="x")
        tf.identity(function(lambda x: -x)(x), name="y")

    model, target = consumer.save(build, tmp_path / "model.pb"), tmp_path / "patched.pb"
    rule = {"match": {"op": "Neg"}, "patch": {"override_gradient": {"registered": "Identity"}}}
    done = run_cli("apply", rules_file(rule), model, "-o", target)
    assert done.code == 1
    assert "PartitionedCall" in done.stderr
    assert "TensorFlow ignores the attr silently" in done.stderr
    assert not target.exists()


@pytest.mark.parametrize("patched", [{"stop_gradient": True}, {"filter_gradient": CLIP}])
def test_a_v1_loop_without_its_context_runs_as_before(tmp_path: Path, patched: Rule) -> None:
    def build() -> None:
        x = tf1.placeholder(tf.float32, [3], name="x")

        def body(step: Any, x: Any) -> tuple[Any, Any]:
            return step + 1, tf.tanh(x * 1.5, name="step")

        tf.identity(tf.while_loop(lambda step, _: step < 3, body, [0, x])[1], name="y")

    model = consumer.save(build, tmp_path / "model.pb", control_flow_v2=False)
    target = tmp_path / "patched.pb"
    rule = {"match": {"op": ["Tanh", "Mul"]}, "patch": patched}
    graphpatch.apply([rule], model).model.save(target)
    feeds = {"x:0": [-1.0, 0.25, np.inf]}
    both = [consumer.run(path, feeds, ["y:0"]) for path in (model, target)]
    assert all(map(consumer.same_bits, *both))
    with pytest.raises(AttributeError, match="outer_context"):
        consumer.differentiate(model, "y:0", ["x:0"], feeds)
