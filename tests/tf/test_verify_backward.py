"""Which gradients `verify` calls changed, and how often it has them run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from graphpatch.names import OpKey
from graphpatch.runtime.tf_gradients import GradientAnswer
from graphpatch.runtime.verify.compare import gradients_compared
from graphpatch.runtime.verify.process import TensorFlowProcess


@dataclass
class Side:
    """A model whose gradients differ by a little from run to run."""

    values: Mapping[str, float | None]
    noise: float = 0.0
    asked: list[Sequence[str]] = field(default_factory=list)

    def gradients(
        self, sources: Sequence[str], target: str, dy: Any
    ) -> tuple[dict[str, GradientAnswer], set[OpKey]]:
        self.asked.append(sources)
        apart = self.noise * len(self.asked)
        given = {name: self.values[name] for name in sources}
        return {
            name: GradientAnswer("none")
            if value is None
            else GradientAnswer("tensor", np.array([value + apart]))
            for name, value in given.items()
        }, set()


def compared(one: Side, other: Side) -> list[dict[str, Any]]:
    targets = {"y": np.ones(1, np.float32)}
    left, right = cast("TensorFlowProcess", one), cast("TensorFlowProcess", other)
    return gradients_compared(left, right, list(one.values), targets, lambda *_: None)[0]


def test_what_changed_is_run_once_more_for_all_sources() -> None:
    one = Side({"same": 1.0, "noisy": 2.0, "lost": 3.0, "more": 4.0, "new": None}, noise=1e-6)
    other = Side({"same": 1.0 + 1e-6, "noisy": 2.0 + 5e-6, "lost": None, "more": 8.0, "new": 1.0})
    states = {pair["from"]: pair["state"] for pair in compared(one, other)}
    changed = dict.fromkeys(("lost", "more", "new"), "changed")
    assert states == {"same": "same", "noisy": "same", **changed}
    assert one.asked == [list(one.values), ["noisy", "more"]]
    assert len(other.asked) == 1


def test_a_gradient_that_is_zero_in_both_is_told() -> None:
    one = Side({"zero": 0.0, "none": None, "more": 2.0})
    assert {pair["from"]: (pair["state"], pair["zero"]) for pair in compared(one, one)} == {
        "zero": ("same", True),
        "none": ("same", False),
        "more": ("same", False),
    }
