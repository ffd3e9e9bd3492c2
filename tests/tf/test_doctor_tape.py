"""What `doctor` says of a tape and of a Session, where they differ, against both of TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.analysis.doctor.diagnosis import PairDiagnosis
from graphpatch.analysis.doctor.survey import survey
from graphpatch.runtime.gradient_run import run_pairs
from tests import graphs
from tests.graphs import const, node
from tests.models import catalogue

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

X = node("x", "Placeholder")


NAMES = (f"doctor_tape_{number}" for number in itertools.count())  # TensorFlow keeps one of a name


def called(*body: Any, result: str) -> Any:
    """x -> the function -> y."""
    from graphpatch.protos import AttrValue, NameAttrList

    name = next(NAMES)
    call = node("c", "PartitionedCall", "x", Tin=["float32"], Tout=["float32"])
    call.attr["f"].CopyFrom(AttrValue(func=NameAttrList(name=name)))
    inner = graphs.function(name, ["a"], list(body), {"b": result})
    return graphs.graphdef(X, call, node("y", "Tanh", "c"), functions=[inner])


GRAPHS = {
    "no function": graphs.graphdef(X, node("y", "Tanh", "x")),
    "no function, blocked": graphs.graphdef(X, node("a", "Round", "x"), node("y", "Tanh", "a")),
    "no function, refused": graphs.graphdef(X, node("y", "PreventGradient", "x")),
    "through a function": called(node("r", "Sin", "a"), result="r:y:0"),
    "blocked in a function": called(node("r", "Round", "a"), result="r:y:0"),
    "zero in a function": called(node("r", "Sign", "a"), result="r:y:0"),
    "stopped in a function": called(node("r", "StopGradient", "a"), result="r:output:0"),
    "refused in a function": called(node("r", "LRNGrad", "a", "a", "a"), result="r:output:0"),
    "a key of nobody in a function": called(
        node("r", "Relu", "a", _gradient_op_type="Mine"), result="r:activations:0"
    ),
    "not read in a function": called(const("k"), node("r", "Tanh", "k:output:0"), result="r:y:0"),
}


VALUE = np.full((2, 2, 2, 2), 1.5, np.float32)


def message(graph_def: Any) -> Any:
    return tf1.GraphDef.FromString(graph_def.SerializeToString())


def outcome(dx: Callable[[], Any]) -> str:
    """What comes of asking for a gradient, and of running it."""
    try:
        found = dx()
    except (LookupError, tf.errors.OpError) as error:
        return type(error).__name__
    return "none" if found is None else "flows" if np.any(found) else "zero"


def on_a_tape(function: Callable[[Any], Any]) -> str:
    x = tf.constant(VALUE)

    def dx() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    return outcome(dx)


def in_a_session(graph_def: Any) -> str:
    def dx() -> Any:
        with tf1.Graph().as_default() as graph:
            tf1.import_graph_def(message(graph_def), name="")
            x, y = (graph.get_tensor_by_name(f"{name}:0") for name in "xy")
            [found] = tf1.gradients(y, [x])
            with tf1.Session() as session:
                return None if found is None else session.run(found, {x: VALUE})

    return outcome(dx)


def agrees(foretold: str, found: str) -> bool:
    """Whether it came as foretold; what fails only in the run was built."""
    if found in {"NotFoundError", "InvalidArgumentError"}:
        return foretold in {"flows", "zero"}
    return foretold == {"LookupError": "error"}.get(found, found)


def diagnosis(path: Path, source: str = "x", target: str = "y") -> PairDiagnosis:
    [seen] = survey(graphpatch.load(path), [source], [target])
    [found] = seen.diagnoses
    return found


@pytest.mark.parametrize("case", GRAPHS)
def test_a_tape_over_an_imported_graph_does_what_a_session_does(case: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pb"
    path.write_bytes(GRAPHS[case].SerializeToString())
    found, session = diagnosis(path), in_a_session(GRAPHS[case])
    function = tf1.wrap_function(lambda: tf1.import_graph_def(message(GRAPHS[case]), name=""), [])
    taped = on_a_tape(function.prune("x:0", "y:0"))
    assert agrees(found.verdict, session), (found, session)
    assert agrees(found.tape, taped), (found, taped)
    assert found.tape == found.verdict


# Inside the functions of a SavedModel: what a tape gives after tf.saved_model.load.
INNER: dict[str, Callable[[Any], Any]] = {
    "flows": tf.sin,
    "round": tf.round,
    "sign": tf.sign,
    "stop": tf.stop_gradient,
    "argmax": lambda x: tf.cast(tf.argmax(x), tf.float32),
    "around": lambda x: tf.round(x) + x,
}


@pytest.mark.every(2)
@pytest.mark.parametrize("case", INNER)
def test_a_tape_looks_into_the_functions_of_a_saved_model(case: str, tmp_path: Path) -> None:
    module, inner = tf.Module(), tf.function(INNER[case])
    spec = tf.TensorSpec(VALUE.shape, tf.float32, name="x")
    call = tf.function(lambda x: {"y": tf.tanh(inner(x))}, input_signature=[spec])
    module.call = call
    tf.saved_model.save(module, str(tmp_path), signatures=call)
    signature = catalogue.read(tmp_path).meta_graphs[0].signature_def["serving_default"]
    found = diagnosis(tmp_path, signature.inputs["x"].name, signature.outputs["y"].name)
    loaded = tf.saved_model.load(str(tmp_path))
    taped = on_a_tape(lambda x: loaded.signatures["serving_default"](x)["y"])
    assert agrees(found.tape, taped), (found, taped)


def in_a_function(inner: str, before: str) -> Any:
    """An op in a called function, alone or behind a Tanh; a call calls a function with a Sin."""
    body = [node("t", "Tanh", "a")] if before else []
    read = "t:y:0" if before else "a"
    if inner == "Sin":
        return called(*body, node("r", "Sin", read), result="r:y:0")
    call = node("r", inner.split()[0], read, Tin=["float32"], Tout=["float32"])
    graph_def = called(*body, call, result="r:output:0")
    name = next(NAMES)
    graph_def.library.function[0].node_def[-1].attr["f"].func.name = name
    sine = graphs.function(name, ["a"], [node("s", "Sin", "a")], {"b": "s:y:0"})
    sine.attr["_noinline"].b = "kept" in inner
    graph_def.library.function.append(sine)
    return graph_def


@pytest.mark.parametrize("before", ["", "Tanh"])
@pytest.mark.parametrize(
    "inner", ["PartitionedCall", "StatefulPartitionedCall", "PartitionedCall kept", "Sin"]
)
def test_a_call_in_a_called_function_is_foretold(inner: str, before: str, tmp_path: Path) -> None:
    """C++ has no gradient of it; Grappler inlines it, but not into what is smaller than 4 nodes."""
    graph_def = in_a_function(inner, before)
    path = tmp_path / "model.pb"
    path.write_bytes(graph_def.SerializeToString())
    [seen] = survey(graphpatch.load(path), ["x"], ["y"])
    told = {note.kind: list(note.ops) for note in seen.notes}.get("nested_call", [])
    fails = inner != "Sin" and ("kept" in inner or not before)
    assert bool(told) == (in_a_session(graph_def) == "NotFoundError") == fails
    [ran] = run_pairs(graphpatch.load(path), 0, [("x:0", "y:0")])
    assert ("NotFoundError: No gradient defined for op: " in ran["says"]) == fails


@pytest.mark.parametrize("before", ["", "Tanh"])
def test_a_patch_in_a_call_in_a_called_function(before: str, tmp_path: Path) -> None:
    """Where no gradient comes it is refused; elsewhere verify sees that it works."""
    graph_def = in_a_function("PartitionedCall", before)
    path, rule = (
        tmp_path / "model.pb",
        {"match": {"op": "Sin"}, "patch": {"filter_gradient": {"scale": 2.0}}},
    )
    path.write_bytes(graph_def.SerializeToString())
    if not before:
        with pytest.raises(graphpatch.PatchError, match="a Session gives no gradient through Part"):
            graphpatch.apply(rule, path)
        return
    graphpatch.apply(rule, path).save(tmp_path / "patched.pb")
    found = graphpatch.verify(path, tmp_path / "patched.pb")
    assert (found.verdict, found.not_compared) == ("verified", [])
    assert found.document()["graphs"][0]["overrides"]
