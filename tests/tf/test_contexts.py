"""v1 loops and branches of MetaGraphs, patched at any of their ops, are differentiated as before.

Filters whose gradient is the identity change nothing: the gradients must be bit-equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.errors import PatchError
from graphpatch.patches.inline import why_idle
from graphpatch.patches.target import Target
from tests.draws import quick
from tests.tf import consumer

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

FEEDS = ({"x:0": 0.3, "w:0": 0.9}, {"x:0": -0.3, "w:0": 0.9})


def repeat(body: Callable[[Any], Any], x: Any, times: int = 3, name: str = "loop") -> Any:
    def step(number: Any, y: Any) -> tuple[Any, Any]:
        return number + 1, body(y)

    return tf1.while_loop(lambda number, _: number < times, step, [0, x], name=name)[1]


def loop(x: Any, w: Any) -> Any:
    return repeat(lambda y: tf.tanh(y * w), x)


def branch(x: Any, w: Any) -> Any:
    return tf.cond(x > 0.0, lambda: tf.tanh(x * w), lambda: tf.sin(x * w))


def loop_in_loop(x: Any, w: Any) -> Any:
    return repeat(lambda y: tf.sin(repeat(lambda z: tf.tanh(z * w + x), y * w, 2, "inner")), x)


def branch_in_loop(x: Any, w: Any) -> Any:
    return repeat(lambda y: tf.cond(y > 0.2, lambda: tf.tanh(y * w), lambda: tf.sin(y * w)) * w, x)


def loop_in_branch(x: Any, w: Any) -> Any:
    return tf.cond(x > 0.0, lambda: loop(x, w), lambda: tf.sin(x * w))


def loop_with_a_float_counter(x: Any, w: Any) -> Any:
    def step(y: Any, number: Any) -> tuple[Any, Any]:
        return tf.tanh(y * w), number + 1.0

    return tf1.while_loop(lambda _, number: number < 3.0, step, [x, 0.0])[0]


def scan(x: Any, w: Any) -> Any:
    steps = tf.stack([x, 2.0 * x, x * x])
    return tf.reduce_sum(tf.scan(lambda y, step: tf.tanh(y * w + step), steps, 0.1))


GRAPHS = (
    *(loop, branch, loop_in_loop, branch_in_loop, loop_in_branch),
    *(loop_with_a_float_counter, scan),
)
IDENTITIES: dict[str, dict[str, Any]] = {
    "an op": {"filter_gradient": {"registered": "Identity"}},
    "a call": {"filter_gradient": {"formula": "dy"}},
}


@pytest.fixture(autouse=True)
def _v1_loops() -> Iterator[None]:
    tf1.disable_control_flow_v2()
    yield
    tf1.enable_control_flow_v2()


@pytest.fixture(params=GRAPHS, ids=lambda build: build.__name__)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tf1.Graph().as_default():
        x, w = (tf1.placeholder(tf.float32, [], name=name) for name in "xw")
        tf.identity(request.param(x, w), name="y")
        tf1.train.export_meta_graph(str(tmp_path / "model.meta"))
    return tmp_path / "model.meta"


def answers(meta: Path) -> list[Any]:
    """y, and its gradients by x and w, for each of the feeds."""
    with tf1.Graph().as_default() as graph:
        tf1.train.import_meta_graph(str(meta))
        y, x, w = (graph.get_tensor_by_name(f"{name}:0") for name in "yxw")
        fetches = [y, *tf.gradients(y, [x, w])]
        assert None not in fetches
        return [value for feeds in FEEDS for value in consumer.session(graph, fetches, feeds)]


def rules(model: Path, at: str, kind: str) -> list[dict[str, Any]]:
    """A rule for each op that takes such a patch alone."""
    found, rest = [], {"patch": {**IDENTITIES[kind], "at": at}, "emit": "auto"}
    if kind == "a call":
        rest["emit"] = "function"
    loaded = graphpatch.load(model)
    for node in loaded.graphs[0].main:
        rule = {"match": {"name": node.name}, **rest}
        try:
            idle = why_idle(Target.of(node), at)
            graphpatch.apply([rule], loaded)
        except PatchError:
            continue
        found += [] if idle else [rule]
    return found


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("at", "kind"),
    quick(
        [(at, kind) for at in ("outputs", "inputs") for kind in IDENTITIES],
        lambda at, kind: (at == "inputs") == (kind == "an op"),
    ),
)
def test_at_all_ops_at_once(model: Path, at: str, kind: str) -> None:
    target, found = model.with_name("patched.meta"), rules(model, at, kind)
    merged = {**found[0], "match": {"name": [rule["match"]["name"] for rule in found]}}
    graphpatch.apply([merged], model).model.save(target)
    assert len(found) > 5
    assert all(map(consumer.same_bits, answers(target), answers(model)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", IDENTITIES)
@pytest.mark.parametrize("at", ["outputs", "inputs"])
def test_at_one_op_after_the_other(model: Path, at: str, kind: str) -> None:
    target, expected = model.with_name("patched.meta"), answers(model)
    for rule in rules(model, at, kind):
        graphpatch.apply([rule], model).model.save(target)
        assert all(map(consumer.same_bits, answers(target), expected)), rule
