"""Each key of a match has a table: which ops it means, what it refuses, what it says of a miss."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

import graphpatch
from graphpatch.errors import MatchError, RulesError
from graphpatch.graph.graph import Graph
from graphpatch.match.conditions import KEYS, holds
from graphpatch.match.select import select
from graphpatch.match.spec import Match
from graphpatch.protos import AttrValue, TensorShapeProto
from graphpatch.rules import rules_from
from tests import graphs
from tests.graphs import function, graph_of, graphdef, node
from tests.match import test_conditions, test_neighbours, test_paths, test_value
from tests.match.pattern.test_traps import scalar

FLOAT = {"T": "float32"}
NEXT = {"T": "float32"}


def sized(*sizes: int) -> AttrValue:
    return AttrValue(shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=s) for s in sizes]))


def vector(name: str, *values: float) -> Any:
    made = scalar(name, values[0])
    made.attr["value"].tensor.tensor_shape.dim.add(size=len(values))
    made.attr["value"].tensor.float_val[:] = values
    return made


NET = graph_of(
    node("image", "Placeholder", shape=sized(-1, 8, 8, 3)),
    node("unknown", "Placeholder"),
    vector("w", 1, 2, 3),
    scalar("half", 0.5),
    scalar("minus", -1.0),
    scalar("two", 2, "int32"),
    node("b/Identity", "Identity", "w"),
    node("block2/relu", "Relu", "image"),
    node("block10/relu", "Relu", "block2/bias"),
    node("block2/bias", "BiasAdd", "block2/relu", "b/Identity"),
    node("block2/mul", "Mul", "block10/relu", "half"),
    node("pool", "MaxPool", "block2/mul", ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME"),
    node("out", "Relu", "pool"),
    node("flat", "Softmax", "unknown"),
    node("v", "VarHandleOp", dtype="float32", shape=sized(3)),
    node("read", "ReadVariableOp", "v", dtype="float32"),
    node("dense", "MatMul", "unknown", "read"),
    node("leaky", "LeakyRelu", "dense", alpha=0.3),
)

# A v1 cond in a v1 loop, as tf.while_loop and tf.cond make them.
LOOP_DEF = graphdef(
    node("x", "Placeholder"),
    node("rnn/enter", "Enter", "x", frame_name="rnn/while_context"),
    node("rnn/merge", "Merge", "rnn/enter", "rnn/next", N=2),
    node("rnn/less", "Less", "rnn/merge", "rnn/merge"),
    node("rnn/LoopCond", "LoopCond", "rnn/less"),
    node("rnn/switch", "Switch", "rnn/merge", "rnn/LoopCond"),
    node("rnn/step", "Relu", "rnn/switch:1"),
    node("rnn/next", "NextIteration", "rnn/step"),
    node("rnn/exit", "Exit", "rnn/switch"),
    node("after", "Relu", "rnn/exit"),
    node("is_training", "Placeholder", dtype="bool"),
    node("cond/pred_id", "Identity", "is_training", T="bool"),
    node("cond/in", "Switch", "x", "cond/pred_id"),
    node("cond/off", "Relu", "cond/in"),
    node("cond/in_1", "Switch", "x", "cond/pred_id"),
    node("cond/on", "Tanh", "cond/in_1:1"),
    node("cond/Merge", "Merge", "cond/off", "cond/on", N=2),
)
LOOP = graphs.opened(LOOP_DEF)


def called(op: str, name: str, **functions: Any) -> Any:
    keys = {key: AttrValue(func={"name": value}) for key, value in functions.items()}
    return node(name, op, "x", "x", Tin=["float32"], Tout=["float32"], T=["float32"], **keys)


def body_of(name: str, *nodes: Any) -> Any:
    return function(name, ["a"], nodes or [node(f"{name}_relu", "Relu", "a")], {})


CALLS = graph_of(
    node("x", "Placeholder"),
    called("While", "lstm/while", cond="c", body="b"),
    called("StatelessIf", "drop/cond", then_branch="yes", else_branch="no"),
    functions=[
        body_of("c"),
        body_of("b", node("in_b", "Tanh", "a"), called("PartitionedCall", "call", f="deep")),
        body_of("yes"),
        body_of("no"),
        body_of("deep"),
        body_of("apart"),
    ],
)

RELUS = ["block2/relu", "block10/relu", "out"]
TABLES: dict[str, list[tuple[Graph, Any, list[str]]]] = {
    "shape": [
        (NET, {"shape": [None, 8, 8, 3]},
         ["image", "block2/relu", "block10/relu", "block2/bias", "block2/mul"]),
        (NET, {"shape": [-1, 8, 8, 3], "op": "Relu"}, RELUS[:2]),
        (NET, {"shape": [2, 8, 8, 3]}, []),
        (NET, {"shape": [None, {">": 3}, {"<=": 4}, None]}, ["pool", "out"]),
        (NET, {"shape": [3]}, ["w", "b/Identity", "read"]),
        (NET, {"shape": []}, ["half", "minus", "two", "v"]),
        (NET, {"shape": {"rank": 4}, "op": "Relu"}, RELUS),
        (NET, {"shape": {"rank": {"<": 2}}, "op": "Const"}, ["w", "half", "minus", "two"]),
        (NET, {"shape": {"elements": 3}}, ["w", "b/Identity", "read"]),
        (NET, {"shape": {"elements": {"<": 2}, "rank": 0}, "dtype": "int32"}, ["two"]),
        (NET, {"shape": {"sizes": [3], "rank": 2}}, []),
        (NET, {"shape": {"rank": {">=": 0}}, "op": "Softmax"}, []),  # not known
    ],
    "class": [
        (NET, {"class": "activation"}, [*RELUS, "leaky"]),
        (NET, {"class": ["pooling", "convolution"]}, ["pool"]),
        (NET, {"class": "has_weights"}, ["block2/bias", "dense"]),
        (NET, {"class": "elementwise", "not": {"class": "activation"}},
         ["b/Identity", "block2/mul"]),
    ],
    "inside": [
        (LOOP, {"inside": "loop", "op": ["Relu", "Less", "Tanh"]}, ["rnn/less", "rnn/step"]),
        (LOOP, {"inside": {"loop": "rnn"}, "op": "Relu"}, ["rnn/step"]),
        (LOOP, {"inside": {"loop": "rnn/while*"}, "op": "Relu"}, ["rnn/step"]),
        (LOOP, {"inside": {"loop": "other"}}, []),
        (LOOP, {"inside": {"loop": "other", "when": True}}, []),
        (LOOP, {"inside": {"loop": "rnn", "branch": "cond"}}, []),
        (LOOP, {"inside": "branch", "op": ["Relu", "Tanh"]}, ["cond/off", "cond/on"]),
        (LOOP, {"inside": {"branch": "cond", "when": True}, "op": ["Relu", "Tanh"]}, ["cond/on"]),
        (LOOP, {"inside": {"when": False}, "op": ["Relu", "Tanh"]}, ["cond/off"]),
        (LOOP, {"not": {"inside": "loop"}, "op": "Relu"}, ["after", "cond/off"]),
        (CALLS, {"inside": "loop"}, ["c_relu", "in_b", "call", "deep_relu"]),
        (CALLS, {"inside": {"loop": "lstm/*"}, "op": "Tanh"}, ["in_b"]),
        (CALLS, {"inside": {"branch": "drop/cond", "when": True}}, ["yes_relu"]),
        (CALLS, {"inside": {"when": False}}, ["no_relu"]),
        (NET, {"inside": "loop"}, []),
    ],
    "nth": [
        (NET, {"op": "Relu", "nth": "first"}, ["block2/relu"]),
        (NET, {"op": "Relu", "nth": 1}, ["block10/relu"]),
        (NET, {"op": "Relu", "nth": "last"}, ["out"]),
        (NET, {"op": "Relu", "nth": -2}, ["block10/relu"]),
        (NET, {"op": "Relu", "nth": [0, -1]}, ["block2/relu", "out"]),
        (NET, {"op": "Relu", "nth": ":-1"}, RELUS[:2]),
        (NET, {"op": "Relu", "nth": "::2"}, ["block2/relu", "out"]),
        (NET, {"op": "Relu", "nth": 7}, []),
        (NET, {"op": "Relu", "name": "block*/**", "nth": {"at": "last", "by": "name"}},
         ["block10/relu"]),
        (NET, {"name": "block*/*", "nth": {"at": 1, "by": "file"}}, ["block10/relu"]),
        (NET, {"name": "block*/*", "nth": 1}, ["block2/bias"]),
        (NET, {"pattern": "* -> r:Relu", "nth": "last"}, ["out"]),
        (NET, {"pattern": "* -> r:Relu", "nth": ":-1"}, RELUS[:2]),
        (NET, {"all": [{"op": "Relu"}, {"not": {"op": "Relu", "nth": "last"}}]}, RELUS[:2]),
        (NET, {"inputs": {"any": {"op": "Relu", "nth": 0}}}, ["block2/bias"]),
        (CALLS, {"op": "Relu", "nth": 0}, ["c_relu", "yes_relu", "no_relu", "deep_relu",
         "apart_relu"]),  # in each body
    ],
    "attr": [
        (NET, {"attr": {"alpha": {">": 0.2}}}, ["leaky"]),
        (NET, {"attr": {"alpha": {">": 0.2, "<": 0.25}}}, []),
        (NET, {"attr": {"alpha": {"in": [0.3], "<": 1}}}, ["leaky"]),
        (NET, {"attr": {"strides": {">=": 1}}}, ["pool"]),
        (NET, {"attr": {"strides": {">": 1}}}, []),  # of a list it is asked of all
        (NET, {"op": "Relu", "attr": {"T": {"!=": 1}}}, []),  # which is no number
    ],
    "value": [
        (NET, {"value": {">": 0}}, ["w", "half", "two"]),
        (NET, {"value": {">=": 1, "<": 3}}, ["two"]),
        (NET, {"value": {"<": 0}}, ["minus"]),
        (NET, {"value": {"near": 0.4, "tolerance": 0.2, "!=": 0.5}}, []),
    ],
}  # fmt: skip

# The tables of the other keys are beside those that they are like.
ELSEWHERE: list[Any] = [
    *(match for match, _ in test_conditions.MATCHES),
    *(match for match, _ in test_paths.CASES),
    *({key: 0} for key in ("inputs", "consumers") if test_neighbours.__doc__),
    *({"value": 0} for _ in [test_value]),
    {"pattern": 0},
    {"taken": 0},  # below
]


def spelled(graph: Graph, match: Any) -> list[str]:
    return [one.name for one in select(graph, msgspec.convert(match, Match))]


@pytest.mark.parametrize(
    ("graph", "match", "names"),
    [case for table in TABLES.values() for case in table],
    ids=[json.dumps(match) for table in TABLES.values() for _, match, _ in table],
)
def test_a_match_means_these_ops_and_no_others(graph: Graph, match: Any, names: list[str]) -> None:
    assert spelled(graph, match) == names


def test_every_key_has_a_table() -> None:
    assert {*TABLES, *(key for match in ELSEWHERE for key in match)} - {"control"} == set(KEYS)


def test_the_order_of_the_file_does_not_tell_which_is_last() -> None:
    nodes = [node(*words) for words in (("b", "Relu", "a"), ("a", "Relu", "x"), ("c", "Relu", "x"))]
    nodes.append(node("x", "Placeholder"))
    for order in (nodes, nodes[::-1]):
        assert spelled(graph_of(*order), {"op": "Relu", "nth": "last"}) == ["b"]
        first = spelled(graph_of(*order), {"op": "Relu", "nth": "first"})
        assert first == ["a"]  # before c, by name


RULES: list[dict[str, Any]] = [
    {"name": "whole", "match": {"pattern": "x:_ -> Sigmoid -> m:Mul; x -> m"},
     "patch": {"override_gradient": {"formula": "dy"}, "on": "match"}},
    {"name": "filter", "match": {"name": "b"}, "patch": {"filter_gradient": {"scale": 2}}},
]  # fmt: skip
TAKEN: dict[str, tuple[Any, list[str]]] = {
    "by none": ({"taken": False, "op": ["Sigmoid", "Mul", "Relu", "Tanh"]}, ["t"]),
    "by one of them": ({"taken": True, "op": ["Sigmoid", "Mul", "Relu", "Tanh"]},
                       ["s", "m/forward", "b/forward", "b/backward/Mul"]),
    "by this one": ({"taken": "filter", "op": "*Re*"}, ["b/forward"]),
    "the op that has the name now": ({"taken": "filter", "name": "b"}, ["b"]),
    "by one of these": ({"taken": ["fil*", "x"], "name": ["b", "s"]}, ["b"]),
    "what reads another tensor now": ({"taken": False, "name": "t"}, ["t"]),
}  # fmt: skip


@pytest.mark.parametrize(("match", "names"), TAKEN.values(), ids=TAKEN)
def test_taken_by_an_earlier_rule(match: Any, names: list[str]) -> None:
    nodes = [
        node("x", "Placeholder"),
        node("s", "Sigmoid", "x"),
        node("m", "Mul", "x", "s"),
        node("b", "Relu", "m"),
        node("t", "Tanh", "b"),
    ]
    model = graphpatch.apply(RULES, graphdef(*nodes)).model
    assert spelled(model.graphs[0], match) == names


@pytest.mark.parametrize("inside", [lambda one: {"not": one}, lambda one: {"inputs": {"0": one}}])
@pytest.mark.parametrize("name", ["tpyo", "itself", "later"])
def test_taken_names_a_rule_before(inside: Any, name: str) -> None:
    """A slip would mean all ops, or none, without a word."""
    patch = {"filter_gradient": {"scale": 2}}
    rules = [
        {"name": "typo", "match": {"op": "Relu"}, "patch": patch},
        {"name": "itself", "match": {"op": "Tanh", **inside({"taken": name})}, "patch": patch},
        {"name": "later", "match": {"op": "Mul"}, "patch": patch},
    ]
    model = graphdef(node("x", "Placeholder"), node("a", "Relu", "x"), node("b", "Tanh", "a"))
    near = "; nearest: typo" if name == "tpyo" else ""
    with pytest.raises(MatchError, match=f"called '{name}'{near}; before it: 'typo'$"):
        graphpatch.apply(rules, model)


REFUSED: dict[str, tuple[Any, str]] = {
    "no such class": ({"class": "activations"}, "there is no class 'activations'; nearest: act"),
    "another class": ({"class": "x"}, "legal: activation, convolution, elementwise, has_weights"),
    "no slice": ({"nth": "second"}, 'expected a number, "first", "last", a list of num'),
    "an order": ({"nth": {"at": 0, "by": "size"}}, "not a legal value: 'size'; legal: \"gra"),
    "no comparison": ({"attr": {"T": {}}}, 'attr[...]: it is empty: give one of >, <, >='),
    "no number": ({"value": {">": "a"}}, "value.>: expected a number, found a string"),
    "a tolerance alone": ({"value": {"tolerance": 1}}, 'value: give near, or one of >, <, >='),
    "no place": ({"inside": "function"}, "not a legal value: 'function'; legal: \"loop"),
    "a key of inside": ({"inside": {"frame": "x"}}, "inside: unknown key 'frame'; "),
    "a key of shape": ({"shape": {"rnak": 1}}, "shape: unknown key 'rnak'; nearest: rank"),
    "a key of value": ({"value": {"neer": 1}}, "unknown key 'neer'; nearest: near"),
    "a size": ({"shape": [1.5]}, "shape[0]: expected a whole number or an object, found a number"),
    "a key of between": (
        {"between": {"from": "a", "to": "b", "whithin": {}}},
        "between: unknown key 'whithin'; nearest: within",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("match", "message"), REFUSED.values(), ids=REFUSED)
def test_what_means_nothing_is_refused(match: Any, message: str) -> None:
    with pytest.raises(RulesError) as raised:
        rules_from([{"match": match, "patch": {"stop_gradient": True}}])
    assert message in str(raised.value)


def test_without_a_graph_around_a_function_is_in_no_loop() -> None:
    apart = CALLS.functions["apart"]
    assert not holds(Match(inside="loop"))(apart).indices()
