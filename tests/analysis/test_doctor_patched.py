"""Of a patched model `doctor` tells what the rules did from what stood there before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.doctor.diagnosis import PairDiagnosis, doctors
from graphpatch.analysis.doctor.survey import fix, survey
from tests import graphs
from tests.graphs import const, node

SIGN = {"name": "signs", "match": {"op": "Sign"}, "patch": {"straight_through": True}}
TANH = {
    "name": "halves",
    "match": {"op": "Tanh"},
    "patch": {"override_gradient": {"formula": "dy * 0.5"}},
}
STOP = {"name": "bad", "match": {"op": "Exp"}, "patch": {"stop_gradient": True}}
ONE_SIDE = {
    "name": "bad",
    "match": {"op": "FloorDiv"},
    "patch": {"override_gradient": {"formula": ["dy", None]}},
}


def patched_and_read(folder: Path, rules: list[dict[str, Any]], *nodes: Any) -> graphpatch.Model:
    """The model with the rules, as it is read from its file."""
    path, target = folder / "model.pb", folder / "patched.pb"
    given = [node("x", "Placeholder"), const("w"), *nodes]
    path.write_bytes(graphs.graphdef(*given).SerializeToString())
    graphpatch.apply(rules, graphpatch.load(path)).model.save(target)
    return graphpatch.load(target)


def test_rules_that_stop_gradients_are_not_about_activations(tmp_path: Path) -> None:
    """Whoever freezes a tower has not forgotten its ReLUs; whoever overrides one may have."""
    nodes = (
        node("a", "Relu", "x"),
        node("b", "Elu", "a"),
        node("e", "Exp", "b"),
        node("y", "Identity", "e"),
    )
    half = {"match": {"op": "Relu"}, "patch": {"override_gradient": {"formula": "dy * 0.5"}}}
    stop_relu = {"match": {"op": "Relu"}, "patch": {"stop_gradient": True}}
    for rules, told in (([STOP], False), ([stop_relu], False), ([half], True)):
        model = patched_and_read(tmp_path, rules, *nodes)
        [graph] = graphpatch.diagnose(model, "x", "y").document()["graphs"]
        kinds = {note["kind"] for note in graph["notes"]}
        assert ("activations" in kinds) is told, rules


def one(model: graphpatch.Model) -> PairDiagnosis:
    [seen] = survey(model, ["x"], ["y"])
    [found] = seen.diagnoses
    return found


def test_a_tape_drops_what_a_function_carries(tmp_path: Path) -> None:
    rule = {**TANH, "emit": "function"}
    model = patched_and_read(tmp_path, [rule], node("a", "Tanh", "x"), node("y", "Tanh", "a"))
    found = one(model)
    assert (found.verdict, found.tape) == ("flows", "error")
    [finding] = found.findings
    assert (finding.kind, finding.rules) == ("carried", [])
    assert (finding.op_type, finding.document()["type"]) == ("Tanh", "Tanh")
    assert "rule 'halves' carries its gradient in a function" in finding.what
    assert "register_gradients" in finding.remedy
    assert fix(model, ["x"], ["y"]).rules == []
    assert fix(model, ["x"], ["y"]).left == []


@pytest.mark.parametrize("rules", [[SIGN], [SIGN, TANH]], ids=["alone", "beside another"])
def test_a_sign_that_counts_as_the_identity_blocks_nothing(
    rules: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = one(patched_and_read(tmp_path, rules, node("a", "Sign", "x"), node("y", "Tanh", "a")))
    assert found.verdict == "flows"
    assert "zero" not in [finding.kind for finding in found.findings]


@pytest.mark.parametrize(
    ("rule", "nodes"),
    [
        (STOP, [node("a", "Exp", "x"), node("y", "Sin", "a")]),
        (ONE_SIDE, [node("a", "FloorDiv", "w", "x"), node("y", "Sin", "a")]),
    ],
    ids=["stop_gradient", "null"],
)
def test_what_a_rule_stops_is_said_to_be_its_doing(
    rule: dict[str, Any], nodes: list[Any], tmp_path: Path
) -> None:
    model = patched_and_read(tmp_path, [rule], *nodes)
    found = one(model)
    assert found.verdict == "none"
    assert [finding.kind for finding in found.findings if finding.kind != "carried"] == ["our_rule"]
    finding = next(finding for finding in found.findings if finding.kind == "our_rule")
    assert finding.what == "rule 'bad' stops it here"
    assert "graphpatch revert FILE --rule 'bad'" in finding.remedy
    fixed = fix(model, ["x"], ["y"])
    assert (fixed.rules, len(fixed.left)) == ([], 1)


def test_a_key_of_ours_is_to_be_registered(tmp_path: Path) -> None:
    rule = {**TANH, "emit": "attr"}
    model = patched_and_read(tmp_path, [rule], node("y", "Tanh", "x"))
    [finding] = one(model).findings
    assert finding.kind == "our_key"
    assert "graphpatch.register_gradients(FILE)" in finding.remedy
    assert fix(model, ["x"], ["y"]).rules == []


def test_what_a_tape_alone_drops_is_told_apart(run_cli: Any, tmp_path: Path) -> None:
    """A Session ends at the Round alone; that a tape drops a function is not why it is None."""
    rule = {**TANH, "emit": "function"}
    nodes = node("r", "Round", "x"), node("a", "Tanh", "r"), node("y", "Tanh", "a")
    model = patched_and_read(tmp_path, [rule], *nodes)
    found = one(model)
    assert (found.verdict, found.tape) == ("none", "none")
    told = {finding["kind"]: finding["tape_only"] for finding in found.document()["findings"]}
    assert told == {"step": False, "carried": True}
    assert [finding.kind for finding in found.of_session] == ["step"]
    done = run_cli("doctor", model.path, "--from", "x", "--to", "y")
    lines = [line for line in done.stdout.splitlines() if line.startswith(("  blocked", "  on a"))]
    assert lines[:2] == [
        "  blocked  Round r, input 0",
        "  on a tape: the gradient is None too, and besides:",
    ]
    assert len(lines) == 3


def test_a_rule_that_stops_gradients_in_a_called_function_gives_zeros(tmp_path: Path) -> None:
    inner = graphs.function("f", ["a"], [node("r", "Relu", "a")], {"b": "r:activations:0"})
    call = node("y", "f", "x")
    stop = {"name": "bad", "match": {"op": "Relu"}, "patch": {"stop_gradient": True}}
    path = tmp_path / "patched.pb"
    original = graphs.graphdef(node("x", "Placeholder"), call, functions=[inner])
    graphpatch.apply([stop], original).save(path)
    found = one(graphpatch.load(path))
    assert found.verdict == "zero"
    assert [finding.what for finding in found.of_session] == ["rule 'bad' stops it here"]


def test_a_session_and_a_tape_number_forms_of_ops_together() -> None:
    """What is known of one form was told of another, and a gradient that flows was zero."""
    [doctor] = doctors(graphpatch.load(graphs.sample()))
    main = doctor.session.graph.main
    assert doctor.session.wiring(main) is doctor.tape.wiring(main)
