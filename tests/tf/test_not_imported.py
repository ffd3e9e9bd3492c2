"""Models that graphpatch reads and TensorFlow does not import: said by all that run them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import ModelError
from graphpatch.runtime.references import references
from tests.graphs import graphdef, metagraph, node

tf = pytest.importorskip("tensorflow")

MODELS = {
    "a name": (node("a b", "Relu", "x"), node("y", "Relu", "h")),
    "an attr": (node("y", "Relu", "h"), node("z", "Relu", "x", T="string")),
    "a colocation": (node("y", "Relu", "h", _class=[b"loc:@\xff"]),),
}


def graph_of(name: str) -> Any:
    return graphdef(node("x", "Placeholder"), node("h", "Tanh", "x"), *MODELS[name], producer=27)


def in_a_graph(model: Path) -> None:
    with tf.Graph().as_default():
        graphpatch.import_model(model)


RUNS: dict[str, Callable[[Path], Any]] = {
    "import_model": in_a_graph,
    "doctor --run": lambda model: graphpatch.diagnose(model, "x", "y", run=True),
    "split": lambda model: graphpatch.split(model, "y", "h", "x"),
    "references": lambda model: references(model, {"x": np.ones(1, np.float32)}),
}


@pytest.mark.parametrize("suffix", [".pb", ".meta"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("run", RUNS)
def test_what_tensorflow_says_is_said(run: str, name: str, suffix: str, tmp_path: Path) -> None:
    graph = graph_of(name)
    message = graph if suffix == ".pb" else metagraph(graph, "serve")
    path = tmp_path / f"model{suffix}"
    path.write_bytes(message.SerializeToString())
    with pytest.raises(ModelError, match=r"model\.(pb|meta): TensorFlow does not import it: ") as e:
        RUNS[run](path)
    assert "\n" not in str(e.value)


@pytest.mark.slow  # starts TensorFlow anew
def test_verify_says_nothing_of_tensorflows_log(
    run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    """The command read TensorFlow's error from the process that ran it, and so imported that."""
    path = tmp_path / "model.pb"
    path.write_bytes(graph_of("an attr").SerializeToString())
    done = run_cli("verify", path, path, command=[sys.executable, "-m", "graphpatch"])
    assert (done.code, done.stderr) == (4, "")
    assert "TensorFlow does not import it: " in done.stdout
