"""The ready patterns find what TensorFlow 2 and 1.15 build, each once, and nothing else in it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from graphpatch.match.ready import READY
from graphpatch.match.select import find
from graphpatch.match.spec import Match
from tests import graphs
from tests.tf import ready_builders
from tests.tf.tensorflow1 import ran

# fmt: off
BUILT: dict[str, list[str]] = {
    "conv_bias_activation": [
        "layers conv2d", "layers conv1d dilated", "layers conv3d", "layers conv2d dilated",
        "layers conv2d transposed", "layers separable", "contrib conv2d", "keras conv2d",
        "keras conv2d leaky", "training",
    ],
    "dense_bias_activation": [
        "layers dense", "layers dense of an image", "layers dense softmax", "keras dense",
        "contrib fully connected", "contrib fully connected image",
    ],
    "folded_batch_norm": ["folded"],
    "batch_norm": [
        "layers batch norm", "layers batch norm training", "layers batch norm fed",
        "contrib batch norm", "contrib batch norm training", "keras batch norm",
        "nn batch norm", "nn batch norm bare", "nn batch norm kept", "training",
    ],
    "fused_batch_norm": [
        "layers fused batch norm", *["layers fused batch norm fed"] * 2,
        "contrib conv2d batch norm", "nn fused batch norm",
    ],
    "layer_norm": [
        "contrib layer norm", "contrib layer norm image", "contrib layer norm bert",
        "contrib layer norm bare", "contrib instance norm", *["contrib lstm"] * 5,
        "keras layer norm", "keras layer norm image", "keras layer norm centered",
        "keras layer norm scaled", "layer norm t2t", "layer norm gpt2", "layer norm moments",
    ],
    "leaky_relu": ["leaky maximum"],
    "prelu": ["prelu chosen", "prelu minimum", "prelu absolute", "keras prelu"],
    "swish": ["nn swish", "nn swish beta", "keras silu", "training"],
    "hard_swish": ["hard swish", "hard swish slim", "hard swish clipped", "keras hard silu"],
    "gelu": [
        "gelu erf", "gelu tanh", "gelu bert", "nn gelu", "nn gelu tanh", "keras gelu",
        "keras gelu tanh",
    ],
    "dropout": [
        "layers dropout", "layers dropout fed", "contrib dropout", "keras dropout", "nn dropout",
        "nn dropout keep", "nn dropout fed", "training",
    ],
    "fake_quantization": ["fake quantization", "fake quantization args"],
    "softmax_cross_entropy": [
        "nn softmax cross entropy", "nn sparse cross entropy", "losses softmax",
        "cross entropy log", "cross entropy eps", "cross entropy clipped",
        "cross entropy log softmax", "training",
    ],
}
NOTHING = {"layers conv2d no bias", "layers dropout off", "losses sigmoid", "gate"}
# fmt: on


def expected(name: str) -> dict[str, int]:
    counts = {pattern: Counter(names)[name] for pattern, names in BUILT.items()}
    return {pattern: count for pattern, count in counts.items() if count}


def found(graph_def: bytes) -> dict[str, int]:
    graph = graphs.opened(graph_def)
    counts = {name: find(graph, Match(pattern=f"@{name}")).count for name in READY}
    return {name: count for name, count in counts.items() if count}


@pytest.mark.slow
def test_what_tensorflow_2_builds() -> None:
    tf = pytest.importorskip("tensorflow")
    built = ready_builders.graphs(tf)
    assert len(built) >= 45
    assert {"keras gelu", "training"} <= set(built)
    for name, graph_def in built.items():
        assert found(graph_def.SerializeToString()) == expected(name), name


@pytest.mark.slow
def test_what_tensorflow_1_builds(tmp_path: Path) -> None:
    ran(str(Path(ready_builders.__file__)), str(tmp_path))
    built = {path.stem: path for path in tmp_path.glob("*.pb")}
    assert len(built) >= 70
    assert {"contrib lstm", "folded", "training"} <= set(built)
    for name, path in built.items():
        assert found(path.read_bytes()) == expected(name), name


def test_every_graph_is_expected_to_hold_something_or_nothing() -> None:
    assert set(BUILT) == set(READY)
    assert NOTHING.isdisjoint(name for names in BUILT.values() for name in names)
    source = Path(ready_builders.__file__).read_text()
    named = {name for names in BUILT.values() for name in names} | NOTHING
    assert [name for name in sorted(named) if f'"{name}": ' not in source] == []
