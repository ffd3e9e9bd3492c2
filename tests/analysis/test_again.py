"""A patched model beside what its rules make of the original: whatever differs is a fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.graph.attrs import OVERRIDE as KEY
from graphpatch.graph.provenance import PROVENANCE_ATTR
from graphpatch.protos import GraphDef
from tests import graphs
from tests.graphs import node
from tests.test_shown import ran

RULES: list[Any] = [
    {"name": "guided", "match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}},
    {"name": "clip", "match": {"name": "h"}, "patch": {"filter_gradient": {"reverse": {}}}},
    {"name": "through", "match": {"op": "Round"}, "patch": {"surrogate_gradient": "tanh(x)"}},
    {"name": "stop", "match": {"name": "b"}, "patch": {"stop_gradient": True, "at": "inputs"}},
]
SAME = "applied to the original again, give the same bytes"
Edit = Callable[[GraphDef, dict[str, Any]], object]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The original."""
    nodes = [
        node("x", "Placeholder"),
        node("r", "Relu", "x"),
        node("h", "Tanh", "r"),
        node("n", "Round", "h"),
        node("b", "Exp", "n"),
        node("y", "Add", "b", "r"),
    ]
    path = tmp_path / "model.pb"
    path.write_bytes(graphs.graphdef(*nodes).SerializeToString())
    return path


def patched(path: Path, rules: list[Any], edit: Edit | None = None, name: str = "patched") -> Path:
    target = path.with_name(f"{name}.pb")
    graphpatch.apply(rules, graphpatch.load(path)).model.save(target)
    if edit is not None:
        message = GraphDef.FromString(target.read_bytes())
        edit(message, {one.name: one for one in message.node})
        target.write_bytes(message.SerializeToString())
    return target


def structure(original: Path, target: Path) -> tuple[str, list[str], list[str]]:
    found = graphpatch.verify(original, target, run=False)
    [graph] = found.document()["graphs"]
    return graph["structure"]["says"], found.failures, found.not_compared


@pytest.mark.parametrize("emit", ["auto", "function"])
def test_the_same_rules_give_the_same_bytes(path: Path, emit: str) -> None:
    rules = [rule if "stop" in rule["name"] else {**rule, "emit": emit} for rule in RULES]
    assert structure(path, patched(path, rules)) == (f"sound: 4 rules, {SAME}", [], [])
    assert structure(path, path) == ("sound: it has the same bytes", [], [])


