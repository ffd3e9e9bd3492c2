"""Rules on a model: order, expectations, the report, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphpatch import Model, Result, apply
from graphpatch.application import counted_types
from graphpatch.errors import MatchError, ModelError, PatchError
from graphpatch.graph import provenance
from graphpatch.rules import rules_from
from tests import graphs
from tests.graphs import graphdef, in_memory
from tests.patches.one_op import net

OVERRIDE = "_gradient_op_type"


def mine_at(op: str, patch: Any = None, **keys: Any) -> dict[str, Any]:
    """A rule on the op of this type or name in the main graph."""
    key = "op" if op[:1].isupper() else "name"
    patch = patch or {"override_gradient": {"registered": "Mine"}}
    return {"match": {key: op, "body": "main"}, "patch": patch, "emit": "attr", **keys}


STOP = {"stop_gradient": True}
ELU = {"override_gradient": "Elu"}


def main_of(result: Result) -> dict[str, tuple[str, list[str]]]:
    """Op type and inputs of each op of the main graph, as written."""
    nodes = graphs.parsed(result.model.graphs[0]).node
    return {one.name: (one.op, list(one.input)) for one in nodes}


def test_a_model_and_rules_are_given_in_any_form(model: Model, model_file: Path) -> None:
    rules, told = [mine_at("Relu"), mine_at("Relu6", STOP)], list[str]()
    results = [apply(rules, one) for one in (model, model_file, str(model_file))]
    results.append(apply(rules_from(rules), model, lambda what, *_: told.append(what)))
    assert set(told) == {"matching"}
    assert len({graphs.joined(result.model.pieces()) for result in results}) == 1
    assert all(result.report == results[0].report for result in results)
    assert graphs.joined(model.pieces()) == model_file.read_bytes()


def test_the_report(model: Model) -> None:
    rules = [
        mine_at("Relu", name="first"),
        mine_at("round", STOP),
        {"match": {"op": "Elu"}, "patch": STOP, "expect": {"min": 0}, "name": "none"},
    ]
    relu, rounding = ({"body": "main", "op": op.lower(), "type": op} for op in ("Relu", "Round"))
    assert apply(rules, model).report == {
        "rules": [
            {"name": "first", "matches": [relu], "emit": "attr"},
            {"name": "rule 2", "matches": [rounding], "emit": "construction"},
            {"name": "none", "matches": [], "emit": ""},
        ],
        "nodes": {"before": 11, "after": 12},
        "consumer": {"session": ["Mine"], "tape": ["Mine"]},
        "notes": [],
    }


def test_a_rule_works_on_what_the_one_before_left(model: Model) -> None:
    found = main_of(apply([mine_at("relu", STOP), mine_at("relu", STOP | {"at": "inputs"})], model))
    assert found["relu/forward/stop_0"] == ("StopGradient", ["Multiply"])
    assert found["relu/forward"] == ("Relu", ["relu/forward/stop_0"])
    assert found["relu"] == ("StopGradient", ["relu/forward"])
    assert found["tower/relu6"] == ("Relu6", ["relu"])


def test_the_order_of_rules_counts(model: Model) -> None:
    stop, override = mine_at("relu", STOP), mine_at("Relu", ELU)
    both = [apply(rules, model) for rules in ([stop, override], [override, stop])]
    assert main_of(both[0]) == main_of(both[1])
    records = [provenance.record(b.model.graphs[0].main.node("relu/forward")) for b in both]
    assert [r and (r.rules, r.shadow, r.keys) for r in records] == [
        ((0, 1), None, (1,)),
        ((0, 1), None, (0,)),
    ]
    twice = apply([mine_at("Relu", STOP), mine_at("relu", STOP, expect=1)], model)
    assert any("rule 'rule 2' means nothing" in note for note in twice.report["notes"])
    twice = apply([stop, stop], model)  # one rule twice in one file is two rules
    assert main_of(twice)["relu"] == ("StopGradient", ["relu/forward_1"])


def test_an_override_is_taken_off(model: Model) -> None:
    off = {"override_gradient": "default"}
    result = apply([mine_at("Relu", off)], apply([mine_at("Relu", ELU)], model))
    assert result.model.graphs[0].main.node("relu").attr(OVERRIDE) is None


def test_an_error_begins_with_the_model_and_the_rule(model: Model) -> None:
    with pytest.raises(PatchError) as raised:
        apply([mine_at("Mul", ELU)], model)
    assert str(raised.value).startswith(f"{model.path}: rule 'rule 1': the gradient of Elu is for")
    twice = graphdef(*net("a:NoOp a:NoOp"))
    with pytest.raises(ModelError, match="in memory: the main graph: 1 names are not unique: 'a'"):
        apply([mine_at("NoOp")], in_memory(twice))
    with pytest.raises(MatchError, match="has an op type 'Rleu6'; nearest: Relu6"):
        apply([{"match": {"op": ["Relu", "Rleu6"]}, "patch": STOP}], model)


def test_a_patch_that_means_nothing_on_some_is_noted() -> None:
    nodes = net("""x:Placeholder cast:Cast(x, SrcT=float32, DstT=int32)
        back:Cast(cast, SrcT=int32, DstT=float32)""")
    result = apply([{"match": {"op": "Cast"}, "patch": STOP}], in_memory(graphdef(*nodes)))
    [note] = result.report["notes"]
    assert note.startswith("rule 'rule 1'")
    assert "Cast 'cast': y is int32, which carries no gradient" in note
    assert main_of(result)["cast"] == ("Cast", ["x"])
    assert main_of(result)["back"] == ("StopGradient", ["back/forward"])


@pytest.mark.parametrize(("scope", "count"), [("block", 1), ("block/**", 0)])
def test_a_not_that_leaves_out_no_op_is_noted(scope: str, count: int) -> None:
    graph = graphdef(*net("x:Placeholder block/relu:Relu(x) relu:Relu(block/relu)"))
    match = {"op": "Relu", "not": {"name": scope}}
    notes = apply([{"name": "r", "match": match, "patch": STOP}], graph).report["notes"]
    note = "rule 'r': `not` leaves out no op: name 'block': 0 of them; 'block/**' matches 1"
    assert notes == [note] * count


def test_what_tensorflow_does_not_know_is_noted_and_edited() -> None:
    message = graphdef(*net("x:Placeholder odd:ZeroOut(x) r:Relu(odd)"))
    result = apply([mine_at("ZeroOut"), mine_at("Relu", STOP)], message)
    assert result.report["notes"] == [
        "TensorFlow does not know op type ZeroOut ('odd'): it needs its library"
    ]
    assert result.model.graphs[0].main.node("odd").attr(OVERRIDE) == graphs.attr("Mine")


@pytest.mark.parametrize("patch", [ELU, STOP, STOP | {"at": "inputs"}], ids=str)
def test_rules_are_not_applied_twice(model: Model, tmp_path: Path, patch: Any) -> None:
    mine = mine_at("Relu", patch, name="mine")
    path = tmp_path / "out.pb"
    apply([mine], model).save(path)
    for again in (mine, mine | {"name": "other name"}, mine | {"expect": 1}):
        with pytest.raises(PatchError, match="has been applied to this model already") as raised:
            apply([mine_at("Relu6"), again], path)
        assert f"rule {again['name']!r}" in str(raised.value)
        assert "apply rules to the original" in str(raised.value)
    assert apply([mine_at("Relu6", patch)], path).ok


def test_a_rule_reaches_every_graph_of_a_saved_model(tmp_path: Path) -> None:
    metas = [graphs.metagraph(graphs.sample(), tag) for tag in ("serve", "train")]
    folder = graphs.saved_model_folder(tmp_path / "saved", *metas)
    result = apply([mine_at("Relu", ELU, expect=2)], folder)
    assert result.report["rules"][0]["matches"] == [
        {"body": "main", "op": "relu", "type": "Relu", "graph": tag} for tag in ("serve", "train")
    ]
    for graph in result.model.graphs:
        assert graph.main.node("relu").attr(OVERRIDE) == graphs.attr("Elu")


# How often a rule must match

EXPECT: list[tuple[str, Any, str]] = [
    ("Identity", 2, ""),
    ("Elu", {"min": 0}, ""),
    ("Identity", 1, "matched 2, expected 1"),
    ("Identity", 0, "matched 2, expected 0"),
    ("Identity", {"min": 3}, "matched 2, expected at least 3"),
    ("Identity", {"max": 1}, "matched 2, expected 1"),
    ("Eluu", {}, "matched nothing, expected at least 1\n  looked at 11 ops"),
]


@pytest.mark.parametrize(("op", "expect", "message"), EXPECT)
def test_a_rule_matches_so_often(model: Model, op: str, expect: Any, message: str) -> None:
    rules = [mine_at("Relu", ELU), mine_at(op, STOP, expect=expect, name="mine")]
    if not message:
        assert len(apply(rules, model).report["rules"]) == 2
        return
    with pytest.raises(MatchError) as raised:
        apply(rules, model)
    assert str(raised.value).startswith(f"{model.path}: rule 'mine': {message}")


@pytest.mark.parametrize(
    ("count", "on", "counted"),
    [
        (3, ["mul", "bias"], "3 matches: 3 BiasAdd, 3 MatMul"),
        (1, ["mul", "bias"], "1 match: 1 BiasAdd, 1 MatMul"),
        (3, "bias", "3 BiasAdd"),  # where each match brings one op, the ops say it all
        (0, "bias", ""),
    ],
)
def test_matches_of_a_pattern_are_counted_apart(count: int, on: Any, counted: str) -> None:
    texts = [f"mul{k}:MatMul(x, x) bias{k}:BiasAdd(mul{k}, x)" for k in range(count)]
    match = {"pattern": "mul:MatMul -> bias:BiasAdd"}
    rule = {"match": match, "patch": {"stop_gradient": True, "on": on}, "expect": {"min": 0}}
    report = apply([rule], graphdef(*net(f"x:Placeholder {' '.join(texts)}"))).report
    assert counted_types(report["rules"][0]["matches"]) == counted
