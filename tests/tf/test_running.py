"""How long a graph may run: without end where it ends by itself, else for a bounded time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import graphpatch  # noqa: E402
from graphpatch.runtime.graph_run import GraphRun  # noqa: E402
from graphpatch.runtime.verify import session  # noqa: E402
from graphpatch.runtime.verify.session import SessionModel  # noqa: E402


def graph_of(build: Callable[[Any], Any]) -> Any:
    """A graph that computes y from x."""
    with tf.Graph().as_default() as graph:
        tf.identity(build(tf.compat.v1.placeholder(tf.float32, [300, 300], "x")), "y")
    return graph


def long(x: Any) -> Any:
    for _ in range(60):
        x = tf.matmul(x, x)
    return x


def waiting(x: Any) -> Any:
    return x + tf.queue.FIFOQueue(1, [tf.float32], [[]]).dequeue()


def repeating(x: Any) -> Any:
    return tf.while_loop(lambda *_: True, lambda z: z + 1, [x])


def side_of(build: Callable[[Any], Any], kind: type = SessionModel) -> Any:
    """What `verify` runs: limited where the graph, or a function of it, may never end."""
    model = graphpatch.load(graph_of(build))
    side = kind(model, model.graphs[0])
    side.feeds = {"x:0": np.zeros((300, 300), np.float32)}
    return side


def limit_to(milliseconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs that may never end have so much time."""
    monkeypatch.setattr(session, "ENDLESS", dict.fromkeys(session.ENDLESS, milliseconds))


def test_a_long_run_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_to(1, monkeypatch)
    assert side_of(long).run(["y:0"], optimise=False)[0].keys() == {"y:0"}


@pytest.mark.parametrize("build", [waiting, tf.function(waiting), repeating])
def test_a_run_without_end_is_cut(monkeypatch: pytest.MonkeyPatch, build: Any) -> None:
    limit_to(300, monkeypatch)
    values, reasons = side_of(build).run(["y:0"], optimise=False)
    assert not values
    assert reasons.keys() == {"y:0"}


def test_gradients_of_a_run_without_end_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_to(300, monkeypatch)
    runs = list[Any]()

    class Counted(SessionModel):
        def _session(self, optimise: bool) -> Any:
            runs.append(optimise)
            return super()._session(optimise)

    side = side_of(lambda x: tf.exp(waiting(x)) * tf.exp(tf.ones([], name="one")), Counted)
    answers, _ = side.gradients(["x:0", "one:0"], "y:0", np.ones((300, 300)))
    assert {answer.kind for answer in answers.values()} == {"error"}
    assert len(runs) == 1


def test_what_fails_changes_nothing_of_what_is_run_again() -> None:
    """Each try starts anew: a random op has drawn in the one that failed."""

    def build(x: Any) -> Any:
        drawn = tf.compat.v1.random_normal([4], seed=3, name="drawn")
        tf.debugging.check_numerics(drawn * float("inf"), "broken", name="broken")
        return x

    running = GraphRun(graph_of(build))
    alone, _ = running.run(["drawn:0"], optimise=False)
    found, reasons = running.run(["drawn:0", "broken:0"], optimise=False)
    assert list(reasons) == ["broken:0"]
    assert found["drawn:0"].tolist() == alone["drawn:0"].tolist()


def test_what_stands_in_a_branch_that_is_not_taken_is_left_out_alone() -> None:
    """TensorFlow tells its number among the names in order."""

    def build(x: Any) -> Any:
        untaken, taken = tf.raw_ops.Switch(data=x, pred=tf.constant(True))
        tf.identity(untaken, name="a")
        return tf.identity(taken, name="b")

    running = GraphRun(graph_of(build), {"x:0": np.zeros((300, 300), np.float32)})
    found, reasons = running.run(["y:0", "b:0", "a:0"], optimise=False)
    assert (found.keys(), list(reasons)) == ({"y:0", "b:0"}, ["a:0"])
