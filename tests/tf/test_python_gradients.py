"""`{"python": "module:function"}`: what TensorFlow traces travels in the file and needs nobody."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import RulesError
from graphpatch.protos import GraphDef
from tests import graphs
from tests.graphs import graphdef, in_memory, node
from tests.tf import tensorflow1

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


def patched_by_python(
    graph: GraphDef, name: str, kind: str = "override_gradient", **match: str
) -> bytes:
    """The graph with the gradient of the op `r`, or of what `match` means, patched."""
    rule = {"match": match or {"name": "r"}, "patch": {kind: {"python": f"{MODULE}:{name}"}}}
    model = in_memory(graph)
    result = graphpatch.apply([rule], model, allow_python=True)
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


def joined(many: Mapping[str, GraphDef]) -> GraphDef:
    """Graphs as one, each in the scope of its name, and `total`, the sum of their `z`."""
    whole, names = GraphDef(), set()
    for scope, graph in many.items():
        for one in graph.node:
            added = whole.node.add()
            added.CopyFrom(one)
            added.name = f"{scope}/{one.name}"
            added.input[:] = [f"{scope}/{text}" for text in one.input]
        new = [f for f in graph.library.function if f.signature.name not in names]
        names |= {function.signature.name for function in new}
        called = {g.function_name: g for g in (*whole.library.gradient, *graph.library.gradient)}
        del whole.library.gradient[:]
        whole.library.gradient.extend(called.values())
        whole.library.function.extend(new)
    whole.versions.producer = 27
    whole.node.append(node("total", "AddN", *(f"{scope}/z" for scope in many), N=len(many)))
    return whole


Found = Mapping[str, Mapping[str, Any]]


def in_a_fresh_process(
    version: str, many: Mapping[str, tuple[GraphDef, Mapping[str, Any]]], folder: Path
) -> Found:
    """The gradients that a Session gives where graphpatch is not, by case and tensor."""
    whole = joined({scope: graph for scope, (graph, _) in many.items()}).SerializeToString()
    feeds = {f"{scope}/{n}": v for scope, (_, given) in many.items() for n, v in given.items()}
    asked = ["total:0", "--gradients", "total:0", *(f"{name}:0" for name in feeds)]
    python = sys.executable if version == "2" else ""
    found = tensorflow1.fetch(whole, feeds, asked, folder, python)
    gradients: dict[str, dict[str, Any]] = {scope: {} for scope in many}
    for name in found:
        kind, _, tensor = name.partition(":")
        if kind == "gradient":
            scope, _, tensor = tensor.rpartition("/")
            gradients[scope][tensor] = found[name]
    return gradients


@pytest.fixture(scope="module", params=["2", pytest.param("1.15", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """All cases, patched, in one process of this version."""
    many = {
        scope(name): (GraphDef.FromString(patched_by_python(graph, function)), {"x": X, **feeds})
        for name, (graph, function, feeds) in CASES.items()
    }
    return in_a_fresh_process(request.param, many, tmp_path_factory.mktemp("session"))


def scope(name: str) -> str:
    return name.replace(" ", "_").replace(",", "")


@pytest.mark.parametrize("name", CASES)
def test_it_equals_the_override_map(name: str, run: Found) -> None:
    graph, function, feeds = CASES[name]
    expected = overridden(graph, function, {"x": X, **feeds})
    found = run[scope(name)]
    assert found.keys() == expected.keys()
    for tensor, dx in expected.items():
        np.testing.assert_allclose(found[tensor], dx, rtol=1e-6)


def function_attr(name: str) -> Any:
    found = graphs.attr(True)
    found.func.name = name
    return found


RELU = graphs.function("f", ["a"], [node("r", "Relu", "a")], {"b": "r:activations:0"})


def loop() -> GraphDef:
    """Two rounds of a While whose body is Relu; a counter and its end, as TensorFlow has them."""
    body, cond = graphs.function("body", [], [], {}), graphs.function("cond", [], [], {})
    for one in (body, cond):
        for name, dtype in (("i", "int32"), ("n", "int32"), ("a", "float32")):
            one.signature.input_arg.add(name=name, type=graphs.DTYPE_NUMBERS[dtype])
    cond.signature.output_arg.add(name="go", type=graphs.DTYPE_NUMBERS["bool"])
    cond.node_def.append(node("less", "Less", "i", "n", T="int32"))
    cond.ret["go"] = "less:z:0"
    added = node("add", "Add", "i", "one:output:0", T="int32")
    body.node_def.extend([constant("one", 1), added, node("r", "Relu", "a")])
    given = {"i": "add:z:0", "n": "same:output:0", "a": "r:activations:0"}
    body.node_def.append(node("same", "Identity", "n", T="int32"))
    for (name, tensor), like in zip(given.items(), body.signature.input_arg, strict=True):
        body.signature.output_arg.add(name=f"{name}_next", type=like.type)
        body.ret[f"{name}_next"] = tensor
    called = {"cond": function_attr("cond"), "body": function_attr("body")}
    types = ["int32", "int32", "float32"]
    whiled = node("w", "While", "start", "end", "x", T=types, **called)
    graph = after(constant("start", 0), constant("end", 2), whiled, node("out", "Identity", "w:2"))
    graph.library.function.extend([cond, body])
    return graph


def calling(op: str, *inputs: str, **called: str) -> GraphDef:
    """A graph in which an op calls the function that is Relu."""
    attrs: dict[str, Any] = {key: function_attr(name) for key, name in called.items()}
    if inputs:
        attrs["Tcond"] = "bool"
    call = node("c", op, *inputs, "x", Tin=["float32"], Tout=["float32"], **attrs)
    flag = node("flag", "Const", dtype="bool")
    flag.attr["value"].tensor.dtype = graphs.DTYPE_NUMBERS["bool"]
    flag.attr["value"].tensor.bool_val.append(True)
    flag.attr["value"].tensor.tensor_shape.SetInParent()
    graph = after(*([flag] if inputs else []), call)
    graph.library.function.append(RELU)
    return graph


BODIES = {
    "PartitionedCall": calling("PartitionedCall", f="f"),
    "If": calling("If", "flag", then_branch="f", else_branch="f"),
    "While": loop(),
}
ABOVE = np.where(X > 0, X, 0)
# With dy = y at the end, and y = x above 0.
EXPECTED = {
    "guided": {"PartitionedCall": ABOVE**2, "If": ABOVE**2, "While": ABOVE**3},
    "with_control_flow": {
        "PartitionedCall": 8 * ABOVE * X**2,
        "If": 8 * ABOVE * X**2,
        "While": 64 * ABOVE * ABOVE**2 * X**2,
    },
}


@pytest.fixture(scope="module", params=["2", pytest.param("1.15", marks=pytest.mark.slow)])
def run_bodies(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    many = {}
    for function in EXPECTED:
        for place, graph in BODIES.items():
            raw = patched_by_python(graph, function, op="Relu")
            many[f"{function}_{place}"] = (under(f"{function}_{place}_", raw), {"x": X})
    return in_a_fresh_process(request.param, many, tmp_path_factory.mktemp("bodies"))


def under(prefix: str, raw: bytes) -> GraphDef:
    """The graph with a prefix before the names of the functions that it came with."""
    graph = GraphDef.FromString(raw)
    new = {f.signature.name: prefix + f.signature.name for f in graph.library.function}
    new = {old: name for old, name in new.items() if not old.startswith("graphpatch")}
    for function in graph.library.function:
        function.signature.name = new.get(function.signature.name, function.signature.name)
    for one in graph.node:
        for key in one.attr:
            if one.attr[key].HasField("func"):
                one.attr[key].func.name = new[one.attr[key].func.name]
    return graph


@pytest.mark.parametrize("place", BODIES)
@pytest.mark.parametrize("function", EXPECTED)
def test_it_holds_in_function_bodies(function: str, place: str, run_bodies: Found) -> None:
    found = run_bodies[f"{function}_{place}"]["x:0"]
    np.testing.assert_allclose(found, EXPECTED[function][place], rtol=1e-6)


@pytest.mark.parametrize("allowed", [False, True])
def test_lists_and_live_graphs_take_python_too(allowed: bool) -> None:
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": {"python": f"{MODULE}:guided"}}}

    def refused() -> Any:
        return nullcontext() if allowed else pytest.raises(RulesError, match="allow_python=True")

    with refused():
        assert len(graphpatch.load_rules([rule], allow_python=allowed)) == 1
    with refused(), tf1.Graph().as_default():
        with graphpatch.building([rule], allow_python=allowed) as made:
            tf.nn.relu(tf1.placeholder(tf.float32, [2]))
        assert len(made.report["rules"][0]["matches"]) == 1
    with refused(), tf1.Graph().as_default():
        tf.nn.relu(tf1.placeholder(tf.float32, [2]))
        assert graphpatch.patch_graph([rule], allow_python=allowed).report["rules"]


def test_a_tensor_of_tf_keras_is_told_of_the_layers_for_it() -> None:
    for module, layers in (("tf_keras.src.engine", "tf_keras"), ("keras.src.backend", "keras")):
        symbolic = type("KerasTensor", (), {"__module__": module})()
        with pytest.raises(TypeError, match=rf"use a layer of graphpatch\.{layers}$"):
            graphpatch.clip_gradient(symbolic, 0, 1)
