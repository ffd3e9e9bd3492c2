"""The ready patterns find what TensorFlow 2 and 1.15 build, each once, and nothing else in it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import graphpatch
from graphpatch.match.ready import READY
from graphpatch.match.select import find
from graphpatch.match.spec import Match
from tests import graphs
from tests.tf import ready_builders
from tests.tf.tensorflow1 import ran

# fmt: off
BUILT: dict[str, list[str]] = {
    "conv_bias_activation": ["layers conv2d", "layers conv1d dilated", "layers conv3d",
     "layers conv2d dilated", "layers conv2d transposed", "layers separable", "contrib conv2d",
     "keras conv2d", "keras conv2d leaky", "training"],
    "dense_bias_activation": ["layers dense", "layers dense of an image", "layers dense softmax",
     "keras dense", "contrib fully connected", "contrib fully connected image"],
    "folded_batch_norm": ["folded"],
    "batch_norm": ["layers batch norm", "layers batch norm training", "layers batch norm fed",
     "contrib batch norm", "contrib batch norm training", "keras batch norm", "nn batch norm",
     "nn batch norm bare", "nn batch norm kept", "training"],
    "fused_batch_norm": ["layers fused batch norm", *["layers fused batch norm fed"] * 2,
     "contrib conv2d batch norm", "nn fused batch norm"],
    "layer_norm": ["contrib layer norm", "contrib layer norm image", "contrib layer norm bert",
     "contrib layer norm bare", "contrib instance norm", *["contrib lstm"] * 5, "keras layer norm",
     "keras layer norm image", "keras layer norm centered", "keras layer norm scaled",
     "layer norm t2t", "layer norm gpt2", "layer norm moments"],
    "leaky_relu": ["leaky maximum", "leaky variable"],
    "leaky_relu_by_abs": ["leaky abs"],
    "prelu": ["prelu chosen", "prelu minimum", "prelu absolute", "keras prelu", "prelu keras 2",
     "prelu facenet"],
    "prelu_of_negated_slope": ["prelu folded"],
    "prelu_of_half_slope": ["prelu half"],
    "masked_relu": ["masked"],
    "swish": ["nn swish", "nn swish beta", "keras silu", "training"],
    "hard_swish": ["hard swish", "hard swish slim", "hard swish clipped", "keras hard silu"],
    "gelu": ["gelu erf", "gelu tanh", "gelu bert", "nn gelu", "nn gelu tanh", "keras gelu",
     "keras gelu tanh"],
    "dropout": ["layers dropout", "layers dropout fed", "contrib dropout", "keras dropout",
     "nn dropout", "nn dropout keep", "nn dropout fed", "training"],
    "fake_quantization": ["fake quantization", "fake quantization args"],
    "softmax_cross_entropy": ["nn softmax cross entropy", "nn sparse cross entropy",
     "losses softmax", "cross entropy log", "cross entropy eps", "cross entropy clipped",
     "cross entropy log softmax", "training"],
}  # fmt: skip
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


def test_guided_backprop_takes_a_leaky_relu_of_any_form_as_one() -> None:
    tf = pytest.importorskip("tensorflow")
    v1, relu = tf.compat.v1, tf.nn.relu
    a = 0.25
    forms = {
        "maximum": lambda x, a: tf.maximum(x, a * x),
        "keras 2.0": lambda x, a: relu(x) - a * relu(-x),
        "facenet": lambda x, a: relu(x) + a * -relu(-x),
        "negated outside": lambda x, a: relu(x) + -(a * relu(-x)),
        "folded": lambda x, _: relu(x) + -0.25 * relu(-x),
        "difference of two": lambda x, _: relu(x) - relu(-0.25 * x),
        "by abs": lambda x, _: 0.625 * x + 0.375 * tf.abs(x),
        "half": lambda x, a: relu(x) + a * (x - tf.abs(x)) * 0.5,
        "half a slope": lambda x, a: tf.maximum(x, 0.0) + (0.5 * a) * (x - tf.abs(x)),
        "minimum": lambda x, a: tf.maximum(0.0, x) + a * tf.minimum(0.0, x),
        "minimum of scaled": lambda x, a: relu(x) + tf.minimum(0.0, a * x),
        "chosen": lambda x, a: tf.where(x > 0, x, a * x),
        "chosen below": lambda x, a: tf.where(x < 0, a * x, x),
    }
    values, upstream = [[-1.0, -1.0, 2.0, 3.0]], [[1.0, -1.0, 1.0, -1.0]]
    with tf.Graph().as_default() as graph:
        variable = v1.get_variable("a", initializer=[a] * 4, use_resource=False)
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        for slope in (a, variable):
            for form in forms.values():
                tf.identity(form(x, slope), name="y")
    patched = graphpatch.apply("@guided_backprop", graph)
    with tf.Graph().as_default(), v1.Session() as session:
        patched.import_into(v1.get_default_graph())
        here = v1.get_default_graph()
        here_x, session_a = here.get_tensor_by_name("x:0"), here.get_tensor_by_name("a:0")
        for place in range(2 * len(forms)):
            y = here.get_tensor_by_name(f"y{f'_{place}' if place else ''}:0")
            by_x, by_a = v1.gradients(y, [here_x, session_a], [tf.constant(upstream)])
            assert by_a is None
            found = session.run(by_x, {here_x: values, session_a: [a] * 4})
            assert found.tolist() == [[a, 0.0, 1.0, 0.0]], (place, list(forms)[place % len(forms)])
