"""On which values `verify` runs models, how far apart results are, and which gradients changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from graphpatch.runtime.tf_gradients import GradientAnswer
from graphpatch.runtime.values import difference_in_words, distance
from graphpatch.runtime.verify.compare import gradients_compared, value_sets

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
    sources = list(original.values)
    pairs, _ = gradients_compared(original, patched, sources, targets, lambda *_: None)
    return {pair["from"]: (pair["state"], pair["zero"]) for pair in pairs}


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


def test_of_zeros_no_part_of_the_largest_element_is_told() -> None:
    words = difference_in_words(np.zeros(2), np.ones(2))
    assert words == "2 of 2 elements differ, by at most 1; it was 0 everywhere"
