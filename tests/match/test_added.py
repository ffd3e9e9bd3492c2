"""What an earlier rule added is not the model's: rules by op type leave it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import graphpatch
from graphpatch.errors import MatchError
from graphpatch.graph.node import Node
from graphpatch.match.misses import explain
from graphpatch.match.select import of_the_model, select
from graphpatch.match.spec import Match
from graphpatch.protos import NodeDef
from tests.graphs import graphdef
from tests.patches.one_op import net

NODES = net("""x:Placeholder z:Placeholder s:Sigmoid(x) m:Mul(x, s) b:Relu(m)
    parts:Split(x, b, num_split=2) n:AddN(parts, parts:1, N=2) noisy:AddV2(n, z) t:Tanh(noisy)
    own:StopGradient(t)""")

CASES: dict[str, dict[str, Any]] = {
    "stop": {"match": {"name": "b"}, "patch": {"stop_gradient": True}},
    "filter": {"match": {"name": "b"}, "patch": {"filter_gradient": {"scale": 2}}},
    "filter, not linear": {"match": {"name": "b"}, "patch": {"filter_gradient": "sign"}},
    "filter at inputs": {
        "match": {"name": "b"}, "patch": {"filter_gradient": {"scale": 2}, "at": "inputs"}},
    "filter at an output": {
        "match": {"name": "parts"}, "patch": {"filter_gradient": {"scale": 2}, "at": "output:1"}},
    "override": {"match": {"name": "b"}, "patch": {"override_gradient": {"formula": "dy * x"}}},
    "override by a function": {
        "match": {"name": "b"}, "patch": {"override_gradient": "guided_relu"}},
    "surrogate": {"match": {"name": "b"}, "patch": {"surrogate_gradient": "tanh(4 * x)"}},
    "straight through": {"match": {"name": "m"}, "patch": {"straight_through": {"input": 0}}},
    "backward as": {"match": {"name": "noisy"}, "patch": {"backward_as": {"input": 0}}},
    "a match as one op": {
        "match": {"pattern": "x:_ -> Sigmoid -> m:Mul; x -> m"},
        "patch": {"override_gradient": {"formula": "dy * x"}, "on": "match"}},
}  # fmt: skip


def spelled(model: Any, **match: Any) -> list[str]:
    return [one.name for one in select(model.graphs[0], msgspec.convert(match, Match))]


@pytest.mark.parametrize("rule", CASES.values(), ids=CASES)
@pytest.mark.parametrize("again", [False, True], ids=["in one file", "in a second apply"])
def test_no_rule_by_op_type_finds_what_another_added(
    rule: Any, again: bool, tmp_path: Path
) -> None:
    """Of each op type, just those ops of the model that had it before."""
    before = graphdef(*NODES)
    model = graphpatch.apply([rule], before).model
    if again:
        path = tmp_path / "patched.pb"
        model.save(path)
        model = graphpatch.load(path)
    added = 0
    for op in {one.op for one in model.graph_def().node}:
        was = {one.name for one in before.node if one.op == op}
        found = spelled(model, op=op)
        assert {name.removesuffix("/forward").removesuffix("/clean") for name in found} <= was
        assert {name for name in was if name in found or f"{name}/forward" in found} == was
        assert set(spelled(model, pattern=f"a:{op}")) == set(found)
        added += len(spelled(model, op=op, taken=True)) - len({*found} - was)
    assert added, "the rule added nothing"


@pytest.mark.parametrize(
    ("match", "names"),
    [
        ({"op": "Select", "name": "b*"}, []),
        ({"op": "Select", "name": "b"}, ["b"]),
        ({"op": "Select", "taken": True}, ["b"]),
        ({"op": "Mul", "name": "b/backward/Mul"}, ["b/backward/Mul"]),
        ({"op": "Mul", "name": "**"}, ["m"]),
        ({"op": ["Mul", "Sel*"], "taken": "first"}, ["b/backward/Mul", "b"]),
        ({"class": "elementwise", "name": "b**"}, ["b/forward"]),  # says that it is shadowed
        ({"any": [{"op": "Mul"}, {"name": "b/true"}]}, ["m", "b/true"]),
        ({"all": [{"op": "Mul"}, {"taken": True}]}, []),
        ({"all": [{"op": "Mul", "taken": True}]}, ["b/backward/Mul"]),
        ({"op": "Mul", "nth": "last", "taken": True}, ["b/backward/Mul"]),
        ({"pattern": "* -> a:Mul"}, ["m"]),
        ({"pattern": "* -> a:*", "upstream_of": "b"}, ["s", "m", "b/forward"]),
        ({"pattern": "* -> Split"}, ["parts"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_match_means_after_a_rule(match: Any, names: list[str]) -> None:
    model = graphpatch.apply([{**CASES["filter"], "name": "first"}], graphdef(*NODES)).model
    assert sorted(spelled(model, **match)) == sorted(names)


def test_clones_are_the_models() -> None:
    """The gradient flows through them, and not through the ops that they are clones of."""
    rules = [
        {"match": {"name": "noisy"}, "patch": {"backward_as": {"input": 0}}},
        {"match": {"op": "Tanh", "not": {"name": "t/forward"}}, "patch": {"stop_gradient": True}},
    ]
    [_, report] = graphpatch.apply(rules, graphdef(*NODES)).report["rules"]
    assert [one["op"] for one in report["matches"]] == ["t/clean"]


def test_a_rule_that_means_nothing_else_is_told_of_them() -> None:
    rules = [
        {"name": "first", "match": {"op": "Relu"}, "patch": {"filter_gradient": {"scale": 2}}},
        {"match": {"op": "Select"}, "patch": {"stop_gradient": True}},
    ]
    with pytest.raises(MatchError) as raised:
        graphpatch.apply(rules, graphdef(*NODES))
    said = "left out, as rules added them: Select 'b' (rule 'first'); to mean them, write their n"
    assert said in str(raised.value)


def test_explain_counts_the_keys_of_the_match_alone() -> None:
    model = graphpatch.apply([CASES["filter"]], graphdef(*NODES)).model
    lines = explain(model.graphs, msgspec.convert({"op": "OnesLike", "dtype": "int32"}, Match))
    assert "added: " not in lines
    assert "near:" not in lines, "what a rule added is not near"


MATCHES: list[dict[str, Any]] = [
    {"name": "b"},
    {"name": "*"},
    {"op": "Mul", "nth": "last"},
    {"inputs": {"any": {"name": "b"}}},
    {"pattern": "m:Mul -> r:Relu -> Split"},
    {"name_regex": "[bmt]|parts"},
    {"class": "elementwise", "not": {"op": "Mul"}},
    {"dtype": "float32"},
    {"op": "Tanh", "inputs": {"0": {"op": "AddV2"}}},
    {"inputs": {"any": {"op": "Relu"}}},
    {"inputs": {"none": {"class": "activation"}}},
    {"consumers": {"any": {"op": "Split"}}},
    {"upstream_of": "own"},
    {"upstream_of": {"of": "own", "stop_at": {"class": "activation"}}},
    {"downstream_of": "x", "op": ["Relu", "Mul"]},
    {"between": {"from": ["b"], "to": ["t"]}},
    {"pattern": "Relu -> Split"},
    {"pattern": "a:Sigmoid -> m:Mul -> r:Relu; x:_ -> a; x -> m"},
    {"pattern": "AddN -> AddV2 -> Tanh -> StopGradient"},
    {"nth": 2, "class": "elementwise"},
    {"shape": {"rank": 2}},
]


@pytest.mark.parametrize("rule", [one for key, one in CASES.items() if key != "backward as"])
@pytest.mark.parametrize("match", MATCHES, ids=str)
def test_a_match_means_the_ops_that_it_means_without_the_rule(match: Any, rule: Any) -> None:
    before = graphpatch.load(graphdef(*NODES))
    after = graphpatch.apply([rule], before).model
    index = before.graphs[0].main.by_name
    now = after.graphs[0].main.by_name
    assert [now[name] for name in spelled(after, **match)] == [
        index[name] for name in spelled(before, **match)
    ]


def test_an_added_op_that_stands_first_is_told_apart() -> None:
    """Its index is 0: a graph whose marked nodes are [0] was taken for one without any."""
    patched = graphpatch.apply([CASES["filter at inputs"]], graphdef(*NODES)).model.graph_def()
    (added,) = (op for op in patched.node if op.name == "b/filter_0/forward")
    first = NodeDef.FromString(added.SerializeToString())  # of our classes, not of TensorFlow's
    body = graphpatch.load(graphdef(first, *NODES)).graphs[0].main
    is_of_the_model = of_the_model(Match(op="Identity"))
    assert is_of_the_model is not None
    assert not is_of_the_model.holds(Node(body, 0))
