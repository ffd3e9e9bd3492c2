"""Matches as one op in live graphs: in place and as they are built, by two keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import PatchError

tf = pytest.importorskip("tensorflow")

from tests.tf import live  # noqa: E402
from tests.tf.live import Rule, filtered, overridden  # noqa: E402

tf1 = tf.compat.v1

X = np.array([[0.1, -0.7], [1.2, 0.3], [-0.4, 0.9]], np.float32)
B = np.array([0.3, -0.2], np.float32)
TANH = np.tanh(X)
ROUND = "x:_ -> Mul:0 -> Round -> RealDiv:0"


def rounded(x: Any, b: Any) -> Any:
    return tf.round(tf.tanh(x) * 4.0) / 4.0 + 0.0 * b


def biased(x: Any, b: Any) -> Any:
    return tf.tanh(tf.add(x, b))


def dense(x: Any, b: Any) -> Any:
    return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, [[1.0, 2.0], [-1.0, 0.5]]), b))


def swish(x: Any, b: Any) -> Any:
    return tf.nn.relu(x) * tf.sigmoid(x) + 0.0 * b


class Case(NamedTuple):
    """A net, the pattern and the patch, and what flows back to x and b where dy is one."""

    build: Callable[[Any, Any], Any]
    pattern: str
    patch: dict[str, Any]
    dx: Any
    db: Any

    @property
    def rule(self) -> Rule:
        return {"match": {"pattern": self.pattern}, "patch": {**self.patch, "on": "match"}}


def formula(*texts: str | None) -> dict[str, Any]:
    return {"override_gradient": {"formula": texts[0] if len(texts) == 1 else list(texts)}}


NONE = np.zeros(2)
CASES = {
    "a formula": Case(
        rounded, ROUND, formula("dy * cos(x0)", None, None), np.cos(TANH) * (1 - TANH**2), NONE
    ),
    "straight through": Case(
        rounded, ROUND, {"straight_through": {"input": "x"}}, 1 - TANH**2, NONE
    ),
    "to both, one broadcast": Case(
        biased, "x:_ -> AddV2:0 -> Tanh", formula("2 * dy * x1", "dy * x"),
        2 * B + 0 * X, X.sum(0),
    ),
    "of another shape inside": Case(
        dense, "x:_ -> MatMul:0 -> BiasAdd:0 -> Relu",
        formula("let u = 2 * x0; dy * u", None, "sum(dy, 0)"), 2 * X, 3 + 0 * B,
    ),
    "what reads the input itself": Case(
        swish, "x:_ -> Relu -> m:Mul:0; x -> Sigmoid -> m:1",
        formula("where(x > 0, dy, 0)"), np.where(X > 0, 1.0, 0.0), NONE,
    ),
}  # fmt: skip


def placeholders() -> tuple[Any, Any]:
    x = tf1.placeholder(tf.float32, [None, 2], "x")
    return x, tf1.placeholder_with_default(B, [2], "b")


def check(case: Case, gradients: Any) -> None:
    for gradient, expected in zip(gradients, (case.dx, case.db), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_match_in_place(name: str) -> None:
    case = CASES[name]
    with tf.Graph().as_default() as graph:
        x, b = placeholders()
        y = case.build(x, b)
        with tf1.Session() as session:
            original = session.run(y, {x: X})
            with tf.control_dependencies([y]):  # of which what is added must not be a part
                assert graphpatch.patch_graph([case.rule], in_place=True).in_place
            gradients = tf.gradients(y, [x, b])
            value, *numbers = session.run([y, *gradients], {x: X})
            check(case, numbers)
            if name == "a formula":
                [second] = session.run(tf.gradients(gradients[0], x), {x: X})
                inner = np.sin(TANH) * (1 - TANH**2) + 2 * TANH * np.cos(TANH)
                np.testing.assert_allclose(second, -inner * (1 - TANH**2), rtol=1e-5)
            np.testing.assert_array_equal(value, original)
        assert graph.get_tensor_by_name(y.name) is y


@pytest.mark.parametrize("name", CASES)
def test_a_match_as_it_is_built(name: str) -> None:
    case = CASES[name]
    with tf.Graph().as_default() as graph:
        x, b = placeholders()
        with graphpatch.building([case.rule]) as built:
            y = case.build(x, b)
        check(case, live.run(graph, tf.gradients(y, [x, b]), {"x:0": X}))
    assert len({match["body"] for match in built.report["rules"][0]["matches"]}) == 1

    @tf.function
    def traced(x: Any, b: Any) -> Any:
        with graphpatch.building([case.rule]):
            return case.build(x, b)

    inputs = tf.constant(X), tf.constant(B)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = traced(*inputs)
    check(case, tape.gradient(y, inputs))


# Rules that keys do not hold in place, and what is said; some behind a rule on the match.
FIRST = CASES["a formula"].rule
REFUSED: dict[str, tuple[list[Rule], str]] = {
    "a surrogate": (
        [Case(rounded, ROUND, {"surrogate_gradient": "x"}, 0, 0).rule],
        "surrogate_gradient of a match as one op adds ops",
    ),
    "what reads y": (
        [Case(rounded, ROUND, formula("dy * y", None, None), 0, 0).rule],
        "the formula reads more than x0, x1, ... and dy",
    ),
    "in a branch": (
        [Case(rounded, "x:_ -> Neg -> Exp", formula("dy"), 0, 0).rule], "in a v1 loop or branch"
    ),
    "no input that dy could pass": (
        [Case(rounded, "x:_ -> MatMul:0", formula("zeros_like(x)", None), 0, 0).rule],
        "MatMul 'end' has no input of its shape",
    ),
    "another gradient of the last op": (
        [FIRST, overridden({"op": "RealDiv"}, "zero")], "ends or follows a match that a rule before"
    ),
    "a filter before the last op": (
        [FIRST, filtered({"op": "RealDiv"}, "sign", at="inputs")], "ends or follows a match"
    ),
    "a filter at the last op, first": (
        [filtered({"op": "RealDiv"}, "sign", at="inputs"), FIRST], "a rule before filters what"
    ),
    "the last op in another match": (
        [FIRST, Case(rounded, "x:_ -> RealDiv:0 -> Add*", formula("dy", None, None), 0, 0).rule],
        "ends or follows a match",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_keys_do_not_hold(name: str) -> None:
    rules, says = REFUSED[name]
    with tf.Graph().as_default() as graph:
        x, b = placeholders()
        tf.matmul(rounded(x, b), tf.ones([2, 3]), name="end")
        tf1.disable_control_flow_v2()
        tf1.cond(b[0] > 0, lambda: tf.exp(-x), lambda: x)
        tf1.enable_control_flow_v2()
    before = graph.as_graph_def()
    with pytest.raises(PatchError, match=says):
        graphpatch.patch_graph(rules, graph, in_place=True)
    assert graph.as_graph_def() == before
    if len(rules) == 1:
        with pytest.warns(UserWarning, match="made a patched copy") as caught:
            assert not graphpatch.patch_graph(rules, graph).in_place
        assert caught[0].filename == __file__


def test_a_rule_of_an_outer_context_comes_too_late() -> None:
    match = {"pattern": "d:RealDiv -> Add*"}
    outer = {"match": match, "patch": {"override_gradient": "zero", "on": "d"}}
    with tf.Graph().as_default(), pytest.raises(PatchError, match="ends or follows a match"):  # noqa: SIM117
        with graphpatch.building([outer]), graphpatch.building([FIRST]):
            rounded(*placeholders())


def test_what_is_exported_needs_the_keys_and_can_be_taken_back(
    tmp_path: Path, run_cli: Callable[..., Any]
) -> None:
    case, files = CASES["a formula"], [tmp_path / "original.pb", tmp_path / "patched.pb"]
    with tf.Graph().as_default() as graph:
        y = case.build(*placeholders())
    files[0].write_bytes(graph.as_graph_def().SerializeToString())
    patched = graphpatch.patch_graph([case.rule], graph)
    files[1].write_bytes(graph.as_graph_def().SerializeToString())
    assert len(patched.report["consumer"]["session"]) == 2
    with tf.Graph().as_default() as again, tf1.Session() as session:
        graphpatch.import_model(files[1])
        x, y = (again.get_tensor_by_name(name) for name in ("x:0", y.name))
        np.testing.assert_allclose(session.run(tf.gradients(y, x), {x: X})[0], case.dx, rtol=1e-6)
    reverted = graphpatch.revert(graphpatch.load(files[1])).model
    assert reverted.graph_def() == graphpatch.load(files[0]).graph_def()
    assert run_cli("verify", *files).code == 0
