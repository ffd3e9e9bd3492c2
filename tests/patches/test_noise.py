"""Patches that stop in the middle of noise say so in the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.patches.noise import random_ops
from tests.graphs import const, node, saved

T = {"T": "float32"}
NOISY = (
    node("x", "Placeholder", dtype="float32"),
    const("shape"),
    node("noise", "RandomStandardNormal", "shape", dtype="float32", T="int32"),
    node("mixed", "Mul", "x", "noise", **T),
)


def notes(folder: Path, patch: dict[str, Any], *behind: Any, name: str = "mixed") -> list[str]:
    path = saved(folder, *NOISY, *behind)
    result = graphpatch.apply([{"match": {"name": name}, "patch": patch}], path)
    found: list[str] = result.report["notes"]
    return [one for one in found if "noisy" in one]


TANH = node("y", "Tanh", "mixed", **T)


@pytest.mark.parametrize("patch", [{"straight_through": True}, {"stop_gradient": True}])
def test_an_op_behind_that_is_not_linear(tmp_path: Path, patch: dict[str, Any]) -> None:
    [found] = notes(tmp_path, patch, TANH)
    assert found.startswith(
        "the gradient is still noisy behind Mul 'mixed': that of Tanh 'y' is taken at a value that "
        "differs from run to run"
    )
    assert "backward_as" in found


@pytest.mark.parametrize("patch", [{"straight_through": True}, {"stop_gradient": True}])
def test_what_is_linear_is_not_told_of(tmp_path: Path, patch: dict[str, Any]) -> None:
    assert notes(tmp_path, patch, node("y", "Neg", "mixed", **T)) == []


def test_a_stop_at_an_input_leaves_the_gradient_of_the_op_itself(tmp_path: Path) -> None:
    [found] = notes(tmp_path, {"stop_gradient": True, "at": "input:1"})
    assert found.startswith("the gradient is still noisy at Mul 'mixed': that of Mul 'mixed'")


def test_without_noise_nothing_is_told(tmp_path: Path) -> None:
    plain = (node("p", "Round", "x", **T), node("q", "Tanh", "p", **T))
    assert notes(tmp_path, {"straight_through": True}, *plain, name="p") == []


def test_many_ops_are_told_of_once(tmp_path: Path) -> None:
    many = [node(f"r{k}", "Round", "mixed", **T) for k in range(5)]
    ends = [node(f"s{k}", "Tanh", f"r{k}", **T) for k in range(5)]
    [found] = notes(tmp_path, {"straight_through": True}, *many, *ends, name="r*")
    assert "and 2 more" in found


def test_which_ops_are_random() -> None:
    assert {"RandomUniform", "TruncatedNormal", "Multinomial", "StatefulUniform"} <= random_ops()
    assert not {"StatelessRandomUniform", "RandomShuffleQueue", "Const"} & random_ops()
