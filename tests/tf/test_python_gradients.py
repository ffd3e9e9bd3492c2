"""`{"python": "module:function"}`: what TensorFlow traces travels in the file and needs nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import RulesError
from graphpatch.protos import GraphDef
from tests import graphs
from tests.graphs import graphdef, in_memory, node
from tests.tf import run_graph, tensorflow1
from tests.tf.batch import RUNTIMES, Batch
from tests.tf.places import PLACES
from tests.tf.test_places import Case, built, reference

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

MODULE = "tests.tf.python_gradients"
X = np.array([-1.5, 0.5, 2.0], np.float32)


def constant(name: str, value: int) -> Any:
    found = node(name, "Const", dtype="int32")
    found.attr["value"].tensor.dtype = graphs.DTYPE_NUMBERS["int32"]
    found.attr["value"].tensor.int_val.append(value)
    found.attr["value"].tensor.tensor_shape.SetInParent()
    return found


def after(*nodes: Any) -> GraphDef:
    """A graph of placeholder x, these nodes of which one is `r`, and z, half the last's square."""
    return graphdef(node("x", "Placeholder"), *nodes, node("z", "L2Loss", nodes[-1].name))


UNARY = after(node("r", "Relu", "x"))
LEAKY = after(node("r", "LeakyRelu", "x", T=None))
MUL = after(node("w", "Placeholder"), node("r", "Mul", "x", "w"))
SPLIT = after(
    constant("axis", 0),
    node("r", "Split", "axis", "x", num_split=3),
    node("sum", "Mul", "r", "r:1"),
    node("out", "Mul", "sum", "r:2"),
)
TOP_K = after(constant("k", 2), node("r", "TopKV2", "x", "k"), node("out", "Identity", "r"))
GATHER = after(
    constant("axis", 0),
    node("i", "Placeholder", dtype="int32"),
    node("r", "GatherV2", "x", "i", "axis", Tparams="float32", Tindices="int32", Taxis="int32"),
)
INDICES = {"i": np.array([2, 0], np.int32)}
WEIGHTS = {"w": np.array([2.0, -1.0, 3.0], np.float32)}

# Graph, function, feeds beside x.
CASES: dict[str, tuple[GraphDef, str, Mapping[str, Any]]] = {
    "reads input, output and upstream": (UNARY, "guided", {}),
    "reads the upstream gradient alone": (UNARY, "clipped", {}),
    "a list of one": (UNARY, "twice", {}),
    "an attr at its default": (LEAKY, "leaky", {}),
    "type, name and a dtype": (UNARY, "of_type_and_name", {}),
    "None for one input": (MUL, "weighted", WEIGHTS),
    "three outputs, an integer input": (SPLIT, "of_three", {}),
    "an integer output": (TOP_K, "of_top_k", {}),
    "IndexedSlices": (GATHER, "sliced", INDICES),
    "calls functions": (UNARY, "with_control_flow", {}),
}


def patched_by_python(graph: GraphDef, name: str) -> bytes:
    """The graph with the gradient of the op `r` patched."""
    patch = {"override_gradient": {"python": f"{MODULE}:{name}"}}
    rule = {"match": {"name": "r"}, "patch": patch}
    result = graphpatch.apply([rule], in_memory(graph), allow_python=True)
    return graphs.joined(result.model.pieces())


def overridden(graph: GraphDef, name: str, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """What gradient_override_map around import_graph_def gives, for the op type of `r`."""
    import tests.tf.python_gradients as module

    key = f"tests.{name}.{tf1.get_default_graph().unique_name(name)}.{id(graph)}"
    tf.RegisterGradient(key)(getattr(module, name))
    (op_type,) = (one.op for one in graph.node if one.name == "r")
    with tf1.Graph().as_default() as built:
        with built.gradient_override_map({op_type: key}):
            tf1.import_graph_def(tf1.GraphDef.FromString(graph.SerializeToString()), name="")
        named = {f"{one}:0": built.get_tensor_by_name(f"{one}:0") for one in feeds}
        found = tf1.gradients(built.get_tensor_by_name("z:0"), list(named.values()))
        gradients = {
            n: tf.convert_to_tensor(dx)
            for n, dx in zip(named, found, strict=True)
            if dx is not None
        }
        with tf1.Session() as session:
            return session.run(gradients, {f"{one}:0": value for one, value in feeds.items()})


@pytest.mark.parametrize("version", ["2", pytest.param("1.15", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_it_equals_the_override_map(name: str, version: str, tmp_path: Path) -> None:
    graph, function, given = CASES[name]
    feeds = {"x": X, **given}
    expected = overridden(graph, function, feeds)
    data, wrt = patched_by_python(graph, function), [f"{one}:0" for one in feeds]
    if version == "2":
        found = run_graph.run(data, feeds, ["z:0"], "z:0", wrt)
    else:
        found = tensorflow1.fetch(data, feeds, ["z:0", "--gradients", "z:0", *wrt], tmp_path)
    assert set(found) == {"z:0", *(f"gradient:{tensor}" for tensor in expected)}
    for tensor, dx in expected.items():
        np.testing.assert_allclose(found[f"gradient:{tensor}"], dx, rtol=1e-6)


# In numpy, what the functions give for x, y and dy.
NUMPY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "guided": lambda x, y, dy: np.where((dy > 0) & (y > 0), dy, 0) * x,
    "with_control_flow": lambda x, y, dy: 8 * x * dy * (x if np.sum(x * dy) > 0 else 1),
}
BODIES = ("PartitionedCall", "If", "While")


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Batch:
    bodies = Batch(tmp_path_factory.mktemp("bodies"))
    for place in BODIES:
        for name in NUMPY:
            patch = {"override_gradient": {"python": f"{MODULE}:{name}"}}
            rule = {"match": {"op": "Tanh"}, "patch": patch}
            rules = graphpatch.load_rules([rule], allow_python=True)
            bodies.add(f"{name}, {place}", built(PLACES[place]), rules)
    return bodies.run(request)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("place", BODIES)
@pytest.mark.parametrize("name", NUMPY)
def test_it_holds_in_function_bodies(batch: Batch, name: str, place: str, runtime: str) -> None:
    expected = reference(PLACES[place], Case({}, NUMPY[name]))
    dx = batch.gradient(f"{name}, {place}", runtime)
    np.testing.assert_allclose(dx, expected, rtol=2e-4, atol=1e-5)


def test_lists_and_live_graphs_take_python_too() -> None:
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": {"python": f"{MODULE}:guided"}}}
    assert len(graphpatch.load_rules([rule], allow_python=True)) == 1
    with tf1.Graph().as_default():
        with graphpatch.building([rule], allow_python=True) as made:
            tf.nn.relu(tf1.placeholder(tf.float32, [2]))
        assert len(made.report["rules"][0]["matches"]) == 1
        for call in (graphpatch.load_rules, graphpatch.building, graphpatch.patch_graph):
            with pytest.raises(RulesError, match="allow_python=True"):
                call([rule]).__enter__()


def test_a_tensor_of_tf_keras_is_told_of_the_layers_for_it() -> None:
    for module, layers in (("tf_keras.src.engine", "tf_keras"), ("keras.src.backend", "keras")):
        symbolic = type("KerasTensor", (), {"__module__": module})()
        with pytest.raises(TypeError, match=rf"use a layer of graphpatch\.{layers}$"):
            graphpatch.clip_gradient(symbolic, 0, 1)
