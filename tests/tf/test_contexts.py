"""v1 loops and branches of MetaGraphs, patched at any of their ops, are differentiated as before.

Filters whose gradient is the identity change nothing: the gradients must be bit-equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import PatchError
from graphpatch.patches.filter import why_idle
from graphpatch.patches.target import Target
from tests.draws import quick
from tests.tf import consumer, loop_graphs

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1


def loop_with_a_float_counter(tf1: Any, x: Any, w: Any) -> Any:
    def step(y: Any, number: Any) -> tuple[Any, Any]:
        return tf.tanh(y * w), number + 1.0

    return tf1.while_loop(lambda _, number: number < 3.0, step, [x, 0.0])[0]


GRAPHS = (
    *(loop_graphs.counted, loop_graphs.branch, loop_graphs.nested, loop_graphs.branch_in_loop),
    *(loop_graphs.loop_in_branch, loop_with_a_float_counter, loop_graphs.scan),
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
def meta(request: pytest.FixtureRequest) -> Any:
    return loop_graphs.built(tf1, request.param)


def check(meta: Any, *rules: Any) -> None:
    """Compare y and its gradients by x and w before and after these rules."""
    found = []
    for message in (meta, graphpatch.apply(rules, meta).meta_graph_def()):
        with tf1.Graph().as_default() as graph:
            tf1.train.import_meta_graph(message)
        found.append(np.ravel(loop_graphs.answers(tf1, graph)))
    assert consumer.same_bits(*found), rules


def rules(meta: Any, at: str, kind: str) -> list[dict[str, Any]]:
    """A rule for each op that takes such a patch alone."""
    emit = "function" if kind == "a call" else "auto"
    found, rest = [], {"patch": {**IDENTITIES[kind], "at": at}, "emit": emit}
    loaded = graphpatch.load(meta)
    for node in loaded.graphs[0].main:
        rule = {"match": {"name": node.name}, **rest}
        try:
            idle = why_idle(Target.of(node), at)
            graphpatch.apply([rule], loaded)
        except PatchError:
            continue
        found += [] if idle else [rule]
    return found


KINDS = [(at, kind) for at in ("outputs", "inputs") for kind in IDENTITIES]


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("at", "kind"), quick(KINDS, lambda at, kind: (at == "inputs") == (kind == "an op"))
)
def test_at_all_ops_at_once(meta: Any, at: str, kind: str) -> None:
    found = rules(meta, at, kind)
    assert len(found) > 5
    check(meta, {**found[0], "match": {"name": [rule["match"]["name"] for rule in found]}})


@pytest.mark.slow
@pytest.mark.parametrize(("at", "kind"), KINDS)
def test_at_one_op_after_the_other(meta: Any, at: str, kind: str) -> None:
    for rule in rules(meta, at, kind):
        check(meta, rule)
