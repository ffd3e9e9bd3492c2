"""Each key of a match: which ops of a graph it means, and which it leaves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import graphpatch
from graphpatch.errors import RulesError
from graphpatch.graph.graph import Graph
from graphpatch.match.conditions import KEYS, ON_EDGES, conditions, holds
from graphpatch.match.select import select
from graphpatch.match.spec import FIELDS, Match
from graphpatch.protos import AttrValue, TensorShapeProto
from graphpatch.rules import rules_from
from tests import graphs
from tests.graphs import const, function, graphdef, node

CALLED = AttrValue(func={"name": "f"})


def match(value: Any) -> Match:
    return msgspec.convert(value, Match)


def shape(*sizes: int, unknown: bool = False) -> AttrValue:
    dims = [TensorShapeProto.Dim(size=size) for size in sizes]
    return AttrValue(shape=TensorShapeProto(dim=dims, unknown_rank=unknown))


@pytest.fixture(scope="module")
def graph() -> Graph:
    conv: dict[str, Any] = {"strides": [1, 2, 2, 1], "padding": "SAME", "use_cudnn_on_gpu": False}
    inner = [node("relu", "Relu", "a"), node("conv", "Conv2D", "a", "a", **conv)]
    return graphs.opened(
        graphdef(
            node("x", "Placeholder", shape=shape(-1, 4)),
            node("half", "Placeholder", dtype="float16", shape=shape(unknown=True)),
            const("w"),
            node("v", "VariableV2", dtype="float32"),
            node("tower/conv", "Conv2D", "x", "w", **conv),
            node("tower/conv_1", "Conv2D", "x", "w", strides=[1, 1, 1, 1], padding="VALID"),
            node("tower/relu", "Relu", "tower/conv"),
            node("relu", "Relu", "half", T="float16", _gradient_op_type="Mine"),
            node("relu6", "Relu6", "relu", T="float16"),
            node("leaky", "LeakyRelu", "tower/relu", alpha=0.1),
            node("stripped", "LeakyRelu", "leaky", T=None),
            node("norm", "FusedBatchNorm", "leaky", "w", "w", "w", "w"),
            node("norm_off", "FusedBatchNorm", "norm", "w", "w", "w", "w", is_training=False),
            node("cast", "Cast", "norm", SrcT="float32", DstT="int32"),
            node(
                "call", "StatefulPartitionedCall", "cast", f=CALLED, Tin=["int32"], Tout=["int32"]
            ),
            node("odd", "ZeroOut", "cast", _class=[b"loc:@w"]),
            node("done", "NoOp", "^odd"),
            functions=[
                function("f", ["a"], inner, {"b": "relu:activations:0"}),
                function("while_body_1", ["a"], [node("relu", "Relu", "a")], {}),
            ],
        )
    )


ALL = (
    "x half w v tower/conv tower/conv_1 tower/relu relu relu6 leaky stripped norm norm_off cast"
    " call odd done f:relu f:conv while_body_1:relu"
).split()
RELUS = ["tower/relu", "relu", "f:relu", "while_body_1:relu"]
CONVS = ["tower/conv", "tower/conv_1", "f:conv"]

MATCHES: list[tuple[Any, list[str]]] = [
    ({}, ALL),
    # op
    ({"op": "Relu"}, RELUS),
    ({"op": "Relu*"}, ["tower/relu", "relu", "relu6", "f:relu", "while_body_1:relu"]),
    ({"op": ["Relu6", "Cast", "NoSuchOp"]}, ["relu6", "cast"]),
    ({"op": "*Relu"}, [*RELUS[:2], "leaky", "stripped", *RELUS[2:]]),
    # name
    ({"name": "relu"}, ["relu", "f:relu", "while_body_1:relu"]),
    ({"name": "**/relu"}, RELUS),
    ({"name": ["relu6", "relu6", "gone", "x"]}, ["x", "relu6"]),
    ({"name": ["relu6", "tower/c*"]}, ["tower/conv", "tower/conv_1", "relu6"]),
    ({"op": "Conv2D", "name": "tower/**"}, CONVS[:2]),
    ({"op": "Relu", "name": "tower/conv"}, []),
    # name_regex
    ({"name_regex": "relu"}, ["relu", "f:relu", "while_body_1:relu"]),
    ({"name_regex": r".*relu\d?"}, ["tower/relu", "relu", "relu6", "f:relu", "while_body_1:relu"]),
    # attr
    ({"attr": {"strides": [1, 2, 2, 1]}}, ["tower/conv", "f:conv"]),
    ({"attr": {"padding": {"in": ["SAME", "VALID"]}}}, CONVS),
    ({"attr": {"padding": "SAME", "strides": {"in": [[1, 1, 1, 1]]}}}, []),
    ({"attr": {"T": "float16"}}, ["relu", "relu6"]),
    ({"attr": {"shape": [-1, 4]}}, ["x"]),
    ({"attr": {"alpha": 0.1}}, ["leaky"]),
    ({"attr": {"f": "f"}}, ["call"]),
    ({"attr": {"_class": ["loc:@w"]}}, ["odd"]),
    ({"attr": {"_gradient_op_type": "Mine"}}, ["relu"]),
    ({"op": "Relu", "attr": {"_gradient_op_type": False}}, ["tower/relu", *RELUS[2:]]),
    ({"attr": {"value": True}}, ["w"]),
    # what TensorFlow takes for an attr that the NodeDef leaves out
    ({"attr": {"alpha": 0.2}}, ["stripped"]),
    ({"op": "LeakyRelu", "attr": {"T": "float32"}}, ["leaky", "stripped"]),
    ({"attr": {"data_format": "NHWC"}}, [*CONVS[:2], "norm", "norm_off", "f:conv"]),
    ({"op": "FusedBatchNorm", "attr": {"epsilon": {"in": [1, 0.0001]}}}, ["norm", "norm_off"]),
    ({"attr": {"is_training": True}}, ["norm"]),
    ({"attr": {"is_training": False}, "op": "Fused*"}, ["norm_off"]),
    ({"attr": {"is_training": {"in": [True]}}}, ["norm"]),
    ({"attr": {"use_cudnn_on_gpu": False}, "op": "Conv2D"}, ["tower/conv", "f:conv"]),
    # dtype of output 0
    ({"dtype": ["int32", "float16"]}, ["half", "relu", "relu6", "cast", "call"]),
    ({"dtype": "float32", "op": "Variable*"}, ["v"]),
    ({"dtype": "float32", "op": ["Leaky*", "NoOp", "ZeroOut"]}, ["leaky", "stripped"]),
    # body
    ({"body": "main", "op": "Relu"}, ["tower/relu", "relu"]),
    ({"body": "while_*"}, ["while_body_1:relu"]),
    ({"body": ["f", "main"], "op": "Conv2D"}, CONVS),
    # any, all, not
    ({"any": [{"op": "Cast"}, {"name": "x"}]}, ["x", "cast"]),
    ({"all": [{"op": "Relu"}, {"name": "tower/*"}]}, ["tower/relu"]),
    ({"all": []}, ALL),
    ({"op": "Relu", "not": {"body": "main"}}, RELUS[2:]),
    ({"not": {}}, []),
    ({"any": [{"all": [{"op": "Relu"}, {"not": {"body": "*"}}]}, {"name": "v"}]}, ["v"]),
]  # fmt: skip


def spelled(graph: Graph, wanted: Match) -> list[str]:
    found = [(node.body.label, node.name) for node in select(graph, wanted)]
    return [name if label == "main" else f"{label}:{name}" for label, name in found]


@pytest.mark.parametrize(("value", "names"), MATCHES, ids=str)
def test_a_match_means_these_ops_and_no_others(graph: Graph, value: Any, names: list[str]) -> None:
    wanted = match(value)
    assert spelled(graph, wanted) == names
    # The indices that `select` uses give what the conditions say.
    condition = holds(wanted)
    slowly = [node for body in graph.bodies for node in filter(condition(body), body)]
    assert [(n.body.label, n.index) for n in slowly] == [
        (n.body.label, n.index) for n in select(graph, wanted)
    ]


def test_conditions_are_those_that_are_given() -> None:
    given = {"dtype": "float32", "op": "Relu", "not": {"name": "x"}}
    assert list(conditions(match(given))) == ["op", "not", "dtype", "added"]
    assert list(conditions(match({}))) == ["added"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"name_regex": "(a"}, "name_regex '(a' is not a regular expression: missing )"),
        ({"dtype": "flaot32"}, "dtype: 'flaot32' is not a dtype of TensorFlow; nearest: float32"),
        ({"dtype": "x"}, "dtype: 'x' is not a dtype of TensorFlow; legal: float32, float64, int32"),
    ],
)
def test_a_value_that_means_nothing_is_told_with_the_nearest(wanted: Any, message: str) -> None:
    with pytest.raises(RulesError) as raised:
        conditions(match({"any": [wanted]}))
    assert str(raised.value).startswith(message)


def test_after_an_edit_it_is_the_new_graph_that_is_matched(graph: Graph) -> None:
    from graphpatch.graph.editor import Editor
    from graphpatch.graph.record import Author

    copy = graph.copy()
    assert spelled(copy, match({"op": "Identity"})) == []
    moved = copy.main.node("relu6")
    typed = {"T": graphs.attr("float16")}
    Editor(copy, Author("r", "i")).take_name(moved, "Identity", lambda m: [m.name], typed)
    assert spelled(copy, match({"op": "Identity", "taken": True})) == ["relu6"]
    assert spelled(copy, match({"op": "Identity", "name": "relu6"})) == ["relu6"]
    assert spelled(copy, match({"name": "relu6"})) == ["relu6/forward"]
    assert spelled(copy, match({"op": "Relu6"})) == ["relu6/forward"]
    assert spelled(graph, match({"op": "Relu6"})) == ["relu6"]


def test_every_field_of_a_match_has_a_condition() -> None:
    """One without would match everything."""
    assert set(FIELDS) == set(KEYS)
    assert set(ON_EDGES) <= set(KEYS)


EMPTY: list[tuple[str, dict[str, Any]]] = [
    *((key, {key: {}}) for key in ("attr", "inputs", "consumers")),
    *((key, {key: []}) for key in ("op", "name", "dtype", "body", "upstream_of", "any")),
    ("class", {"class": []}),
    ("nth", {"nth": []}),
    ("nth.at", {"nth": {"at": []}}),
    ("taken", {"taken": []}),
    ("inside", {"inside": {}}),
    ("inside.loop", {"inside": {"loop": []}}),
    ("attr.T.in", {"attr": {"T": {"in": []}}}),
    ("between.from", {"between": {"from": [], "to": "b"}}),
    ("between.to", {"between": {"from": "b", "to": []}}),
    ("upstream_of.of", {"upstream_of": {"of": []}}),
]


@pytest.mark.parametrize(("where", "match"), EMPTY, ids=str)
def test_what_is_empty_is_refused(where: str, match: dict[str, Any]) -> None:
    with pytest.raises(RulesError, match=f"{where}: .* is empty, so it says nothing; leave"):
        rules_from([{"match": match, "patch": {"stop_gradient": True}}])


def test_an_attr_that_no_op_has_gets_the_nearest() -> None:
    [pool] = graphs.main(node("pool", "MaxPool", strides=[1, 2, 2, 1]))
    test = conditions(Match(attr={"stride": 1}))["attr"]
    assert test.instead(pool) == "it has no attr 'stride'; nearest: strides"


def test_ops_of_unknown_shape_are_named() -> None:
    """Two are meant but for their shape: of one nothing is known, of one the last size is not."""
    message = graphs.graphdef(
        graphs.node("x", "Placeholder", shape=shape(2, 8)),
        graphs.node("y", "Placeholder", shape=shape(2, -1)),
        graphs.node("z", "Placeholder", shape=shape(3, -1)),
        *(graphs.node(f"relu_{name}", "Relu", name) for name in "xyz"),
        graphs.node("odd", "Dilation2D", "x", "x"),
        graphs.node("relu_odd", "Relu", "odd"),
    )
    message.versions.producer = 1286
    rule = {"name": "r", "match": {"op": "Relu", "shape": [2, 8]}, "patch": {"stop_gradient": True}}
    [note] = [n for n in graphpatch.apply([rule], message).report["notes"] if "shape" in n]
    assert note == (
        "rule 'r' leaves out ops whose shape is not known well enough: "
        "Relu 'relu_y' has shape [2, ?] (and 1 more)"
    )
    for wanted in ([2, -1], {"rank": 2, "sizes": [2, -1]}):
        rule["match"] = {"op": "Relu", "shape": wanted}
        [note] = [n for n in graphpatch.apply([rule], message).report["notes"] if "shape" in n]
        assert note.endswith("Relu 'relu_odd' has shape not known")
    rule["match"] = {"name": ["relu_x", "relu_z"], "shape": {"elements": 16}}
    [note] = [n for n in graphpatch.apply([rule], message).report["notes"] if "shape" in n]
    assert note.endswith("Relu 'relu_z' has shape [3, ?]")
    rule["match"] = {"name": ["relu_x", "relu_z"], "shape": [2, 8]}
    assert not [n for n in graphpatch.apply([rule], message).report["notes"] if "shape" in n]
