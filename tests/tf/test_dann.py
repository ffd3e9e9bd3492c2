"""DANN on digits: reversed by hand, a function, a Keras layer and a rules file: the same losses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from tests.examples import ROOT
from tests.tf import dann, dann_session, tensorflow1

tf = pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def by_hand() -> list[tuple[float, float]]:
    @tf.custom_gradient
    def reverse(x: Any) -> Any:
        return tf.identity(x), lambda dy: -dann.STRENGTH * dy

    return dann.trained_on_a_tape(reverse)


def assert_same(found: list[tuple[float, float]], expected: list[tuple[float, float]]) -> None:
    assert len(found) == dann.STEPS
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_reversal_counts(by_hand: list[tuple[float, float]]) -> None:
    without = dann.trained_on_a_tape(lambda x: x)
    assert np.abs(np.subtract(without, by_hand)).max() > 0.01


def test_the_function(by_hand: list[tuple[float, float]]) -> None:
    assert_same(
        dann.trained_on_a_tape(lambda x: graphpatch.reverse_gradient(x, dann.STRENGTH)), by_hand
    )


@pytest.mark.parametrize("name", ["keras", pytest.param("tf_keras", marks=pytest.mark.slow)])
def test_the_layer(by_hand: list[tuple[float, float]], name: str) -> None:
    keras = pytest.importorskip(name)
    if name == "keras":
        from graphpatch.keras import GradientFilter
    else:
        from graphpatch.tf_keras import GradientFilter
    assert_same(dann.trained_by_keras(keras, GradientFilter({"reverse": dann.STRENGTH})), by_hand)


Run = Callable[..., Any]
Rules = Callable[..., Path]


def patched_training(run_cli: Run, rules_file: Rules, training: Path) -> bytes:
    """The training graph as the command leaves it, its gradients built anew."""
    out = training.with_name("patched.meta")
    rules = rules_file(*dann_session.RULES)
    ran = run_cli("apply", rules, training, "-o", out, "--rebuild-gradients")
    assert ran.code == 0, ran.stderr
    assert "the gradients of loss by features/w" in ran.stdout
    return out.read_bytes()


@pytest.mark.slow
def test_a_rules_file_on_a_training_graph(
    by_hand: list[tuple[float, float]], run_cli: Run, rules_file: Rules, tmp_path: Path
) -> None:
    """The optimizer inside trains with the reversal; without --rebuild-gradients it does not."""
    training = tmp_path / "training.meta"
    training.write_bytes(dann_session.built())
    batches = list(dann.batches())
    new = patched_training(run_cli, rules_file, training)
    found = dann_session.trained(new, batches)
    assert_same(found, by_hand)
    assert_same(dann_session.trained(dann_session.by_hand(), batches), by_hand)
    plain = dann_session.trained(dann_session.built(), batches)
    assert_same(plain, dann.trained_on_a_tape(lambda x: x))
    assert np.abs(np.subtract(plain, found)).max() > 0.01


@pytest.mark.slow
def test_a_training_graph_of_tensorflow_1(
    by_hand: list[tuple[float, float]], run_cli: Run, rules_file: Rules, tmp_path: Path
) -> None:
    """Built by TensorFlow 1.15, patched here, and trained by TensorFlow 1.15 again."""

    def run(*words: object) -> None:
        tensorflow1.ran("-m", "tests.tf.dann_session", *map(str, words), cwd=ROOT)

    training, new, feeds = (tmp_path / name for name in ("old.meta", "new.meta", "feeds.npz"))
    run("build", training)
    new.write_bytes(patched_training(run_cli, rules_file, training))
    images, labels = map(np.stack, zip(*dann.batches(), strict=True))
    np.savez(feeds, images=images, labels=labels)
    run("train", new, feeds, tmp_path / "losses.npy")
    assert_same(np.load(tmp_path / "losses.npy").tolist(), by_hand)
