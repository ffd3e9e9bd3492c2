"""Which gradients `verify` calls changed, and how often it has them run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphpatch.runtime.tf_gradients import GradientAnswer
from graphpatch.runtime.verify.compare import gradients_compared


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
