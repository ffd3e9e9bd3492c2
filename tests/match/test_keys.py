"""Each key of a match has a table: which ops it means, and which it leaves; what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import graphpatch
from graphpatch.cli.schema import schema
from graphpatch.errors import MatchError, RulesError
from graphpatch.graph.graph import Graph
from graphpatch.match.keys import OP_KEYS
from graphpatch.match.select import KEYS, ON_EDGES, holds, select
from graphpatch.match.spec import FIELDS, Match
from graphpatch.protos import AttrValue, TensorShapeProto
from graphpatch.rules import rules_from
from tests import graphs
from tests.graphs import const, function, graph_of, graphdef, listed, node
from tests.patches.one_op import net

ROOT = Path(__file__).parent.parent.parent


NET = graph_of(
    listed("w", 1, 2, 3, shape=[3]),
    listed("half", 0.5),
    listed("minus", -1.0),
    listed("two", 2, dtype="int32"),
    *net("""image:Placeholder(shape=[-1,8,8,3]) unknown:Placeholder b/Identity:Identity(w)
    block2/relu:Relu(image) block10/relu:Relu(block2/bias)
    block2/bias:BiasAdd(block2/relu, b/Identity)
    block2/mul:Mul(block10/relu, half) out:Relu(pool) flat:Softmax(unknown)
    pool:MaxPool(block2/mul, ksize=[1,2,2,1], strides=[1,2,2,1], padding=SAME)
    v:VarHandleOp(dtype=float32, shape=[3]) read:ReadVariableOp(v, dtype=float32)
    dense:MatMul(unknown, read) leaky:LeakyRelu(dense, alpha=0.3)"""),
)  # fmt: skip

# A v1 cond beside a v1 loop, as tf.cond and tf.while_loop make them.
LOOP_DEF = graphdef(
    *net("""x:Placeholder rnn/enter:Enter(x, frame_name=rnn/while_context)
    rnn/merge:Merge(rnn/enter, rnn/next, N=2) rnn/less:Less(rnn/merge, rnn/merge)
    rnn/LoopCond:LoopCond(rnn/less) rnn/switch:Switch(rnn/merge, rnn/LoopCond)
    rnn/step:Relu(rnn/switch:1) rnn/next:NextIteration(rnn/step) rnn/exit:Exit(rnn/switch)
    after:Relu(rnn/exit) is_training:Placeholder(dtype=bool)
    cond/pred_id:Identity(is_training, T=bool)
    cond/in:Switch(x, cond/pred_id) cond/off:Relu(cond/in) cond/in_1:Switch(x, cond/pred_id)
    cond/on:Tanh(cond/in_1:1) cond/Merge:Merge(cond/off, cond/on, N=2)""")
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
        body_of("b", node("in_b", "Tanh", "a"), called("PartitionedCall", "call", f="deep")),
        *map(body_of, ("c", "yes", "no", "deep", "apart")),
    ],
)

CONV = "strides=[1,2,2,1], padding=SAME, use_cudnn_on_gpu=False"
UNKNOWN = AttrValue(shape=TensorShapeProto(unknown_rank=True))
ATTRS = graph_of(
    node("half", "Placeholder", dtype="float16", shape=UNKNOWN),
    const("w"),
    *net(f"""x:Placeholder(shape=[-1,4]) v:VariableV2(dtype=float32)
    tower/conv:Conv2D(x, w, {CONV}) tower/relu:Relu(tower/conv)
    tower/conv_1:Conv2D(x, w, strides=[1,1,1,1], padding=VALID)
    relu:Relu(half, T=float16, _gradient_op_type=Mine) relu6:Relu6(relu, T=float16)
    leaky:LeakyRelu(tower/relu, alpha=0.1) norm:FusedBatchNorm(leaky, w, w, w, w)
    norm_off:FusedBatchNorm(norm, w, w, w, w, is_training=False)
    cast:Cast(norm, SrcT=float32, DstT=int32) done:NoOp(^odd)"""),
    node("stripped", "LeakyRelu", "leaky", T=None),
    called("StatefulPartitionedCall", "call", f="f"),
    node("odd", "ZeroOut", "cast", _class=[b"loc:@w"]),
    functions=[
        function("f", ["a"], net(f"f_relu:Relu(a) f_conv:Conv2D(a, a, {CONV})"), {}),
        function("while_body_1", ["a"], net("relu:Relu(a)"), {}),
    ],
)
ALL = [one.name for body in ATTRS.bodies for one in body]

RELUS = ["block2/relu", "block10/relu", "out"]
CONVS = ["tower/conv", "tower/conv_1", "f_conv"]
NORMS = ["norm", "norm_off"]
TABLES: list[tuple[Graph, Any, list[str]]] = [
    # op
    (ATTRS, {"op": "Relu"}, ["tower/relu", "relu", "f_relu", "relu"]),
    (ATTRS, {"op": "Relu*"}, ["tower/relu", "relu", "relu6", "f_relu", "relu"]),
    (ATTRS, {"op": ["Relu6", "Cast", "NoSuchOp"]}, ["relu6", "cast"]),
    (ATTRS, {"op": "*yRelu"}, ["leaky", "stripped"]),
    # name
    (ATTRS, {"name": "relu"}, ["relu", "relu"]),
    (ATTRS, {"name": "**/relu"}, ["tower/relu", "relu", "relu"]),
    (ATTRS, {"name": ["relu6", "tower/c*", "relu6"]}, ["tower/conv", "tower/conv_1", "relu6"]),
    (ATTRS, {"op": "Relu", "name": "tower/conv"}, []),
    (ATTRS, {"name_regex": r".*relu\d"}, ["relu6"]),
    (ATTRS, {"name_regex": "relu"}, ["relu", "relu"]),
    # attr
    (ATTRS, {"attr": {"strides": [1, 2, 2, 1]}}, ["tower/conv", "f_conv"]),
    (ATTRS, {"attr": {"padding": {"in": ["SAME", "VALID"]}}}, CONVS),
    (ATTRS, {"attr": {"padding": "SAME", "strides": {"in": [[1, 1, 1, 1]]}}}, []),
    (ATTRS, {"attr": {"T": "float16"}}, ["relu", "relu6"]),
    (ATTRS, {"attr": {"shape": [-1, 4]}}, ["x"]),
    (ATTRS, {"attr": {"alpha": 0.1}}, ["leaky"]),
    (ATTRS, {"attr": {"f": "f"}}, ["call"]),
    (ATTRS, {"attr": {"_class": ["loc:@w"]}}, ["odd"]),
    (ATTRS, {"attr": {"_gradient_op_type": "Mine"}}, ["relu"]),
    (ATTRS, {"attr": {"_gradient_op_type": False}, "op": "Relu", "body": "main"}, ["tower/relu"]),
    (ATTRS, {"attr": {"value": True}}, ["w"]),
    # what TensorFlow takes for an attr that the NodeDef leaves out
    (ATTRS, {"attr": {"alpha": 0.2}}, ["stripped"]),
    (ATTRS, {"op": "LeakyRelu", "attr": {"T": "float32"}}, ["leaky", "stripped"]),
    (ATTRS, {"op": "FusedBatchNorm", "attr": {"epsilon": {"in": [1, 0.0001]}}}, NORMS),
    (ATTRS, {"attr": {"is_training": True}}, ["norm"]),
    (ATTRS, {"attr": {"is_training": False}, "op": "Fused*"}, ["norm_off"]),
    (ATTRS, {"attr": {"is_training": {"in": [True]}}}, ["norm"]),
    (ATTRS, {"attr": {"use_cudnn_on_gpu": False}, "op": "Conv2D"}, ["tower/conv", "f_conv"]),
    (NET, {"attr": {"alpha": {">": 0.2}}}, ["leaky"]),
    (NET, {"attr": {"alpha": {">": 0.2, "<": 0.25}}}, []),
    (NET, {"attr": {"alpha": {"in": [0.3], "<": 1}}}, ["leaky"]),
    (NET, {"attr": {"strides": {">=": 1}}}, ["pool"]),
    (NET, {"attr": {"strides": {">": 1}}}, []),  # of a list it is asked of all
    (NET, {"op": "Relu", "attr": {"T": {"!=": 1}}}, []),  # which is no number
    # dtype of output 0
    (ATTRS, {"dtype": ["int32", "float16"]}, ["half", "relu", "relu6", "cast"]),
    (ATTRS, {"dtype": "float32", "op": "Variable*"}, ["v"]),
    (ATTRS, {"dtype": "float32", "op": ["Leaky*", "NoOp", "ZeroOut"]}, ["leaky", "stripped"]),
    # body
    (ATTRS, {"body": "while_*"}, ["relu"]),
    (ATTRS, {"body": ["f", "main"], "op": "Conv2D"}, CONVS),
    # any, all, not
    (ATTRS, {}, ALL),
    (ATTRS, {"any": [{"op": "Cast"}, {"name": "x"}]}, ["x", "cast"]),
    (ATTRS, {"all": [{"op": "Relu"}, {"name": "tower/*"}]}, ["tower/relu"]),
    (ATTRS, {"all": []}, ALL),
    (ATTRS, {"op": "Relu", "not": {"body": "main"}}, ["f_relu", "relu"]),
    (ATTRS, {"not": {}}, []),
    (ATTRS, {"any": [{"all": [{"op": "Relu"}, {"not": {"body": "*"}}]}, {"name": "v"}]}, ["v"]),
    # shape
    (NET, {"shape": [None, 8, 8, 3]},
     ["image", *RELUS[:2], "block2/bias", "block2/mul"]),
    (NET, {"shape": [-1, 8, 8, 3], "op": "Relu"}, RELUS[:2]),
    (NET, {"shape": [2, 8, 8, 3]}, []),
    (NET, {"shape": [None, {">": 3}, {"<=": 4}, None]}, ["out", "pool"]),
    (NET, {"shape": [3]}, ["w", "b/Identity", "read"]),
    (NET, {"shape": []}, ["half", "minus", "two", "v"]),
    (NET, {"shape": {"rank": 4}, "op": "Relu"}, RELUS),
    (NET, {"shape": {"rank": {"<": 2}}, "op": "Const"}, ["w", "half", "minus", "two"]),
    (NET, {"shape": {"elements": 3}}, ["w", "b/Identity", "read"]),
    (NET, {"shape": {"elements": {"<": 2}, "rank": 0}, "dtype": "int32"}, ["two"]),
    (NET, {"shape": {"sizes": [3], "rank": 2}}, []),
    (NET, {"shape": {"rank": {">=": 0}}, "op": "Softmax"}, []),  # not known
    # class
    (NET, {"class": "activation"}, [*RELUS, "leaky"]),
    (NET, {"class": ["pooling", "convolution"]}, ["pool"]),
    (NET, {"class": "has_weights"}, ["block2/bias", "dense"]),
    (NET, {"class": "elementwise", "not": {"class": "activation"}}, ["b/Identity", "block2/mul"]),
    # inside
    (LOOP, {"inside": "loop", "op": ["Relu", "Less", "Tanh"]}, ["rnn/less", "rnn/step"]),
    (LOOP, {"inside": {"loop": "rnn"}, "op": "Relu"}, ["rnn/step"]),
    (LOOP, {"inside": {"loop": "rnn/while*"}, "op": "Relu"}, ["rnn/step"]),
    (LOOP, {"inside": {"loop": "other", "when": True}}, []),
    (LOOP, {"inside": {"loop": "rnn", "branch": "cond"}}, []),
    (LOOP, {"inside": "branch", "op": ["Relu", "Tanh"]}, ["cond/off", "cond/on"]),
    (LOOP, {"inside": {"branch": "cond", "when": True}, "op": ["Relu", "Tanh"]}, ["cond/on"]),
    (LOOP, {"inside": {"when": False}, "op": ["Relu", "Tanh"]}, ["cond/off"]),
    (LOOP, {"not": {"inside": "loop"}, "op": "Relu"}, ["after", "cond/off"]),
    (CALLS, {"inside": "loop"}, ["in_b", "call", "c_relu", "deep_relu"]),
    (CALLS, {"inside": {"loop": "lstm/*"}, "op": "Tanh"}, ["in_b"]),
    (CALLS, {"inside": {"branch": "drop/cond", "when": True}}, ["yes_relu"]),
    (CALLS, {"inside": {"when": False}}, ["no_relu"]),
    # nth
    (NET, {"op": "Relu", "nth": "first"}, ["block2/relu"]),
    (NET, {"op": "Relu", "nth": 1}, ["block10/relu"]),
    (NET, {"op": "Relu", "nth": -1}, ["out"]),
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
    (CALLS, {"op": "Relu", "nth": 0},  # in each body
     ["c_relu", "yes_relu", "no_relu", "deep_relu", "apart_relu"]),
    # value
    (NET, {"value": {">": 0}}, ["w", "half", "two"]),
    (NET, {"value": {">=": 1, "<": 3}}, ["two"]),
    (NET, {"value": {"<": 0}}, ["minus"]),
    (NET, {"value": {"near": 0.4, "tolerance": 0.2, "!=": 0.5}}, []),
]  # fmt: skip


def spelled(graph: Graph, match: Any) -> list[str]:
    return [one.name for one in select(graph, msgspec.convert(match, Match))]


@pytest.mark.parametrize(
    ("graph", "match", "names"), TABLES, ids=[json.dumps(match) for _, match, _ in TABLES]
)
def test_a_match_means_these_ops_and_no_others(graph: Graph, match: Any, names: list[str]) -> None:
    assert spelled(graph, match) == names
    # The indices that `select` uses give what the conditions say.
    if "nth" not in match:
        condition = holds(msgspec.convert(match, Match))
        assert [one.name for body in graph.bodies for one in filter(condition(body), body)] == names


def test_every_key_of_an_op_has_a_table() -> None:
    missing = OP_KEYS.keys() - {key for _, match, _ in TABLES for key in match}
    assert not missing, f"add to TABLES which ops these mean, and which not: {sorted(missing)}"


PAGE = (ROOT / "docs" / "matching.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("<!-- keys -->")[2].partition("<!-- /keys -->")[0]
# The graphs of examples whose ops the trained net has not: no loops and branches, for one.
EXAMPLE_GRAPHS = {"inside": LOOP_DEF}
ROWS = re.findall(r"^\| `(\w+)` \| .* \| `(\{.*\})` \|$", TABLE, re.MULTILINE)


def test_every_key_has_a_condition_and_is_documented() -> None:
    """One without would match everything."""
    assert set(FIELDS) == set(KEYS)
    assert set(ON_EDGES) <= set(KEYS)
    documented = {key for key, _ in ROWS}
    assert documented == {*KEYS, "control"} == schema()["$defs"]["Match"]["properties"].keys()


@pytest.mark.parametrize(("key", "example"), ROWS)
def test_a_documented_example_means_some_ops_and_not_all(key: str, example: str) -> None:
    match = json.loads(example)
    assert key in match
    digits = ROOT / "scripts" / "models" / "digits.pb"
    model = graphpatch.load(EXAMPLE_GRAPHS.get(key, digits))
    count = len(graphpatch.select(model, **match))
    assert 0 < count < model.node_count, (
        f"the example of docs/matching.md means {count} of {model.node_count} ops of {model.path}; "
        f"where that has no op for it, add a graph that has to EXAMPLE_GRAPHS"
    )


def test_the_order_of_the_file_does_not_tell_which_is_last() -> None:
    nodes = net("b:Relu(a) a:Relu(x) c:Relu(x) x:Placeholder")
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
    nodes = net("x:Placeholder s:Sigmoid(x) m:Mul(x, s) b:Relu(m) t:Tanh(b)")
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
    near = "; nearest: typo" if name == "tpyo" else ""
    with pytest.raises(MatchError, match=f"called '{name}'{near}; before it: 'typo'$"):
        graphpatch.apply(rules, graphdef(*net("x:Placeholder a:Relu(x) b:Tanh(a)")))


REFUSED: list[tuple[Any, str]] = [
    ({"class": "activations"}, "there is no class 'activations'; nearest: act"),
    ({"class": "x"}, "legal: activation, convolution, elementwise, has_weights"),
    ({"nth": "second"}, 'expected a number, "first", "last", a list of num'),
    ({"nth": {"at": 0, "by": "size"}}, "not a legal value: 'size'; legal: \"gra"),
    ({"attr": {"T": {}}}, "attr[...]: it is empty: give one of >, <, >="),
    ({"value": {">": "a"}}, "value.>: expected a number, found a string"),
    ({"value": {"tolerance": 1}}, "value: give near, or one of >, <, >="),
    ({"value": {"near": 1, "tolerance": -1}}, "value.tolerance: expected a number >= 0.0"),
    ({"value": {"neer": 1}}, "unknown key 'neer'; nearest: near"),
    ({"value": [[1], [1, 2]]}, "the lists in [[1], [1, 2]] are of unequal length"),
    ({"value": [1, [2]]}, "are of unequal length"),
    ({"value": 10**400}, "is larger than any number that a tensor holds"),
    ({"value": {"near": [1, -(10**400)]}}, "is larger than any number that a tensor holds"),
    ({"value": [1, None]}, "expected a number, a text or a list of these, found None"),
    ({"inside": "function"}, "not a legal value: 'function'; legal: \"loop"),
    ({"inside": {"frame": "x"}}, "inside: unknown key 'frame'; "),
    ({"shape": {"rnak": 1}}, "shape: unknown key 'rnak'; nearest: rank"),
    ({"shape": [1.5]}, "shape[0]: expected a whole number or an object, found a number"),
    ({"between": {"from": "a", "to": "b", "whithin": {}}}, "unknown key 'whithin'; nearest: wit"),
    ({"any": [{"dtype": "x"}]}, "dtype: 'x' is not a dtype of TensorFlow; legal: float32, flo"),
    ({"inputs": {"alll": {}}}, "inputs: 'alll' does not say which; nearest: all"),
    ({"inputs": {"-1": {}}}, "inputs: '-1' does not say which; legal: 0, 1, ..., any, all, none"),
    ({"consumers": {"0.5": {}}}, "consumers: '0.5' does not say which; legal: 0, 1, ..., any"),
    ({"consumers": {"²": {}}}, "consumers: '²' does not say which"),
    ({"inputs": {"0": {"name_regex": "("}}}, "name_regex '(' is not a regular expression"),
    ({"op": "Relu", "control": True}, "control goes with inputs, consumers, between, upstream_of"),
]


@pytest.mark.parametrize(("match", "message"), REFUSED, ids=lambda one: str(one)[:40])
def test_what_means_nothing_is_refused(match: Any, message: str) -> None:
    with pytest.raises(RulesError) as raised:
        rules_from([{"match": match, "patch": {"stop_gradient": True}}])
    assert message in str(raised.value)


EMPTY: dict[str, dict[str, Any]] = {
    **{key: {key: {}} for key in ("attr", "inputs", "consumers", "inside")},
    **{key: {key: []} for key in ("op", "upstream_of", "any", "class", "nth", "taken")},
    "nth.at": {"nth": {"at": []}},
    "inside.loop": {"inside": {"loop": []}},
    "attr.T.in": {"attr": {"T": {"in": []}}},
    "between.from": {"between": {"from": [], "to": "b"}},
    "between.to": {"between": {"from": "b", "to": []}},
    "upstream_of.of": {"upstream_of": {"of": []}},
}


@pytest.mark.parametrize("where", EMPTY)
def test_what_is_empty_is_refused(where: str) -> None:
    with pytest.raises(RulesError, match=f"{where}: .* is empty, so it says nothing; leave"):
        rules_from([{"match": EMPTY[where], "patch": {"stop_gradient": True}}])


# Two are meant but for their shape: of one nothing is known, of one the last size is not.
SIZES = [
    ({"op": "Relu", "shape": [2, 8]},
     "rule 'r' leaves out ops whose shape is not known well enough: "
     "Relu 'relu_y' has shape [2, ?] (and 1 more)"),
    ({"op": "Relu", "shape": [2, -1]}, "Relu 'relu_odd' has shape not known"),
    ({"op": "Relu", "shape": {"rank": 2, "sizes": [2, -1]}}, "'relu_odd' has shape not known"),
    ({"name": ["relu_x", "relu_z"], "shape": {"elements": 16}}, "Relu 'relu_z' has shape [3, ?]"),
    ({"name": ["relu_x", "relu_z"], "shape": [2, 8]}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("match", "note"), SIZES)
def test_ops_of_unknown_shape_are_named(match: Any, note: str) -> None:
    message = graphdef(
        *net("""x:Placeholder(shape=[2,8]) y:Placeholder(shape=[2,-1]) z:Placeholder(shape=[3,-1])
        relu_x:Relu(x) relu_y:Relu(y) relu_z:Relu(z) odd:Dilation2D(x, x) relu_odd:Relu(odd)"""),
        producer=1286,
    )
    rule = {"name": "r", "match": match, "patch": {"stop_gradient": True}}
    notes = [text for text in graphpatch.apply([rule], message).report["notes"] if "shape" in text]
    assert len(notes) == bool(note)
    assert all(text.endswith(note) for text in notes)
