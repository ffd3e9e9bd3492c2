"""Patches that stop in the middle of noise say so in the report."""

from __future__ import annotations

from typing import Any

import pytest

from graphpatch.patches.backward_as import random_ops
from tests.graphs import const
from tests.patches.one_op import applied, net

NOISY = "x:Placeholder noise:RandomStandardNormal(shape, dtype=float32, T=int32) mixed:Mul(x,noise)"
THROUGH, STOP = {"straight_through": True}, {"stop_gradient": True}
BEHIND = "the gradient is still noisy behind Mul 'mixed': that of Tanh 'y' is taken at a value"
MANY = " ".join(f"r{n}:Round(mixed) s{n}:Tanh(r{n})" for n in range(5))

# The patch, the name of its op, what is behind, and how the one note begins or ends.
NOTES: list[tuple[Any, str, str, str]] = [
    (THROUGH, "mixed", "y:Tanh(mixed)", BEHIND),
    (STOP, "mixed", "y:Tanh(mixed)", BEHIND),
    (THROUGH, "mixed", "y:Neg(mixed)", ""),  # linear
    (STOP, "mixed", "y:Neg(mixed)", ""),
    ({**STOP, "at": "input:1"}, "mixed", "",
     "the gradient is still noisy at Mul 'mixed': that of Mul 'mixed'"),
    (THROUGH, "p", "p:Round(x) q:Tanh(p)", ""),  # without noise
    (THROUGH, "r*", MANY, "and 2 more"),
]  # fmt: skip


@pytest.mark.parametrize(("patch", "name", "behind", "note"), NOTES)
def test_an_op_behind_that_is_not_linear_is_told_once(
    patch: Any, name: str, behind: str, note: str
) -> None:
    rule = {"match": {"name": name}, "patch": patch}
    result = applied(rule, [const("shape"), *net(f"{NOISY} {behind}")])
    notes = [text for text in result.report["notes"] if "noisy" in text]
    assert len(notes) == bool(note)
    assert all(note in text and "backward_as" in text for text in notes)


def test_which_ops_are_random() -> None:
    assert {"RandomUniform", "TruncatedNormal", "Multinomial", "StatefulUniform"} <= random_ops()
    assert not {"StatelessRandomUniform", "RandomShuffleQueue", "Const"} & random_ops()
