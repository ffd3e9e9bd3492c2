"""What `doctor` says of a tape and of a Session, where they differ, against both of TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.protos import AttrValue, NameAttrList
from graphpatch.runtime.doctor_run import run_pairs
from tests import graphs
from tests.graphs import const, node
from tests.models import catalogue
from tests.models.doctor_oracle import Agreement, compare_pairs
from tests.tf import consumer
from tests.tf.batch import graph
from tests.tf.places import UNREACHED

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

X = node("x", "Placeholder")
NAMES = (f"doctor_tape_{number}" for number in itertools.count())  # TensorFlow keeps one of a name


def called(*body: Any, result: str) -> Any:
    """x -> the function -> y."""
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


def outcome(dx: Callable[[], Any]) -> str:
    """What comes of asking for a gradient, and of running it."""
    try:
        found = dx()
    except (LookupError, tf.errors.OpError) as error:
        return type(error).__name__
    return "none" if found is None else "flows" if np.any(found) else "zero"


def taped(function: Callable[[Any], Any], x: Any = VALUE) -> Any:
    return consumer.taped(function, x)[1]


def message(graph_def: Any) -> Any:
    return tf1.GraphDef.FromString(graph_def.SerializeToString())


def in_a_session(graph_def: Any) -> str:
    asked = message(graph_def), "y:0", ["x:0"], {"x:0": VALUE}
    return outcome(lambda: consumer.differentiate(*asked)[0])


def wrapped(graph_def: Any) -> Any:
    """The graph as a function of x."""
    return tf1.wrap_function(lambda: tf1.import_graph_def(graph_def, name=""), []).prune(
        "x:0", "y:0"
    )


def agrees(foretold: str, found: str) -> bool:
    """Whether it came as foretold; what fails only in the run was built."""
    if found in {"NotFoundError", "InvalidArgumentError"}:
        return foretold in {"flows", "zero"}
    return foretold == {"LookupError": "error"}.get(found, found)


@pytest.mark.parametrize("case", GRAPHS)
def test_a_tape_over_an_imported_graph_does_what_a_session_does(case: str) -> None:
    [found] = graphpatch.diagnose(GRAPHS[case].SerializeToString(), "x", "y").pairs
    session = in_a_session(GRAPHS[case])
    tape = outcome(lambda: taped(wrapped(message(GRAPHS[case]))))
    assert agrees(found.verdict, session), (found, session)
    assert agrees(found.tape, tape), (found, tape)
    assert found.tape == found.verdict


def saved(call: Callable[[Any], Any], shape: Any, folder: Path) -> tuple[str, str]:
    """Write a SavedModel of a function of x; the names of the ends of its signature."""
    module = tf.Module()
    spec = tf.TensorSpec(shape, tf.float32, name="x")
    module.call = tf.function(lambda x: {"y": call(x)}, input_signature=[spec])
    tf.saved_model.save(module, str(folder), signatures=module.call)
    signature = catalogue.read(folder).meta_graphs[0].signature_def["serving_default"]
    return signature.inputs["x"].name, signature.outputs["y"].name


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
    inner = tf.function(INNER[case])
    ends = saved(lambda x: tf.tanh(inner(x)), VALUE.shape, tmp_path)
    [found] = graphpatch.diagnose(tmp_path, *ends).pairs
    loaded = tf.saved_model.load(str(tmp_path))
    tape = outcome(lambda: taped(lambda x: loaded.signatures["serving_default"](x)["y"]))
    assert agrees(found.tape, tape), (found, tape)


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
def test_a_call_in_a_called_function_is_foretold(inner: str, before: str) -> None:
    """C++ has no gradient of it; Grappler inlines it, but not into what is smaller than 4 nodes."""
    graph_def = in_a_function(inner, before)
    model = graphpatch.load(graph_def.SerializeToString())
    notes = graphpatch.diagnose(model, "x", "y").seen[0].notes
    is_noted = any(note.kind == "nested_call" and note.ops for note in notes)
    fails = inner != "Sin" and ("kept" in inner or not before)
    assert is_noted == (in_a_session(graph_def) == "NotFoundError") == fails
    [ran] = run_pairs(model, 0, [("x:0", "y:0")])
    assert ("NotFoundError: No gradient defined for op: " in ran["says"]) == fails


def test_a_patch_in_a_call_in_a_called_function() -> None:
    """Where no gradient comes it is refused; elsewhere verify sees that it works."""
    rule = {"match": {"op": "Sin"}, "patch": {"filter_gradient": {"scale": 2.0}}}
    with pytest.raises(graphpatch.PatchError, match="a Session gives no gradient through Part"):
        graphpatch.apply(rule, in_a_function("PartitionedCall", "").SerializeToString())
    model = in_a_function("PartitionedCall", "Tanh").SerializeToString()
    found = graphpatch.verify(model, graphpatch.apply(rule, model))
    assert (found.verdict, found.not_compared) == ("verified", [])
    assert found.document()["graphs"][0]["overrides"]


# Patched models.

FEW = np.float32([-2.0, -0.5, 0.25, 3.0])


def overridden(formula: str) -> dict[str, Any]:
    match = {"op": "Tanh", "body": "*"}
    return {"match": match, "patch": {"override_gradient": {"formula": formula}}}


STRAIGHT = {"match": {"op": "Sign", "body": "*"}, "patch": {"straight_through": True}}
# No other test may have registered it in this process: a tape would honour it.
UNREGISTERED = overridden("sign(dy) * 0.8713")


def loop(x: Any) -> Any:
    """Twice y = tanh(sign(y))."""
    step = tf.while_loop(lambda n, _: n < 2, lambda n, y: (n + 1, tf.tanh(tf.sign(y))), (0, x))
    return step[1]


@pytest.mark.parametrize(("call", "times"), [(lambda x: tf.tanh(tf.sign(x)), 3), (loop, 9)])
def test_a_patched_saved_model_flows_on_a_tape(call: Any, times: int, tmp_path: Path) -> None:
    ends = saved(call, FEW.shape, tmp_path / "m")
    graphpatch.apply([overridden("dy / 3"), STRAIGHT], tmp_path / "m").model.save(tmp_path / "p")
    loaded = tf.saved_model.load(str(tmp_path / "p"))
    dx = taped(lambda x: loaded.call(x)["y"], FEW)
    np.testing.assert_allclose(dx, np.ones_like(FEW) / times, rtol=1e-5)
    seen = graphpatch.diagnose(tmp_path / "p", *ends)
    assert (seen.pairs[0].tape, list(seen.pairs[0].findings)) == ("flows", [])
    assert not {"unregistered_key", "ignored_override"} & {note.kind for note in seen.seen[0].notes}


@pytest.mark.parametrize("rules", [[STRAIGHT], [UNREGISTERED, STRAIGHT]], ids=["keys", "functions"])
def test_a_tape_over_a_patched_graph(rules: list[dict[str, Any]]) -> None:
    with tf1.Graph().as_default() as graph:
        tf1.tanh(tf.sign(tf1.placeholder(tf.float32, FEW.shape, "x")), name="y")
    patched = graphpatch.apply(rules, graph.as_graph_def()).graph_def()
    [found] = graphpatch.diagnose(patched, "x", "y").pairs
    function = wrapped(patched)
    if rules == [STRAIGHT]:
        dx = taped(function, FEW)
        np.testing.assert_allclose(dx, 1 - np.tanh(np.sign(FEW)) ** 2, rtol=1e-5)
        assert (found.verdict, found.tape) == ("flows", "flows")
        return
    with pytest.raises((LookupError, tf.errors.OpError)):
        taped(function, FEW)
    assert (found.verdict, found.tape) == ("flows", "error")
    assert {finding.kind for finding in found.findings} == {"carried"}


# Gradients by variables and tables that functions are given as handles.


def repeated(body: Callable[[Any, Any], Any], x: Any) -> Any:
    return tf1.while_loop(lambda i, _: i < 3, lambda i, y: [i + 1, body(i, y)], [0, x])[1]


def sum_of(function: Callable[[Any], Any], x: Any) -> Any:
    return tf1.add_n(tf.function(function)(x))


def words() -> Callable[[Any], Any]:
    """What a table gives for the numbers of a tensor."""
    pairs = tf.lookup.KeyValueTensorInitializer([0], [2.0], key_dtype=tf.int64)
    table = tf.lookup.StaticHashTable(pairs, 1.0)
    return lambda x: table.lookup(tf1.cast(x, tf.int64))


# Of x, w and a table.
OF_HANDLES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "branch": lambda x, w, _: tf1.cond(tf1.reduce_sum(x) > 0.0, lambda: x * w, lambda: tf.round(x)),
    "branch of none": lambda x, w, _: tf1.cond(x[0] > 0.0, lambda: x * tf.round(w), lambda: x),
    "loop": lambda x, w, _: repeated(lambda _, y: y * w, x),
    "case": lambda x, w, _: tf.switch_case(
        tf1.cast(x[0], tf.int32), [lambda: x, lambda: x * w, lambda: tf.sign(x)]
    ),
    "branch of loop": lambda x, w, _: repeated(
        lambda i, y: tf1.cond(i > 1, lambda: y * w, lambda: y), x
    ),
    "call": lambda x, w, _: sum_of(lambda y: (y * w, tf.round(y)), x),
    "looked up in branch": lambda x, w, table: tf1.cond(
        x[0] > 0.0, lambda: x * w * table(x), lambda: x
    ),
    "looked up in loop": lambda x, w, table: repeated(lambda _, y: y * w * table(x), x),
    "looked up in call": lambda x, w, table: sum_of(lambda y: (y * w * table(y), y), x),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", OF_HANDLES)
def test_it_foretells_the_gradient_by_each_handle(name: str) -> None:
    """Of the gradients of y and of what a call gives, by each float and each handle.

    Of no more: TensorFlow 2 keeps the functions that a gradient rewrites for the whole process, and
    another gradient of the same model may rewrite them in another way.
    """
    with tf1.Graph().as_default():
        x = tf1.placeholder(tf.float32, [2], "x")
        w = tf1.get_variable("w", [2], use_resource=True)
        tf1.identity(OF_HANDLES[name](tf1.negative(x), w, words()), "y")
        meta = tf1.train.export_meta_graph()
    model = graphpatch.load(meta)
    given = [
        (f"{node.name}:{place}", arg.dtype)
        for node in model.graphs[0].main
        for place, arg in enumerate(node.outputs or ())
    ]
    floats, handles = ([n for n, one in given if one == dtype] for dtype in ("float32", "resource"))
    targets = ["y:0", *(name for name in floats if "PartitionedCall" in name)]
    found = Agreement()
    compare_pairs(meta, graphpatch.diagnose(model, [*floats, *handles], targets).pairs, found)
    assert found.differing == []
    assert found.verdicts["flows"] or found.verdicts["error"]


@pytest.mark.parametrize("kept", [True, False])
def test_an_argument_of_a_main_graph_has_a_gradient_where_the_file_tells_its_shape(
    kept: bool,
) -> None:
    """As Grappler's test graphs have it: a function that updates a variable, called as an op."""

    @tf.function
    def update(variable: Any, x: Any) -> Any:
        tf.raw_ops.AssignAddVariableOp(resource=variable, value=tf.constant(1.0))
        return x * 2.0

    with tf.Graph().as_default() as graph:
        function = update.get_concrete_function(tf.TensorSpec([], tf.resource), tf.TensorSpec([]))
        function.add_to_graph(graph)
    message = graph.as_graph_def()
    argument = message.node.add(name="variable", op="_Arg")
    argument.attr["T"].type = tf.resource.as_datatype_enum
    argument.attr["index"].i = 0
    if kept:
        argument.attr["_handle_dtypes"].list.type.append(tf.float32.as_datatype_enum)
        argument.attr["_handle_shapes"].list.shape.add()
    message.node.add(name="x", op="Placeholder").attr["dtype"].type = 1
    name = function.function_def.signature.name
    message.node.add(name="y", op=name).input.extend(["variable", "x"])
    [pair] = graphpatch.diagnose(message, "x", "y").pairs
    with tf.Graph().as_default() as graph:
        tf.compat.v1.import_graph_def(message, name="")
        ends = graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0")
        if kept:
            assert tf.compat.v1.gradients(*ends)[0] is not None
        else:
            with pytest.raises(ValueError, match="without handle data"):
                tf.compat.v1.gradients(*ends)
    assert pair.verdict == ("flows" if kept else "error")


@pytest.mark.parametrize("place", [name for name in UNREACHED if not UNREACHED[name].v1])
def test_a_loop_or_branch_in_a_called_function_is_foretold(place: str) -> None:
    """TensorFlow builds a gradient, which is zeros or fails when it is run."""
    graph_def = graph(lambda x: UNREACHED[place].build(tf.tanh, x))
    notes = graphpatch.diagnose(graph_def.SerializeToString(), "x", "y").seen[0].notes
    assert any(note.kind == "nested_call" for note in notes)
    asked = message(graph_def), "y:0", ["x:0"], {"x:0": [0.1, 0.2, 0.3]}
    came = outcome(lambda: consumer.differentiate(*asked)[0])
    assert came in {"zero", "NotFoundError", "InternalError"}
