"""How `verify` runs models: on which values, how long, and how far apart results are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.cli.verify import _difference_in_words
from graphpatch.runtime.graph_run import GraphRun
from graphpatch.runtime.tf_gradients import GradientAnswer
from graphpatch.runtime.values import difference_in_words, distance
from graphpatch.runtime.verify import session
from graphpatch.runtime.verify.compare import compare_gradients, value_sets
from graphpatch.runtime.verify.session import SessionModel

tf = pytest.importorskip("tensorflow")

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(("before", "after", "apart"), [
    ([1.0, -4.0], [1.0, -3.0], (1.0, 0.25)),
    ([NAN, -4.0], [NAN, -3.0], (1.0, 0.25)),
    ([INF, -4.0], [INF, -3.0], (1.0, 0.25)),
    ([INF, -INF, NAN], [INF, -INF, NAN], (0.0, 0.0)),
    ([INF, 1.0], [-INF, 1.0], (INF, INF)),
    ([NAN, 1.0], [0.0, 1.0], (INF, INF)),
    ([0.0, 1.0], [0.0, NAN], (INF, INF)),
    ([0.0], [1e-9], (1e-9, INF)),
    ([0.0], [0.0], (0.0, 0.0)),
    ([], [], (0.0, 0.0)),
    ([1 + 1j, complex(NAN, 0)], [1 + 2j, complex(NAN, 0)], (1.0, 2**-0.5)),
])  # fmt: skip
def test_elements_that_are_not_finite_hide_none(before: Any, after: Any, apart: Any) -> None:
    assert distance(np.array(before), np.array(after)) == pytest.approx(apart)


def test_sets_of_values_are_made_of_what_is_seeded_alone() -> None:
    seeded = {"x": np.array([1, -2, 3, 4], np.float32), "k": np.array([0, 1]), "s": np.array(["a"])}
    found = dict(value_sets(seeded, {"k"}))
    assert list(found) == ["negated", "zeros", "small", "large", "huge", "infinite", "NaN"]
    assert found["negated"]["x"].tolist() == [-1, 2, -3, -4]
    assert found["negated"]["k"] is seeded["k"]
    assert np.isinf(found["infinite"]["x"]).tolist() == [True, True, False, True]
    assert np.isnan(found["NaN"]["x"]).tolist() == [True, False, False, True]
    assert found["huge"]["x"].dtype == np.float32
    assert dict(value_sets(seeded, set(seeded))) == {}
    by_column = dict(value_sets({"x": np.ones((2, 3), np.float32, order="F")}, set()))
    assert np.isnan(by_column["NaN"]["x"]).tolist() == [[True, False, False]] * 2


class Side:
    """A model whose gradients differ by a little from run to run."""

    def __init__(self, noise: float = 0.0, **values: float | None) -> None:
        self.noise, self.values = noise, values
        self.asked: list[Sequence[str]] = []

    def gradients(self, sources: Sequence[str], target: str, dy: Any) -> Any:
        self.asked.append(sources)
        apart = self.noise * len(self.asked)
        answers = {}
        for name in sources:
            value = self.values[name]
            array = None if value is None else np.array([value + apart])
            answers[name] = GradientAnswer("none" if array is None else "tensor", array)
        return answers, set()


def states(original: Any, patched: Any) -> dict[str, tuple[str, bool]]:
    targets = {"y": np.ones(1, np.float32)}
    pairs, _ = compare_gradients(original, patched, [*original.values], targets, lambda *_: None)
    return {p.source: (_difference_in_words(p) if p.alone else p.state, p.zero) for p in pairs}


def test_what_changed_is_run_once_more_for_all_sources() -> None:
    original = Side(1e-6, same=1.0, noisy=2.0, lost=3.0, more=4.0, new=None)
    patched = Side(same=1.0 + 1e-6, noisy=2.0 + 5e-6, lost=None, more=8.0, new=1.0)
    same = dict.fromkeys(("same", "noisy"), ("same", False))
    changed = dict.fromkeys(("lost", "more", "new"), ("changed", False))
    assert states(original, patched) == {**same, **changed}
    assert original.asked == [list(original.values), ["noisy", "more"]]
    assert len(patched.asked) == 1


def test_a_gradient_that_is_zero_in_both_is_told() -> None:
    side = Side(zero=0.0, none=None, more=2.0)
    assert [name for name, (_, is_zero) in states(side, side).items() if is_zero] == ["zero"]
    assert states(Side(y=0.0), Side(-0.0, y=-0.0)) == {"y": ("in the signs of zeros alone", False)}


@pytest.mark.parametrize(("before", "after", "words"), [
    ([0.0], [1.0], "by at most 1; it was 0 everywhere"),
    ([0.0, 1.0], [-0.0, 1.0], "in the signs of zeros alone"),
    ([-NAN, 1.0], [NAN, 1.0], "in the signs of zeros or the bits of NaN alone"),
    ([2**60], [2**60 + 1], "by at most 1 (8.67e-19 of the largest element)"),
])  # fmt: skip
def test_how_far_apart_is_told_in_words(before: Any, after: Any, words: str) -> None:
    told = difference_in_words(np.array(before), np.array(after))
    assert told == f"1 of {len(before)} elements differ, {words}"


# How long a graph may run: without end where it ends by itself, else for a bounded time.


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
    assert (values, reasons.keys()) == ({}, {"y:0"})


def test_gradients_of_a_run_without_end_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_to(300, monkeypatch)
    runs = list[Any]()

    class Counted(SessionModel):
        def _session(self, optimise: bool) -> Any:
            runs.append(optimise)
            return super()._session(optimise)

    side = side_of(lambda x: tf.exp(waiting(x)) * tf.exp(tf.ones([], name="one")), Counted)
    answers, _ = side.gradients(["x:0", "one:0"], "y:0", np.ones((300, 300)))
    assert ({answer.kind for answer in answers.values()}, len(runs)) == ({"error"}, 1)


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
    values, reasons = running.run(["y:0", "b:0", "a:0"], optimise=False)
    assert (values.keys(), list(reasons)) == ({"y:0", "b:0"}, ["a:0"])


def test_larger_images_are_tried_where_others_are_too_small() -> None:
    """Windows of fixed size, as the last pooling of published nets, need images of 224 or 299."""

    def build(size: int) -> Any:
        with tf.Graph().as_default() as graph:
            x = tf.compat.v1.placeholder(tf.float32, [None, None, None, 1], "x")
            y = tf.nn.avg_pool2d(x, size, size, "VALID")
            tf.identity(tf.squeeze(y, [1, 2]), "y")
        return graph

    shapes = {20: (32, 32, 32, 1), 200: (1, 224, 224, 1), 280: (1, 299, 299, 1)}
    for size, shape in shapes.items():
        running = GraphRun(build(size))
        values, reasons = running.choose(["y:0"], {})
        assert (values.keys(), running.feeds["x:0"].shape) == ({"y:0"}, shape), reasons
