"""Backward: which gradients are others than in the original, and how far apart they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from graphpatch.graph.heads import Progress
from graphpatch.names import OpKey
from graphpatch.runtime.tf_gradients import GradientAnswer
from graphpatch.runtime.values import upstream_weights
from graphpatch.runtime.verify.forward import distance, same_bits

NOISE = 10  # times by which a gradient may differ more than it does from run to run


class Differentiable(Protocol):
    """A model that gives gradients."""

    def gradients(
        self, sources: Sequence[str], target: str, dy: Any
    ) -> tuple[dict[str, GradientAnswer], set[OpKey]]:
        """The gradient of a target, weighted by dy, by each source; and which ops were asked."""


@dataclass(frozen=True, slots=True)
class ComparedGradient:
    """The gradient of one pair before and after.

    `state` is `same`, `changed`, `fails` (it could be had before) or `uncompared`. `zero`: it is
    the same, and every element is 0, so that these values tell nothing of the two models.
    """

    source: str
    target: str
    state: str
    before: str
    after: str
    largest: float = 0.0
    relative: float = 0.0
    zero: bool = False

    def document(self) -> dict[str, Any]:
        """The pair as `verify --json` prints it."""
        return {
            "from": self.source,
            "to": self.target,
            "state": self.state,
            "before": self.before,
            "after": self.after,
            "max_abs": finite(self.largest),
            "max_rel": finite(self.relative),
            "zero": self.zero,
        }


def finite(number: float) -> float | str:
    """A number as JSON has it, which knows no infinity."""
    return number if np.isfinite(number) else str(number)


@dataclass
class ComparedBackward:
    """All pairs, and the ops of the patched graph whose gradient was asked for."""

    pairs: list[ComparedGradient] = field(default_factory=list)
    asked: set[OpKey] = field(default_factory=set)


def backward(
    one: Differentiable,
    other: Differentiable,
    sources: Sequence[str],
    targets: Mapping[str, Any],
    say: Progress,
) -> ComparedBackward:
    """Compare the gradients of each target, which has this value, by each source."""
    found = ComparedBackward()
    for place, (target, value) in enumerate(targets.items()):
        say("gradients", place, len(targets))
        dy = upstream_weights(target, value)
        before, _ = one.gradients(sources, target, dy)
        after, asked = other.gradients(sources, target, dy)
        found.asked |= asked
        pairs = [_compare_gradient(name, target, before[name], after[name]) for name in sources]
        noise = _noise_of_gradients(one, pairs, before, dy)
        found.pairs += [
            replace(pair, state="same") if 0 < pair.largest <= NOISE * noise[pair.source] else pair
            for pair in pairs
        ]
    return found


def _noise_of_gradients(
    one: Differentiable,
    pairs: Sequence[ComparedGradient],
    before: Mapping[str, GradientAnswer],
    dy: Any,
) -> Mapping[str, float]:
    """By how much each gradient that changed differs from run to run; all are run once more."""
    found = dict.fromkeys(before, 0.0)
    changed = [pair.source for pair in pairs if pair.state == "changed" and pair.largest > 0]
    if changed:
        again, _ = one.gradients(changed, pairs[0].target, dy)
        values = {name: two.value for name, two in again.items() if two.kind == "tensor"}
        found |= {name: distance(before[name].value, two)[0] for name, two in values.items()}
    return found


def _compare_gradient(
    source: str, target: str, before: GradientAnswer, after: GradientAnswer
) -> ComparedGradient:
    words = str(before), str(after)
    if before.kind == after.kind == "error":
        return ComparedGradient(source, target, "uncompared", *words)
    if after.kind == "error":
        return ComparedGradient(source, target, "fails", *words)
    if "tensor" not in (before.kind, after.kind):
        return ComparedGradient(source, target, "same", *words)
    if before.kind != after.kind:
        return ComparedGradient(source, target, "changed", *words)
    if same_bits(before.value, after.value):
        is_zero = not np.any(before.value)
        return ComparedGradient(source, target, "same", *words, zero=is_zero)
    if before.value.shape != after.value.shape:
        words = str(list(before.value.shape)), str(list(after.value.shape))
        return ComparedGradient(source, target, "fails", *words)
    return ComparedGradient(source, target, "changed", *words, *distance(before.value, after.value))


def in_state(pairs: Sequence[ComparedGradient], state: str) -> Iterator[ComparedGradient]:
    """The pairs in this state."""
    return (pair for pair in pairs if pair.state == state)
