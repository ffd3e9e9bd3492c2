"""Patched files with one node or byte altered: each that changes what TensorFlow gives is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzing import altered

from tests.tf.consumer import save
from tests.tf.test_verify_formulas import AS_ONE, FILTER, OP, SAME, TWICE, functions, products

pytest.importorskip("tensorflow")

RULES = [OP, FILTER, *functions(TWICE), SAME, AS_ONE]


@pytest.mark.parametrize("count", [12, pytest.param(1000, marks=pytest.mark.slow)])
def test_what_changes_what_tensorflow_gives_is_noticed(tmp_path: Path, count: int) -> None:
    original = save(products, tmp_path / "model.pb").read_bytes()
    counts = altered.trials(original, RULES, seed=count, count=count)
    assert counts["changed"] > count / 4
    assert counts["missed"] == 0
