"""The documented cases, done live: in place, in a patched graph, and while building.

Each case is a graph, rules, and the gradients that come of them; closed forms are the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import graphpatch

tf = pytest.importorskip("tensorflow")

from tests.tf import live  # noqa: E402
from tests.tf.consumer import same_bits  # noqa: E402
from tests.tf.live import Rule, filtered, overridden  # noqa: E402

tf1 = tf.compat.v1


@dataclass(frozen=True)
class Case:
    """What is built, the rules, what is fed, and the gradient of `loss` by each input.

    `by_key`: keys are enough, so it is done in place and while building.
    """

    build: Callable[[], object]
    rules: list[Rule]
    feeds: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any]
    by_key: bool = True


def x_of(*shape: int) -> Any:
    return tf1.placeholder(tf.float32, shape, name="x")


def product() -> None:
    x = x_of(1, 2)
    w = tf1.placeholder(tf.float32, [2, 3], name="w")
    tf.reduce_sum(tf.matmul(x, w, name="product"), name="loss")


def rounded() -> None:
    tf.reduce_sum(tf.round(x_of(3), name="rounded") * [1.0, 2.0, 3.0], name="loss")


def signs() -> None:
    tf.reduce_sum(tf.sign(x_of(3), name="sign") * [1.0, 2.0, 3.0], name="loss")


def halves() -> None:
    a, b = tf.split(x_of(4), 2, name="op")
    tf.add(tf.reduce_sum(a), 10.0 * tf.reduce_sum(b), name="loss")


def placeholder() -> None:
    x = x_of()
    tf.add(tf.square(x), x, name="loss")


def noisy() -> None:
    x = x_of(2)
    tf.reduce_sum(tf.square(tf.floor(x, name="noisy")), name="loss")


X3 = [-0.3, 0.2, 1.5]
SLOPES = 4.0 / np.cosh(4.0 * np.array(X3)) ** 2 * [1.0, 2.0, 3.0]

CASES = {
    "MatMul by formulas": Case(
        product, [overridden({"op": "MatMul"}, {"formula": ["7 * ones_like(x0)", None]})],
        {"x:0": [[1.0, 2.0]], "w:0": np.full([2, 3], 0.5)},
        {"x:0": [[1.5, 1.5]], "w:0": [[1.0] * 3, [2.0] * 3]}, {"x:0": [[7.0, 7.0]], "w:0": None},
    ),
    "straight through": Case(
        rounded, [{"match": {"op": "Round"}, "patch": {"straight_through": True}}], {"x:0": X3},
        {"x:0": None}, {"x:0": [1.0, 2.0, 3.0]},
    ),
    "a surrogate": Case(
        signs, [{"match": {"op": "Sign"}, "patch": {"surrogate_gradient": "tanh(4 * x)"}}],
        {"x:0": X3}, {"x:0": [0.0] * 3}, {"x:0": SLOPES},
    ),
    "one output of several": Case(
        halves, [filtered("op", {"scale": 100.0}, at="output:0")], {"x:0": [3.0, 1.0, 2.0, 0.0]},
        {"x:0": [1, 1, 10, 10]}, {"x:0": [100, 100, 10, 10]},
    ),
    "a placeholder": Case(
        placeholder, [filtered("x", {"scale": 10.0})], {"x:0": 3.0}, {"x:0": 7.0}, {"x:0": 70.0},
        by_key=False,
    ),
    "backward_as": Case(
        noisy, [{"match": {"op": "Floor"}, "patch": {"backward_as": {"input": 0}}}],
        {"x:0": [1.5, -2.5]}, {"x:0": None}, {"x:0": [3.0, -5.0]}, by_key=False,
    ),
}  # fmt: skip


def differs(graph: Any, case: Case, expected: dict[str, Any]) -> None:
    found = live.gradients(graph, "loss:0", list(expected), case.feeds)
    for one, wanted in zip(found, expected.values(), strict=True):
        if wanted is None:
            assert one is None
        else:
            np.testing.assert_allclose(one, wanted, rtol=2e-6, atol=1e-6)


def built(case: Case) -> Any:
    with tf.Graph().as_default() as graph:
        case.build()
    return graph


@pytest.mark.every(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("in_place", [None, False])
def test_a_live_graph(name: str, in_place: bool | None) -> None:
    case = CASES[name]
    graph, reference = built(case), built(case)
    patched = graphpatch.patch_graph(case.rules, graph, in_place=in_place)
    assert patched.in_place == (case.by_key and in_place is None)
    assert (patched.graph is graph) == patched.in_place
    assert [len(rule["matches"]) for rule in patched.report["rules"]] == [1] * len(case.rules)
    names = [output.name for op in reference.get_operations() for output in op.outputs]
    values = (live.run(one, names, case.feeds) for one in (reference, patched.graph))
    assert all(map(same_bits, *values))
    differs(reference, case, case.before)
    differs(patched.graph, case, case.after)
    if not patched.in_place:
        differs(graph, case, case.before)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.by_key])
def test_while_building(name: str) -> None:
    case = CASES[name]
    with tf.Graph().as_default() as graph, graphpatch.building(case.rules) as building:
        case.build()
    assert [len(rule["matches"]) for rule in building.report["rules"]] == [1] * len(case.rules)
    differs(graph, case, case.after)


def test_a_key_of_the_user_is_set_as_gradient_override_map_sets_it() -> None:
    feeds = {"x:0": [[1.0, 2.0]], "w:0": np.full([2, 3], 0.5)}
    rule = overridden({"op": "MatMul"}, {"registered": SWAPPED})
    in_place, made, oracle = (tf.Graph() for _ in range(3))
    with oracle.as_default(), oracle.gradient_override_map({"MatMul": SWAPPED}):
        product()
    with made.as_default(), graphpatch.building([rule]) as building:
        product()
    with in_place.as_default():
        product()
    report = graphpatch.patch_graph([rule], in_place).report
    wanted = live.gradients(oracle, "loss:0", list(feeds), feeds)
    for graph, done in ((in_place, report), (made, building.report)):
        assert done["consumer"]["session"] == [SWAPPED]
        assert all(map(same_bits, live.gradients(graph, "loss:0", list(feeds), feeds), wanted))
        key = graph.get_operation_by_name("product").get_attr("_gradient_op_type")
        assert key == SWAPPED.encode()


SWAPPED = "LiveSwappedMatMul"


@tf.RegisterGradient(SWAPPED)  # type: ignore[untyped-decorator]
def _swapped(op: Any, dy: Any) -> list[Any]:
    return [tf.ones_like(op.inputs[0]) * 7.0, tf.matmul(op.inputs[0], dy, transpose_a=True)]
