"""A patched graph beside its original, without running it: what no rule tells of is a fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.compat.proto.graph_pb2 import GraphDef

import graphpatch
from graphpatch.graph.provenance import PROVENANCE_ATTR
from tests import graphs
from tests.graphs import node

RULES: list[Any] = [
    {"name": "guided", "match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}},
    {"name": "clip", "match": {"name": "h"}, "patch": {"filter_gradient": {"reverse": {}}}},
    {"name": "through", "match": {"op": "Round"}, "patch": {"surrogate_gradient": "tanh(x)"}},
    {"name": "stop", "match": {"name": "b"}, "patch": {"stop_gradient": True, "at": "inputs"}},
]
Edit = Callable[[GraphDef, dict[str, Any]], None]


def original(folder: Path) -> Path:
    nodes = [
        node("x", "Placeholder"),
        node("r", "Relu", "x"),
        node("h", "Tanh", "r"),
        node("n", "Round", "h"),
        node("b", "Exp", "n"),
        node("y", "Add", "b", "r"),
    ]
    path = folder / "model.pb"
    path.write_bytes(graphs.graphdef(*nodes).SerializeToString())
    return path


def patched_and_edited(
    path: Path, rules: list[Any], edit: Edit | None = None, name: str = "patched"
) -> Path:
    target = path.with_name(f"{name}.pb")
    graphpatch.apply(rules, graphpatch.load(path)).model.save(target)
    if edit is not None:
        message = GraphDef.FromString(target.read_bytes())
        edit(message, {one.name: one for one in message.node})
        target.write_bytes(message.SerializeToString())
    return target


def failures(one: Path, other: Path) -> list[str]:
    found = graphpatch.verify(one, other, run=False)
    assert found.verdict == ("differs" if found.failures else "same structure")
    return found.failures


@pytest.mark.parametrize("emit", ["auto", "function"])
def test_what_rules_do_is_seen_through(tmp_path: Path, emit: str) -> None:
    path = original(tmp_path)
    rules = [rule if "stop" in rule["name"] else {**rule, "emit": emit} for rule in RULES]
    assert failures(path, patched_and_edited(path, rules)) == []


def noise_free(folder: Path) -> Path:
    """Round and Exp in a called function: the rule puts the Exp into a function of its own."""
    body = [node("n", "Round", "a"), node("e", "Exp", "n:y:0")]
    call = node("c", "PartitionedCall", "x", Tin=["float32"], Tout=["float32"])
    call.attr["f"].func.name = "body"
    function = graphs.function("body", ["a"], body, {"b": "e:y:0"})
    path = folder / "called.pb"
    message = graphs.graphdef(
        node("x", "Placeholder"), call, node("y", "Tanh", "c"), functions=[function]
    )
    path.write_bytes(message.SerializeToString())
    return path


def sine(graph: GraphDef, nodes: dict[str, Any]) -> None:
    """Another op in the function that has the Exp."""
    for function in graph.library.function:
        for one in function.node_def:
            one.op = one.op.replace("Exp", "Sin") if one.name == "op" else one.op


def test_a_clone_of_an_op_in_a_function_of_its_own(tmp_path: Path) -> None:
    rule = {"name": "clean", "match": {"op": "Round"}, "patch": {"backward_as": {"input": 0}}}
    path = noise_free(tmp_path)
    assert failures(path, patched_and_edited(path, [rule])) == []
    told = failures(path, patched_and_edited(path, [rule], sine, "other"))
    assert any("is not like" in one for one in told)


def test_rules_one_after_the_other_are_seen_through(tmp_path: Path) -> None:
    path = original(tmp_path)
    first = patched_and_edited(path, RULES, name="first")
    again = [{**RULES[1], "name": "again", "patch": {"filter_gradient": {"scale": 2}}}]
    second = patched_and_edited(first, again, name="second")
    assert failures(path, second) == []
    assert failures(first, second) == []


def elu(graph: GraphDef, nodes: dict[str, Any]) -> None:
    nodes["r/forward"].op = "Elu"


def another_input(graph: GraphDef, nodes: dict[str, Any]) -> None:
    nodes["y"].input[1] = "x"


def attr(graph: GraphDef, nodes: dict[str, Any]) -> None:
    nodes["b"].attr["Nobody"].i = 3


def key(graph: GraphDef, nodes: dict[str, Any]) -> None:
    nodes["b"].attr["_gradient_op_type"].s = b"Tanh"


def added(graph: GraphDef, nodes: dict[str, Any]) -> None:
    graph.node.add(name="more", op="Identity", input=["x"]).attr["T"].type = 1


def false(graph: GraphDef, nodes: dict[str, Any]) -> None:
    nodes["n/true"].op = "ZerosLike"


def other_branch(graph: GraphDef, nodes: dict[str, Any]) -> None:
    nodes["n"].input[1], nodes["n"].input[2] = nodes["n"].input[2], nodes["n"].input[1]


ELSE = "computes something else than in the original"
BY_HAND: dict[str, tuple[Edit, str]] = {
    "op type": (elu, "Relu 'r' computes something else than in the original: op type: Relu -> Elu"),
    "input": (
        another_input,
        "Add 'y' computes something else than in the original: input 1: r -> x",
    ),
    "attr": (
        attr,
        "Exp 'b' computes something else than in the original: attr Nobody: (none) -> 3",
    ),
    "key": (key, "Exp 'b': attr _gradient_op_type: (none) -> \"Tanh\", and no rule tells of it"),
    "node": (added, "Identity 'more': it is not in the original, and no rule tells of it"),
    "condition": (false, f"Round 'n' {ELSE}"),
    "branch": (other_branch, f"Round 'n' {ELSE}"),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_what_no_rule_tells_of_is_a_fault(tmp_path: Path, name: str) -> None:
    path = original(tmp_path)
    edit, says = BY_HAND[name]
    found = failures(path, patched_and_edited(path, RULES, edit))
    assert any(one.startswith(says) for one in found), found


def test_forged_provenance_hides_nothing(tmp_path: Path) -> None:
    """The node tells that it was the Relu of the original, so that `revert` gives that."""
    path = original(tmp_path)
    relu = node("r", "Relu", "x")
    relu.attr[PROVENANCE_ATTR].list.SetInParent()
    was = relu.SerializeToString().hex()
    told = f'{{"rule":"a","id":"b","did":"enclosed","was":"Relu","node":"{was}"}}'

    def forge(graph: GraphDef, nodes: dict[str, Any]) -> None:
        nodes["r"].op = "Elu"
        nodes["r"].attr[PROVENANCE_ATTR].list.s.append(told.encode())

    forged = patched_and_edited(
        path, [{**RULES[0], "expect": {"min": 0}, "match": {"op": "No"}}], forge
    )
    found = failures(path, forged)
    says = "computes something else than in the original: op type: Relu -> Elu"
    assert any(failure.endswith(says) for failure in found), found


def test_gradients_that_an_optimiser_took_out_are_named(tmp_path: Path) -> None:
    path = original(tmp_path)

    def inline(graph: GraphDef, nodes: dict[str, Any]) -> None:
        """What Grappler leaves of a call and of a StopGradient."""
        nodes["r"].op, nodes["r"].input[:] = "Identity", ["r/forward"]
        nodes["r"].attr.pop("_gradient_op_type")
        nodes["r"].attr.pop(PROVENANCE_ATTR)

    whole = patched_and_edited(path, RULES, name="whole")
    less = patched_and_edited(path, RULES, inline, name="less")
    says = "the gradients of rule 'guided' are gone at 1 of 1 ops (r): patch last, after optimisers"
    assert says in failures(whole, less)
    assert says in failures(path, less)


def test_swapped_arguments_are_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphpatch.runtime.verify import verification

    path = original(tmp_path)
    monkeypatch.delattr(verification, "compare")
    found = graphpatch.verify(patched_and_edited(path, RULES), path)
    assert found.failures[0].startswith("the arguments look swapped: ")


def test_swapped_arguments_are_told(tmp_path: Path) -> None:
    path = original(tmp_path)
    target = patched_and_edited(path, RULES)
    found = failures(target, path)
    assert found[0] == (
        f"the arguments look swapped: {path} is {target} without its rules, and the original comes "
        f"first: graphpatch verify {path} {target}"
    )


def test_a_function_may_be_called_as_the_main_graph_is(tmp_path: Path) -> None:
    inner = graphs.function("main", ["x"], [node("n", "LeakyRelu", "x")], {"y": "n:activations:0"})
    before, after = tmp_path / "before.pb", tmp_path / "after.pb"
    for path, alpha in ((before, 0.25), (after, 0.5)):
        nodes = [node("x", "Placeholder"), node("n", "LeakyRelu", "x", alpha=alpha)]
        path.write_bytes(graphs.graphdef(*nodes, functions=[inner]).SerializeToString())
    (fault,) = failures(before, after)
    assert fault.startswith("LeakyRelu 'n' computes something else than in the original")
