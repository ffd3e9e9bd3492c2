from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from graphpatch.errors import ModelError
from graphpatch.graph import node as nodedef
from graphpatch.graph import wire
from graphpatch.graph.node import Body
from graphpatch.graph.walk import first_producers
from graphpatch.protos import GraphDef
from tests import graphs
from tests.graphs import function, graphdef, node

SPLIT = node("split", "Split", "axis", "x", num_split=3)


@pytest.fixture
def body() -> Body:
    return graphs.opened(graphs.sample()).main


def test_the_main_graph_and_its_functions_are_bodies() -> None:
    graph = graphs.opened(graphs.sample())
    assert [(one.label, one.is_main, len(one)) for one in graph.bodies] == [
        ("main", True, 10),
        ("f", False, 1),
    ]
    assert graph.body("f") is graph.functions["f"]
    assert graph.body("main") is graph.main
    assert graph.functions["f"].arguments == {"a": graphs.FLOAT}
    assert graph.main.arguments == {}
    assert graph.functions["f"].ret == {"b": "relu:activations:0"}
    assert graph.library.producer == 1087
    assert str(graph.main.node("relu")) == "Relu 'relu'"
    assert str(graph.functions["f"].node("relu")) == "Relu 'relu' in function f"


def test_nodes_are_those_of_the_file_in_its_order(body: Body) -> None:
    for found, message in zip(body, graphs.sample().node, strict=True):
        assert (found.name, found.op, found.device) == (message.name, message.op, message.device)
        assert found.inputs == tuple(message.input)
        assert found.attr_names == sorted(message.attr)
        assert {key: found.attr(key) for key in found.attr_names} == dict(message.attr)
        assert body.node(message.name) == found
    assert body.by_type["Identity"] == [2, 8]
    assert body.by_name["done"] == 9


def test_outputs_of_functions_have_one_order_in_every_process() -> None:
    inner = function("f", ["a"], [], {f"out{number}": "a" for number in range(99)})
    body = graphs.opened(graphdef(functions=[inner])).functions["f"]
    assert list(body.ret) == sorted(body.ret)
    assert body.returned["a"] == sorted(body.ret)


def test_a_name_that_is_not_there_gets_the_nearest(body: Body) -> None:
    with pytest.raises(ModelError, match="no op 'rleu' in main; nearest: relu"):
        body.node("rleu")


def test_tensors_are_spelled_as_the_body_spells_them() -> None:
    spelled = graphs.main(SPLIT).node("split")
    assert [spelled.tensor(k) for k in range(3)] == ["split", "split:1", "split:2"]
    inner = function("f", ["axis", "x"], [SPLIT, node("odd", "NoSuchOp")], {})
    body = graphs.opened(graphdef(functions=[inner])).functions["f"]
    assert [body.node("split").tensor(k) for k in range(3)] == [
        f"split:output:{k}" for k in range(3)
    ]
    with pytest.raises(ModelError, match="the outputs of op type NoSuchOp are not known"):
        body.node("odd").tensor(0)
    assert body.node("odd").outputs is None


def test_readers_outputs_and_arguments(body: Body) -> None:
    """They go by the spelling of inputs, and by the op type."""
    assert {name: body.readers.get(name) for name in ("relu", "w/read", "out", "done")} == {
        "relu": [(5, 0)], "w/read": [(3, 1)], "out": [(9, 0)], "done": None,
    }  # fmt: skip
    for text in ("relu", "relu:0", "^relu", "relu:activations:0"):
        assert body.producer(text) == body.node("relu")
    assert body.producer("nobody") is None
    assert body.node("done").data_inputs == ()
    for name, outputs in {"relu": ["activations"], "done": [], "call": ["b"]}.items():
        found = [(one.name, one.dtype, one.is_ref) for one in body.node(name).outputs or []]
        assert found == [(output, "float32", False) for output in outputs]
    split = graphs.main(SPLIT).node("split")
    assert [one.dtype for one in split.arguments or []] == ["int32", "float32"]
    assert body.library.opdef("NoSuchOp") is None


def test_where_a_field_stands_twice_the_last_one_counts() -> None:
    """Concatenated messages merge: of a text and of a map entry the last one counts."""
    first = node("first", "Relu", _note=b"hello").SerializeToString()
    twice = first + node("last", "Elu", _note=b"last").SerializeToString()
    (merged,) = graphs.opened(wire.encoded(1, twice)).main
    assert (merged.name, merged.op) == ("last", "Elu")
    assert nodedef.attr_value(merged.attr_spans()["_note"]).s == b"last"


def test_an_attr_that_is_missing_is_told_with_its_op() -> None:
    body = graphs.main(node("n", "Split", "n", "n"), node("m", "Relu", "n", T=None))
    with pytest.raises(ModelError, match="Split 'n': attr 'num_split' is missing"):
        assert body.node("n").outputs
    [out] = body.node("m").outputs or []
    assert out.dtype is None


def test_functions_in_several_libraries_are_one_library() -> None:
    # Concatenated GraphDefs merge, and so do their libraries.
    other = graphdef(node("y", "NoOp"), functions=[function("g", ["a"], [], {"b": "a"})])
    raw = graphs.sample().SerializeToString() + other.SerializeToString()
    with pytest.raises(ModelError, match="two functions are named 'g'"):
        graphs.opened(raw + other.SerializeToString())
    graph = graphs.opened(raw)
    assert [body.label for body in graph.bodies] == ["main", "f", "g"]
    assert graph.main.heads.names[-1] == "y"
    assert graphs.written(graph) == raw
    assert GraphDef.FromString(raw).library.function[1].signature.name == "g"


# Fields of a FunctionDef, a library and a GraphDef that protobuf does not read.
BROKEN = {
    "an attr of a function": wire.encoded(2, wire.encoded(1, wire.encoded(5, b"\x12\x020\xb8"))),
    "an argument's attrs": wire.encoded(2, wire.encoded(1, wire.encoded(7, b"\x12\x01\xff"))),
    "an output of a function": wire.encoded(2, wire.encoded(1, wire.encoded(4, b"\x0a\x01\xff"))),
    "a gradient": wire.encoded(2, wire.encoded(2, b"\x0a\x05f")),
    "a registered gradient": wire.encoded(2, wire.encoded(3, b"\x0a\x05f")),
    "the versions": wire.encoded(4, b"\x08\xff"),
}
if "debug_info" in GraphDef.DESCRIPTOR.fields_by_name:  # since tensorboard 2.15
    BROKEN["what debuggers read"] = wire.encoded(5, b"\x0a\x05f")


@pytest.mark.parametrize("field", BROKEN.values(), ids=BROKEN)
def test_what_stands_beside_the_nodes_is_read_too(field: bytes) -> None:
    raw = graphs.sample().SerializeToString() + field
    with pytest.raises(DecodeError):
        GraphDef.FromString(raw)
    with pytest.raises(ModelError):
        graphs.opened(raw)


FIRST_INPUTS = {"y": "y x", "z": "z", "a": "a b c", "c": "c a b"}  # the last two are on a circle


@pytest.mark.parametrize(("start", "producers"), FIRST_INPUTS.items())
def test_what_the_first_inputs_come_from(start: str, producers: str) -> None:
    circle = (node("a", "Identity", "b"), node("b", "Add", "c:0", "x"), node("c", "Identity", "a"))
    others = (node("y", "Add", "x", "a"), node("z", "Relu", "^a", "^x"))
    body = graphs.main(node("x", "Placeholder"), *circle, *others)
    assert [one.name for one in first_producers(body.node(start))] == producers.split()
    assert list(first_producers(None)) == []
