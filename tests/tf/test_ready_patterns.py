"""The ready patterns find what TensorFlow 2 and 1.15 build, each once, and nothing else in it."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphpatch
from graphpatch.match.ready import READY
from graphpatch.match.select import find
from graphpatch.match.spec import Match
from tests import graphs
from tests.tf import ready_builders
from tests.tf.tensorflow1 import ran

tf = pytest.importorskip("tensorflow")


def expected(name: str) -> dict[str, int]:
    """The patterns that the name of a graph begins with, and how often each is there."""
    words = [text.split() for text in name.partition(":")[0].split(", ") if text]
    return {word[-1]: int(word[0]) if word[1:] else 1 for word in words}


def found(graph_def: bytes) -> dict[str, int]:
    graph = graphs.opened(graph_def)
    counts = {name: find(graph, Match(pattern=f"@{name}")).count for name in READY}
    return {name: count for name, count in counts.items() if count}


@pytest.mark.slow
def test_what_tensorflow_2_builds() -> None:
    for name, graph_def in ready_builders.graphs(tf).items():
        assert found(graph_def.SerializeToString()) == expected(name), name


@pytest.mark.slow
def test_what_tensorflow_1_builds(tmp_path: Path) -> None:
    ran(str(Path(ready_builders.__file__)), str(tmp_path))
    built = {path.stem: path for path in tmp_path.glob("*.pb")}
    assert {pattern for name in built for pattern in expected(name)} == set(READY)
    for name, path in built.items():
        assert found(path.read_bytes()) == expected(name), name


def test_guided_backprop_takes_a_leaky_relu_of_any_form_as_one() -> None:
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
