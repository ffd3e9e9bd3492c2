"""`{"python": "module:function"}`: what TensorFlow traces travels in the file and needs nobody."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.application import PATCH_LAST
from graphpatch.errors import GraphpatchError, RulesError
from graphpatch.protos import GraphDef
from graphpatch.rules import load_rules, rules_from
from tests import forked, graphs
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
    "a list of one": (UNARY, "twice", {}),
    "an attr at its default": (LEAKY, "leaky", {}),
    "type, name and a dtype": (UNARY, "of_type_and_name", {}),
    "None for one input": (MUL, "weighted", WEIGHTS),
    "three outputs, an integer input": (SPLIT, "of_three", {}),
    "an integer output": (TOP_K, "of_top_k", {}),
    "IndexedSlices": (GATHER, "sliced", INDICES),
    "calls functions": (UNARY, "with_control_flow", {}),
}


def python(function: str, kind: str = "override_gradient") -> dict[str, Any]:
    return {kind: {"python": f"{MODULE}:{function}"}}


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
    rule = {"match": {"name": "r"}, "patch": python(function)}
    result = graphpatch.apply([rule], in_memory(graph), allow_python=True)
    data, wrt = graphs.joined(result.model.pieces()), [f"{one}:0" for one in feeds]
    if version == "2":
        found = run_graph.run(data, feeds, ["z:0"], "z:0", wrt)
    else:
        found = tensorflow1.fetch(data, feeds, ["z:0", "--gradients", "z:0", *wrt], tmp_path)
    assert set(found) == {"z:0", *(f"gradient:{tensor}" for tensor in expected)}
    for tensor, dx in expected.items():
        np.testing.assert_allclose(found[f"gradient:{tensor}"], dx, rtol=1e-6)


BODIES = ("PartitionedCall", "While")


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Batch:
    bodies = Batch(tmp_path_factory.mktemp("bodies"))
    rule = {"match": {"op": "Tanh"}, "patch": python("with_control_flow")}
    rules = graphpatch.load_rules([rule], allow_python=True)
    for place in BODIES:
        bodies.add(place, built(PLACES[place]), rules)
    return bodies.run(request)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("place", BODIES)
def test_it_holds_in_function_bodies(batch: Batch, place: str, runtime: str) -> None:
    case = Case({}, lambda x, y, dy: 8 * x * dy * (x if np.sum(x * dy) > 0 else 1))
    dx = batch.gradient(place, runtime)
    np.testing.assert_allclose(dx, reference(PLACES[place], case), rtol=2e-4, atol=1e-5)


def test_lists_and_live_graphs_take_python_too() -> None:
    rule = {"match": {"op": "Relu"}, "patch": python("guided")}
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


# Who may run it, what it says where it cannot, and what it leaves.

Write = Callable[..., Path]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A graph `z = relu(x) * relu(x)`, with a product too."""
    path = tmp_path / "model.pb"
    graph = graphdef(
        node("x", "Placeholder"), node("r", "Relu", "x"), node("m", "Mul", "r", "x"),
        node("z", "Square", "m"),
    )  # fmt: skip
    path.write_bytes(graph.SerializeToString(deterministic=True))
    return path


def python_rule(path: str, op: str = "Relu", kind: str = "override_gradient", **keys: Any) -> Any:
    return {"match": {"op": op}, "patch": {kind: {"python": path}}, "name": "mine", **keys}


def applied(rule: Any, model: Path) -> graphpatch.Result:
    return graphpatch.apply(rules_from([rule], allow_python=True), model)


def gradient(result: graphpatch.Result, x: Any) -> Any:
    raw = graphs.joined(result.model.pieces())
    return run_graph.run(raw, {"x": x}, ["z:0"], "z:0", ["x:0"])["gradient:x:0"]


