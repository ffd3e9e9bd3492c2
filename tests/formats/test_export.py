"""A graph as a TF2 SavedModel, as it is written: without TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.application import PATCH_LAST, TAPE_FLOOR
from graphpatch.errors import OutputError
from graphpatch.formats import Export, load
from graphpatch.graph.wire import Span, fields
from graphpatch.protos import MetaGraphDef
from tests import graphs
from tests.graphs import FLOAT, const, graphdef, node
from tests.patches.one_op import net

GUIDED = {"match": {"op": "Relu", "body": "main"}, "patch": {"override_gradient": "guided_relu"}}
NONE = {"match": {"op": "Nothing"}, "patch": {"stop_gradient": True}, "expect": {"min": 0}}
XOUT = Export(("x",), ("out",))


def result_of(model: Any, export: Export, *rules: dict[str, Any]) -> graphpatch.Result:
    return graphpatch.apply(rules or [NONE], model, export=export)


def exported(model: Any, export: Export, *rules: dict[str, Any]) -> Any:
    """The MetaGraphDef of the SavedModel."""
    raw = graphs.joined(result_of(model, export, *rules).model.pieces())
    assert raw[:2] == b"\x08\x01"
    [meta] = [part for part in fields(raw, 0, len(raw)) if part.holds(2)]
    return MetaGraphDef.FromString(raw[meta.value : meta.end])


def function_in(meta: Any) -> Any:
    [found] = [f for f in meta.graph_def.library.function if f.signature.name == "forward"]
    return found


def test_the_function_holds_what_the_outputs_need(model_file: Path) -> None:
    function = function_in(exported(model_file, XOUT))
    assert {one.name: list(one.input) for one in function.node_def} == {
        "w": [],
        "w/read": ["w:output:0"],
        "Multiply": ["x", "w/read:output:0"],
        "relu": ["Multiply:z:0"],
        "tower/relu6": ["relu:activations:0"],
        "round": ["tower/relu6:activations:0"],
        "call": ["round:y:0"],
        "out": ["call:b:0"],
    }
    assert dict(function.ret) == {"out": "out:output:0"}
    assert [(arg.name, arg.type) for arg in function.signature.input_arg] == [("x", FLOAT)]
    assert function.signature.is_stateful


def test_the_main_graph_calls_it_and_refuses_gradients(model_file: Path) -> None:
    meta = exported(model_file, XOUT)
    nodes = {one.name: one for one in meta.graph_def.node}
    assert sorted(one.op for one in nodes.values()) == [
        "Placeholder", "PreventGradient", "StatefulPartitionedCall",
    ]  # fmt: skip
    signature = meta.signature_def["serving_default"]
    assert nodes[signature.inputs["x"].name.removesuffix(":0")].op == "Placeholder"
    assert nodes[signature.outputs["out"].name.removesuffix(":0")].op == "PreventGradient"
    assert meta.graph_def.versions.producer == graphs.sample().versions.producer
    assert list(meta.meta_info_def.tags) == ["serve"]


def test_arguments_are_sorted_by_name_as_a_dict_is() -> None:
    model = graphdef(*net("b:Placeholder a:Placeholder z:Sub(b, a) y:Add(b, a)"))
    meta = exported(model, Export(("b", "a"), ("z", "y")))
    function = function_in(meta)
    assert [arg.name for arg in function.signature.input_arg] == ["a", "b"]
    assert [arg.name for arg in function.signature.output_arg] == ["y", "z"]
    assert meta.signature_def["serving_default"].outputs["y"].name == "StatefulPartitionedCall_0:0"
    [call] = [one for one in meta.graph_def.node if one.op == "StatefulPartitionedCall"]
    assert list(call.input) == ["serving_default_a", "serving_default_b"]
    bare = meta.object_graph_def.nodes[2].bare_concrete_function
    assert list(bare.argument_keywords) == ["a", "b"]
    assert bare.allowed_positional_arguments == 0


@pytest.mark.parametrize(
    ("tensor", "name"),
    [("a/b", "a_b"), ("7up", "t_7up"), ("in", "t_in"), ("x:0", "x"), ("_x", "t__x")],
)
def test_names_are_those_of_arguments_in_python(tensor: str, name: str) -> None:
    op = tensor.partition(":")[0]
    model = graphdef(*net(f"{op}:Placeholder y:Relu({op})"))
    function = function_in(exported(model, Export((tensor,), ("y",))))
    assert [arg.name for arg in function.signature.input_arg] == [name]
    [relu] = function.node_def
    assert list(relu.input) == [name]


def test_two_tensors_of_one_name_are_told_apart() -> None:
    model = graphdef(*net("a/b:Placeholder a_b:Placeholder y:Sub(a/b, a_b)"))
    result = result_of(model, Export(("a/b", "a_b"), ("y",)))
    function = function_in(exported(model, Export(("a/b", "a_b"), ("y",))))
    assert list(function.node_def[0].input) == ["a_b", "a_b_1"]
    assert result.report["notes"] == [
        "a/b is 'a_b' in the signature",
        "a_b is 'a_b_1' in the signature",
    ]


def test_a_cut_inside_takes_ties_to_the_ops_before_it_off() -> None:
    nodes = net("""x:Placeholder cut:Relu(x) a:Tanh(cut, ^cut, _class=[b'loc:@x'])
    y:Tanh(a, _class=[b'loc:@x', b'loc:@a'], _output_shapes=[b'stale'])""")
    function = function_in(exported(graphdef(*nodes), Export(("cut",), ("y",))))
    a, y = function.node_def
    assert (list(a.input), list(y.input)) == (["cut"], ["a:y:0"])
    assert "_class" not in a.attr
    assert list(y.attr["_class"].list.s) == [b"loc:@a"]
    assert "_output_shapes" not in y.attr


def test_shapes_are_those_that_the_graph_tells() -> None:
    def shapes(producer: int) -> list[Any]:
        fed = node("x", "Placeholder")
        fed.attr["shape"].shape.SetInParent()
        graph = graphdef(fed, node("y", "Relu", "x"), producer=producer)
        signature = exported(graph, Export(("x",), ("y",))).signature_def
        found = signature["serving_default"]
        return [found.inputs["x"].tensor_shape, found.outputs["y"].tensor_shape]

    assert [shape.unknown_rank for shape in shapes(1087)] == [False, True]
    assert [shape.unknown_rank for shape in shapes(21)] == [True, True]


def test_weights_stay_in_their_file(tmp_path: Path) -> None:
    graph = graphdef(node("x", "Placeholder"), const("w", 400_000), node("y", "Mul", "x", "w"))
    path = tmp_path / "model.pb"
    path.write_bytes(graph.SerializeToString())
    pieces = result_of(path, Export(("x",), ("y",))).model.pieces()
    spans = [piece for piece in pieces if isinstance(piece, Span)]
    assert sum(span.end - span.start for span in spans) >= 400_000
    assert function_in(exported(path, Export(("x",), ("y",)))).node_def[0].name == "w"


@pytest.mark.parametrize("name", ["model.meta", "model.pbtxt", "saved"])
def test_every_format_of_one_graph_can_be_exported(tmp_path: Path, name: str) -> None:
    meta = graphs.metagraph(graphs.sample(), "serve")
    path = tmp_path / name
    if name == "saved":
        graphs.saved_model_folder(path, meta)
    else:
        path.write_text(str(graphs.sample()) if "txt" in name else str(meta))
    result_of(path, XOUT, GUIDED).model.save(tmp_path / "out")
    found = sorted(str(one.relative_to(tmp_path / "out")) for one in (tmp_path / "out").rglob("*"))
    assert found == [
        "saved_model.pb", "variables", "variables/variables.data-00000-of-00001",
        "variables/variables.index",
    ]  # fmt: skip
    assert load(tmp_path / "out").graphs[0].around.is_object_based


def test_what_the_outputs_do_not_need_is_told(model_file: Path) -> None:
    report = result_of(model_file, Export(("x", "round"), ("out",)), GUIDED).report
    assert report["notes"] == [
        "Relu 'relu/forward' and 4 more: patched, but the outputs do not need it: it is left out",
        "input x: no output depends on it",
        PATCH_LAST,
        TAPE_FLOOR,
    ]
    assert result_of(model_file, XOUT, GUIDED).report["notes"] == [PATCH_LAST, TAPE_FLOOR]
    assert result_of(model_file, XOUT).report["notes"] == []


def test_the_library_goes_with_it_and_each_gradient_tells_how_it_is_called(
    model_file: Path,
) -> None:
    """TensorFlow 2.8 to 2.12 would call it with as many tensors as its op has inputs."""
    names = {f.signature.name for f in exported(model_file, XOUT).graph_def.library.function}
    assert names == {"f", "forward"}
    meta = exported(model_file, XOUT, GUIDED)
    objects, library = meta.object_graph_def, meta.graph_def.library
    bares = [one.bare_concrete_function for one in objects.nodes]
    called = {bare.concrete_function_name: bare for bare in bares}
    functions = {one.signature.name: one.signature for one in library.function}
    assert len(library.registered_gradients) == 3
    for name in (gradient.gradient_func for gradient in library.registered_gradients):
        captured = len(objects.concrete_functions[name].bound_inputs)
        arguments = [arg.name for arg in functions[name].input_arg]
        assert list(called[name].argument_keywords) == arguments[: len(arguments) - captured]
        assert called[name].allowed_positional_arguments == len(arguments) - captured > 0


# What cannot be exported.

VARIABLE = graphdef(
    *net("""x:Placeholder v:VariableV2 y:Mul(x, v) resource:VarHandleOp
    read:ReadVariableOp(resource) z:Mul(x, read) unknown:MyOp(x) u:Relu(unknown)
    enter:Enter(x, frame_name=loop) l:Relu(enter)""")
)

REFUSED: list[tuple[str, str, str]] = [
    ("xx", "y", "there is no tensor xx; nearest: x"),
    ("something", "y", "there is no tensor something; the placeholders are: x"),
    ("x", "yy", "there is no tensor yy; nearest: y"),
    ("x", "y:1", "there is no tensor y:1: 'y' is an op with 1 outputs"),
    ("^x", "y", "'^x' is not the name of a tensor: that is an op's, or op:1"),
    ("x", "y:z:0", "'y:z:0' is not the name of a tensor"),
    ("x", "", "'' is not the name of a tensor"),
    ("x", "x:0", "x is named twice among the inputs and outputs"),
    ("y", "x", "the outputs need what is not among the inputs: placeholder x"),
    ("x", "y", "VariableV2 'v' is a variable or table, .* freeze the graph"),
    ("x", "z", "VarHandleOp 'resource' is a variable or table"),
    ("x", "u", "MyOp 'unknown': an op type that neither TensorFlow nor the model"),
    ("x", "unknown", "'unknown' is an op of an unknown op type"),
    ("x", "l", "Enter 'enter' belongs to a v1 loop"),
]


@pytest.mark.parametrize(("given", "asked", "said"), REFUSED)
def test_what_cannot_be_exported(given: str, asked: str, said: str) -> None:
    with pytest.raises(OutputError, match=said.replace("^", r"\^")):
        result_of(VARIABLE, Export((given,), (asked,)))


def test_a_variable_that_is_cut_off_is_no_hindrance() -> None:
    function = function_in(exported(VARIABLE, Export(("x", "v"), ("y",))))
    assert [one.name for one in function.node_def] == ["y"]


@pytest.mark.parametrize("tags", [("serve", "train"), ("serve",)])
def test_what_has_signatures_of_its_own_keeps_them(tmp_path: Path, tags: tuple[str, ...]) -> None:
    metas = [graphs.metagraph(graphs.sample(), tag) for tag in tags]
    if len(metas) == 1:
        metas[0].object_graph_def.nodes.add()
    folder = graphs.saved_model_folder(tmp_path / "saved", *metas)
    with pytest.raises(OutputError, match="a SavedModel has its signatures already"):
        result_of(folder, XOUT)
