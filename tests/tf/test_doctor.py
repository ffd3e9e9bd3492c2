"""`doctor` foretells what TensorFlow does with every tensor of v1 loops and branches that it built.

Of real models only placeholders and outputs are asked about; here it is what lies inside, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.doctor.survey import survey
from tests.models.doctor_oracle import Agreement, compare_pairs
from tests.tf import loop_graphs

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

Build = Callable[[Any, Any, Any], Any]


@pytest.fixture(autouse=True)
def _v1_loops() -> Iterator[None]:
    tf1.disable_control_flow_v2()
    yield
    tf1.enable_control_flow_v2()


def agreement(meta: Any, folder: Path) -> Agreement:
    """Of the gradients of each float that it holds, by x and w."""
    path = folder / "model.meta"
    path.write_bytes(meta.SerializeToString())
    model = graphpatch.load(path)
    main = model.graphs[0].main
    names = [
        f"{node.name}:{place}"
        for node in main
        for place, arg in enumerate(node.outputs or ())
        if arg.dtype == "float32"
    ]
    [seen] = survey(model, ["x", "w"], names, control_flow_v2=False)
    found = Agreement()
    compare_pairs(meta, seen.diagnoses, found)
    return found


@pytest.mark.parametrize("build", loop_graphs.GRAPHS, ids=lambda build: build.__name__)
def test_it_foretells_the_gradient_of_each_tensor(build: Build, tmp_path: Path) -> None:
    found = agreement(loop_graphs.built(tf1, build), tmp_path)
    assert found.differing == []
    assert found.verdicts["flows"]
    assert found.verdicts["none"]


def test_loops_that_were_built_without_backprop(tmp_path: Path) -> None:
    def build(tf1: Any, x: Any, w: Any) -> Any:
        return loop_graphs.repeat(tf1, lambda y: tf1.tanh(y * w), x, back_prop=False)

    found = agreement(loop_graphs.built(tf1, build), tmp_path)
    assert found.differing == []


def test_the_gradient_of_a_gradient(tmp_path: Path) -> None:
    def build(tf1: Any, x: Any, w: Any) -> Any:
        return tf1.gradients(loop_graphs.counted(tf1, x, w), [w])[0]

    found = agreement(loop_graphs.built(tf1, build), tmp_path)
    assert found.differing == []
    assert found.verdicts["flows"]