def test_a_loop_that_was_only_converted_is_told(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "scripts" / "models" / "numerals.pb"
    (tmp_path / "none.json").write_text('{"version": 1, "rules": []}')
    assert ran("apply", tmp_path / "none.json", path, "-o", tmp_path / "m.meta")[0] == 0
    says = "sound: the original as a MetaGraphDef has the same ops, in other bytes"
    assert structure(path, tmp_path / "m.meta") == (says, [], [])


def test_rules_one_after_the_other(path: Path) -> None:
    first = patched(path, RULES, name="first")
    again = {**RULES[1], "name": "again", "patch": {"filter_gradient": {"scale": 2}}}
    second = patched(first, [again], name="second")
    assert structure(path, second) == (f"sound: 5 rules, {SAME}", [], [])
    says, failures, _ = structure(first, second)
    assert (says, failures) == (f"sound: 1 rule, {SAME.replace('give', 'gives')}", [])


def test_other_bytes_of_the_same_ops_are_no_fault(path: Path) -> None:
    target = patched(path, RULES, lambda graph, _: graph.node.reverse())
    says, failures, _ = structure(path, target)
    assert (says.endswith("the same ops, in other bytes"), failures) == (True, [])
    graphpatch.load(patched(path, RULES)).save(path.with_name("patched.pbtxt"))
    assert structure(path, path.with_name("patched.pbtxt"))[1] == []


def negated(graph: GraphDef, nodes: dict[str, Any]) -> None:
    """The gradient function of the guard gives -dy instead of dy."""
    name = f"{nodes['r/guard'].op}_gradient"
    [function] = [one for one in graph.library.function if one.signature.name == name]
    [key] = function.ret
    flip = function.node_def.add(name="flip", op="Neg", input=[function.ret[key]])
    flip.attr["T"].type = 1
    function.ret[key] = "flip:y:0"


def made_elu(_: Any, nodes: dict[str, Any]) -> None:
    nodes["r/forward"].op = "Elu"


def swapped_inputs(_: Any, nodes: dict[str, Any]) -> None:
    nodes["n"].input[1], nodes["n"].input[2] = nodes["n"].input[2], nodes["n"].input[1]


def forged(_: Any, nodes: dict[str, Any]) -> None:
    """The record tells that the op was another one, so that `revert` gives that."""
    record = nodes["r/forward"].attr[PROVENANCE_ATTR].list
    record.s[1] = record.s[1].replace(b"Relu", b"Selu")


EDITS: dict[str, tuple[Edit, str]] = {
    "a negated guard": (negated, "backward"),
    "key": (lambda _, nodes: setattr(nodes["b"].attr[KEY], "s", b"Tanh"), "backward"),
    "producer": (lambda graph, _: setattr(graph.versions, "producer", 21), ""),
    "condition": (lambda _, nodes: setattr(nodes["n/true"], "op", "ZerosLike"), "backward"),
    "branch": (swapped_inputs, "backward"),
    "op type": (made_elu, "forward"),
    "input": (lambda _, nodes: nodes["y"].input.__setitem__(1, "x"), "forward"),
    "attr": (lambda _, nodes: setattr(nodes["b"].attr["Nobody"], "i", 3), "forward"),
    "function": (lambda g, _: g.library.function.add(signature={"name": "more"}), "backward"),
    "an op more": (lambda graph, _: graph.node.add(name="more", op="NoOp"), "forward"),
    "an op less": (lambda graph, nodes: graph.node.remove(nodes["y"]), "forward"),
    "record": (forged, "record"),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_no_rule_does_is_a_fault(path: Path, name: str) -> None:
    edit, kind = EDITS[name]
    found = graphpatch.verify(path, patched(path, RULES, edit), run=False)
    assert found.verdict == "differs"
    [graph] = found.document()["graphs"]
    assert [one["kind"] for one in graph["structure"]["faults"]][:1] == ([kind] if kind else [])


def test_what_flows_back_comes_first(path: Path) -> None:
    def edit(graph: GraphDef, nodes: dict[str, Any]) -> None:
        nodes["y"].input[1] = "x"
        nodes["b"].attr[KEY].s = b"Tanh"

    failures = structure(path, patched(path, RULES, edit))[1]
    assert failures == [
        "Exp 'b' differs: attr _gradient_op_type: (none) -> \"Tanh\"",
        "Add 'y' differs: input 1: r -> x",
    ]


def test_another_original_is_told(path: Path) -> None:
    target = patched(path, RULES)
    other = path.with_name("other.pb")
    nodes = [node("x", "Placeholder"), node("y", "Exp", "x")]
    other.write_bytes(graphs.graphdef(*nodes).SerializeToString())
    [failure] = structure(other, target)[1]
    assert failure.startswith("the rules that it carries cannot be applied to the original: ")
    assert failure.endswith(f"; is {other} the original of {target}?")
    assert "\n" not in failure
    renamed = node("q", "Relu", "x"), node("h", "Tanh", "q"), node("n", "Round", "h")
    nodes = [node("x", "Placeholder"), *renamed, node("b", "Exp", "n")]
    other.write_bytes(graphs.graphdef(*nodes).SerializeToString())
    first, *_ = structure(other, target)[1]
    assert first.startswith(f"{other} has ")
    assert first.endswith(f": is it the original of {target}?")


def test_what_cannot_be_made_again_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version wrote other bytes: what no rule touched is compared, the rest is run."""
    target, written = patched(path, RULES), graphpatch.__version__
    other = patched(path, RULES, made_elu, "other")
    touched = patched(path, RULES, lambda _, n: setattr(n["n/true"], "op", "ZerosLike"), "touched")
    monkeypatch.setattr(graphpatch, "__version__", "9.9")
    says = "sound: 4 rules, applied to the original again, give the same ops, in other bytes"
    assert structure(path, target) == (says, [], [])
    why = f"graphpatch {written} patched it, and this is 9.9, which writes other ops"
    gap = f"structure: {why}, and nothing was run"
    assert structure(path, touched) == (why, [], [gap])
    assert structure(path, other)[0] == why


def test_gradients_that_an_optimiser_took_out_are_named(path: Path) -> None:
    def inline(_: Any, nodes: dict[str, Any]) -> None:
        """What Grappler leaves of a call and of a StopGradient."""
        nodes["r"].op, nodes["r"].input[:] = "Identity", ["r/forward"]
        nodes["r"].attr.pop("_gradient_op_type")
        nodes["r"].attr.pop(PROVENANCE_ATTR)

    whole = patched(path, RULES, name="whole")
    less = patched(path, RULES, inline, name="less")
    says = "the gradients of rule 'guided' are gone at 1 of 1 ops (r): patch last, after optimisers"
    assert says in structure(whole, less)[1]
    assert says in structure(path, less)[1]


def test_swapped_arguments_are_told_before_anything_runs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphpatch.runtime.verify import compare

    target = patched(path, RULES)
    monkeypatch.delattr(compare, "run_graph")
    assert graphpatch.verify(target, path).failures == [
        f"the arguments look swapped: {path} is {target} without its rules, and the original comes "
        f"first: graphpatch verify {path} {target}"
    ]


def test_a_function_may_be_called_as_the_main_graph_is(tmp_path: Path) -> None:
    inner = graphs.function("main", ["x"], [node("n", "LeakyRelu", "x")], {"y": "n:activations:0"})
    before, after = tmp_path / "before.pb", tmp_path / "after.pb"
    for path, alpha in ((before, 0.25), (after, 0.5)):
        nodes = [node("x", "Placeholder"), node("n", "LeakyRelu", "x", alpha=alpha)]
        path.write_bytes(graphs.graphdef(*nodes, functions=[inner]).SerializeToString())
    [fault] = structure(before, after)[1]
    assert fault == "LeakyRelu 'n' differs: attr alpha: 0.25 -> 0.5"
