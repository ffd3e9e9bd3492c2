"""DANN on digits, reversed by hand, by a function and by a Keras layer: the same losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphpatch
from tests.tf import dann

tf = pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def by_hand() -> list[tuple[float, float]]:
    @tf.custom_gradient
    def reverse(x: Any) -> Any:
        return tf.identity(x), lambda dy: -dann.STRENGTH * dy

    return dann.trained_on_a_tape(reverse)


def same(found: list[tuple[float, float]], expected: list[tuple[float, float]]) -> None:
    assert len(found) == dann.STEPS
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_reversal_counts(by_hand: list[tuple[float, float]]) -> None:
    without = dann.trained_on_a_tape(lambda x: x)
    assert np.abs(np.subtract(without, by_hand)).max() > 0.01


def test_the_function(by_hand: list[tuple[float, float]]) -> None:
    same(dann.trained_on_a_tape(lambda x: graphpatch.reverse_gradient(x, dann.STRENGTH)), by_hand)


@pytest.mark.parametrize("name", ["keras", "tf_keras"])
def test_the_layer(by_hand: list[tuple[float, float]], name: str) -> None:
    keras = pytest.importorskip(name)
    if name == "keras":
        from graphpatch.keras import GradientFilter
    else:
        from graphpatch.tf_keras import GradientFilter
    same(dann.trained_by_keras(keras, GradientFilter({"reverse": dann.STRENGTH})), by_hand)