REFUSED = {
    "no such module": (
        python_rule("tests.tf.no_such:f"),
        "cannot import tests.tf.no_such: ModuleNotFoundError: No module named 'tests.tf.no_such'",
    ),
    "no such function": (python_rule(f"{MODULE}:clippd"), "has no 'clippd'; nearest: clipped"),
    "no path": (python_rule("clipped"), '"python" is a function as "package.module:function"'),
    "too many gradients": (
        python_rule(f"{MODULE}:too_many"),
        "gives 2 gradients, and Relu 'r' has 1 inputs: it gives one for each, or None",
    ),
    "no gradient at all": (python_rule(f"{MODULE}:nothing"), "stop_gradient says that"),
    "a function that raises": (
        python_rule(f"{MODULE}:failing"),
        "failing failed on Relu 'r': IndexError: tuple index out of range",
    ),
    "another dtype": (
        python_rule(f"{MODULE}:of_another_dtype"),
        "gives a gradient of float64 for input 0 of Relu 'r', which is float32",
    ),
    "a variable": (
        python_rule(f"{MODULE}:captures_a_variable"), "uses the variable 'weights:0' from"
    ),
    "a tensor": (
        python_rule(f"{MODULE}:captures_a_tensor"), "uses a tensor (float32, shape (1000,)) from"
    ),
    "what a stand-in has not": (
        python_rule(f"{MODULE}:asks_for_the_graph"),
        "AttributeError: op.graph is not there while a gradient is traced",
    ),
    "as an attr": (
        python_rule(f"{MODULE}:clipped", emit="attr"), "is stored as a function, not as an attr"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_it_says_what_is_wrong(case: str, model: Path) -> None:
    spec, said = REFUSED[case]
    with pytest.raises(GraphpatchError) as error:
        applied(spec, model)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["override_gradient", "filter_gradient"])
def test_nobody_runs_code_unasked(kind: str, model: Path, rules_file: Write) -> None:
    spec = python_rule("os:getcwd", kind=kind)
    said = r"rules\[0\] \('mine'\): patch.*runs the code of that module.*--allow-python"
    with pytest.raises(GraphpatchError, match=said):
        load_rules(rules_file(spec))
    with pytest.raises(GraphpatchError, match=said):
        graphpatch.apply([spec], model)


@pytest.mark.parametrize(("function", "dx"), [("clipped", 0.5), ("guided", 54.0 * 3.0)])
def test_a_filter_reads_the_tensor_as_input_and_output(
    model: Path, function: str, dx: float
) -> None:
    rule = python_rule(f"{MODULE}:{function}", kind="filter_gradient")
    # m = 9 gives 18 at m; 18 * x = 54 reaches the filter; 18 * r = 54 by the other way.
    np.testing.assert_allclose(gradient(applied(rule, model), [3.0, -1.0]), [dx + 54.0, 0.0])


def test_ops_that_tensorflow_1_does_not_know_are_noted(model: Path) -> None:
    note, last = applied(python_rule(f"{MODULE}:newer"), model).report["notes"]
    assert last == PATCH_LAST
    assert "TensorFlow 1.15 does not know: Ndtri" in note


def test_the_file_is_the_same_on_every_run(model: Path, rules_file: Write) -> None:
    spec = python_rule(f"{MODULE}:with_control_flow")
    first, second = (graphs.joined(applied(spec, model).model.pieces()) for _ in range(2))
    assert first == second
    code = (
        "import sys, graphpatch; from graphpatch.rules import load_rules;"
        "rules = load_rules(sys.argv[1], allow_python=True);"
        "graphpatch.apply(rules, sys.argv[2]).model.save(sys.argv[3])"
    )
    out = model.with_name("out.pb")
    command = [*forked.python("tensorflow"), "-c", code]
    subprocess.run([*command, rules_file(spec), model, out], check=True)
    assert out.read_bytes() == first


@pytest.mark.parametrize("function", ["guided", "with_control_flow"])
def test_registered_it_has_a_second_derivative(function: str, model: Path) -> None:
    out = model.with_name("registered.pb")
    applied(python_rule(f"{MODULE}:{function}"), model).model.save(out)
    graphpatch.register_gradients(out)
    with tf.Graph().as_default() as graph:
        definition = tf.compat.v1.GraphDef.FromString(out.read_bytes())
        tf.import_graph_def(definition, name="")
        x = graph.get_tensor_by_name("x:0")
        (first,) = tf.gradients(graph.get_tensor_by_name("r:0"), x)
        (second,) = tf.gradients(first, x)
        with tf.compat.v1.Session() as session:
            found = session.run([first, second], {x: [3.0]})
    # guided: dx = x where dy = 1; the other: dx = 8 * x * x.
    expected = {"guided": [[3.0], [1.0]], "with_control_flow": [[72.0], [48.0]]}
    np.testing.assert_allclose(found, expected[function])


def test_the_command_line(run_cli: Any, model: Path, rules_file: Write, tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text(
        "import tensorflow as tf\n\ndef half(op, dy):\n    return 0.5 * dy\n"
    )
    rules, out = rules_file(python_rule("here:half")), tmp_path / "model.patched.pb"
    refused = run_cli("apply", rules, model, cwd=tmp_path)
    assert (refused.code, out.exists()) == (1, False)
    assert refused.stderr.count("\n") == 1
    assert "--allow-python" in refused.stderr
    done = run_cli("apply", rules, model, "--allow-python", cwd=tmp_path)
    assert done.code == 0, done.stderr
    found = run_graph.run(out.read_bytes(), {"x": [3.0]}, ["z:0"], "r:0", ["x:0"])
    np.testing.assert_allclose(found["gradient:x:0"], [0.5])


def test_without_tensorflow_it_says_so(run_cli: Any, model: Path, rules_file: Write) -> None:
    rules = rules_file(python_rule("os:getcwd"))
    block = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "from graphpatch.cli import main; sys.argv[0] = 'graphpatch'; main()"
    )
    done = run_cli(
        "apply",
        rules,
        model,
        "--allow-python",
        command=[*forked.python(forked.COMMAND), "-c", block],
    )
    assert done.code == 1
    assert "is traced by TensorFlow, which is not installed here" in done.stderr
    assert not model.with_name("model.patched.pb").exists()
