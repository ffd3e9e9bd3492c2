"""Gradients of exported SavedModels with the TensorFlows that scripts/matrix.py installed here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scripts import matrix
from tests.tf.test_places import PATCHES, rule_of
from tests.tf.test_saved_model_out import SHORT, Ran, check, exported, written

tf = pytest.importorskip("tensorflow")

# By place of the op: the first TensorFlow that differentiates it there.
FLOORS = {"main": "2.8", "nested two deep": "2.8", "If in While": "2.12"}
VERSIONS = ("2.8", "2.12", "2.15", "2.18")


def places(version: str) -> list[str]:
    ordered = [runtime.version for runtime in matrix.RUNTIMES]
    return [
        name for name, floor in FLOORS.items() if ordered.index(floor) <= ordered.index(version)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_gradients_and_second_derivatives(version: str, tmp_path: Path) -> None:
    [runtime] = [one for one in matrix.RUNTIMES if one.version == version]
    python = matrix.present(runtime, matrix.ROOT / "build" / "matrix")
    if python is None:
        pytest.skip(f"no TensorFlow {version}; scripts/matrix.py --install has it")
    pairs = [(place, patch) for place in places(version) for patch in SHORT]
    for place, patch in pairs:
        model = written(place, tmp_path)
        exported(model, [rule_of(PATCHES[patch])], tmp_path / f"{place}, {patch}")
    names = [f"{place}, {patch}" for place, patch in pairs]
    twice = [name for name in names if "While" not in name]
    found, here = Ran(tmp_path, names, twice, python), Ran(tmp_path, twice, twice)
    for place, patch in pairs:
        check(found, place, patch)
    for name in twice:
        second, wanted = found(name, "second"), here(name, "second")
        if wanted is None:  # of a gradient that is constant
            assert second is None
        else:
            np.testing.assert_allclose(second, wanted, rtol=1e-5)
    assert sum(here(name, "second") is not None for name in twice) > len(twice) / 2
