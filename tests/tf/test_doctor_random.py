"""`doctor` foretells what TensorFlow does with random graphs whose files tell no shapes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.doctor.survey import survey
from tests.examples import ROOT
from tests.models import catalogue
from tests.models.doctor_oracle import Agreement, compare_pairs

pytestmark = pytest.mark.slow

tf = pytest.importorskip("tensorflow")


@pytest.fixture
def builder() -> Iterator[Any]:
    """The script that builds them, with the control flow of TensorFlow 1."""
    path = ROOT / "scripts" / "models" / "build_random.py"
    spec = importlib.util.spec_from_file_location("build_random", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tf.compat.v1.disable_control_flow_v2()
    yield module
    tf.compat.v1.enable_control_flow_v2()


@pytest.mark.parametrize("seed", [5, 9, 21])
def test_it_knows_the_shapes_in_loops_that_tensorflow_infers(
    seed: int, builder: Any, tmp_path: Path
) -> None:
    builder.write(builder.build(seed), seed, tmp_path)
    path = tmp_path / f"random-{seed}.meta"
    [seen] = survey(graphpatch.load(path), control_flow_v2=False)
    found = Agreement()
    compare_pairs(catalogue.read(path), seen.diagnoses, found)
    assert found.differing == []
    assert found.pairs > 10
