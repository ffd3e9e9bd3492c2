"""Gradients that are there and always zero, by input and by output of the op."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.doctor.diagnosis import PairDiagnosis
from graphpatch.analysis.doctor.survey import survey
from tests.graphs import const, graphdef, node

F = {"T": "float32"}
X = node("x", "Placeholder", dtype="float32")
NORM = node("n", "FusedBatchNormV3", "x", "c", "c", "c", "c", T="float32", U="float32")


def diagnosis(folder: Path, target: str, *nodes: Any) -> PairDiagnosis:
    path = folder / "model.pb"
    path.write_bytes(graphdef(X, const("c"), *nodes).SerializeToString())
    [seen] = survey(graphpatch.load(path), ["x"], [target])
    return seen.diagnoses[0]


def test_the_features_of_a_relu_grad(tmp_path: Path) -> None:
    found = diagnosis(tmp_path, "g", node("g", "ReluGrad", "c", "x", **F))
    assert found.verdict == "zero"
    assert [one.kind for one in found.findings] == ["zero_slot"]
    assert "TensorFlow's gradient of output 0 by input 1 is zero" in found.findings[0].what


def test_the_gradients_of_a_relu_grad(tmp_path: Path) -> None:
    assert diagnosis(tmp_path, "g", node("g", "ReluGrad", "x", "c", **F)).verdict == "flows"


@pytest.mark.parametrize(("output", "verdict"), [("n:0", "flows"), ("n:1", "zero")])
def test_only_the_first_output_of_a_batch_norm(tmp_path: Path, output: str, verdict: str) -> None:
    end = node("end", "Neg", output, **F)
    assert diagnosis(tmp_path, "end", NORM, end).verdict == verdict


def test_another_way_round_makes_it_flow(tmp_path: Path) -> None:
    nodes = (node("s", "Sign", "x", **F), node("sum", "AddV2", "s", "x", **F))
    assert diagnosis(tmp_path, "sum", *nodes).verdict == "flows"
    assert diagnosis(tmp_path, "s", *nodes).verdict == "zero"


def test_none_into_the_constant_of_a_padding(tmp_path: Path) -> None:
    pad = node("p", "PadV2", "c", "c", "x", Tpaddings="int32", **F)
    assert diagnosis(tmp_path, "p", pad).verdict == "none"
