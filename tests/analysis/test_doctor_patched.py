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
HALF = {"override_gradient": {"formula": "dy * 0.5"}}
TANH = {"name": "halves", "match": {"op": "Tanh"}, "patch": HALF}
CARRIED, KEYED = {**TANH, "emit": "function"}, {**TANH, "emit": "attr"}
STOP = {"name": "bad", "match": {"op": ["Exp", "Relu"]}, "patch": {"stop_gradient": True}}
ONE_SIDE = {
    "name": "bad",
    "match": {"op": "FloorDiv"},
    "patch": {"override_gradient": {"formula": ["dy", None]}},
}


def patched_and_read(folder: Path, rules: list[Any], *nodes: Any) -> graphpatch.Model:
    """The model with the rules, as it is read from its file."""
    inner = graphs.function("f", ["a"], [node("r", "Relu", "a")], {"b": "r:activations:0"})
    original = graphs.graphdef(node("x", "Placeholder"), const("w"), *nodes, functions=[inner])
    graphpatch.apply(rules, original).save(folder / "patched.pb")
    return graphpatch.load(folder / "patched.pb")


def one(model: graphpatch.Model) -> PairDiagnosis:
    [seen] = survey(model, ["x"], ["y"])
    [found] = seen.diagnoses
    return found


# Rules, ops, what a Session and a tape give, what is found, and what is said.
A, Y = node("a", "Tanh", "x"), node("y", "Tanh", "a")
PATCHED: dict[str, tuple[list[Any], list[Any], str, str, list[str], list[str]]] = {
    "a tape drops what a function carries": (
        [CARRIED], [A, Y], "flows", "error", ["carried"],
        ["rule 'halves' carries its gradient in a function", "register_gradients"],
    ),
    "a key of ours": (
        [KEYED], [node("y", "Tanh", "x")], "error", "error", ["our_key"],
        ["graphpatch.register_gradients(FILE)"],
    ),
    "a Sign that counts as the identity": (
        [SIGN], [node("a", "Sign", "x"), Y], "flows", "flows", [], [],
    ),
    "beside another rule": (
        [SIGN, CARRIED], [node("a", "Sign", "x"), Y], "flows", "error", ["carried"], [],
    ),
    "stop_gradient": (
        [STOP], [node("a", "Exp", "x"), node("y", "Sin", "a")], "none", "none", ["our_rule"],
        ["rule 'bad' stops it here", "graphpatch revert FILE --rule 'bad'"],
    ),
    "null": (
        [ONE_SIDE], [node("a", "FloorDiv", "w", "x"), node("y", "Sin", "a")], "none", "none",
        ["our_rule"], ["rule 'bad' stops it here", "graphpatch revert FILE --rule 'bad'"],
    ),
    "stop_gradient in a function": (
        [STOP], [node("y", "f", "x")], "zero", "error", ["our_rule", "carried"],
        ["rule 'bad' stops it here"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PATCHED)
def test_what_rules_did_is_told(case: str, tmp_path: Path) -> None:
    rules, nodes, verdict, tape, kinds, said = PATCHED[case]
    model = patched_and_read(tmp_path, rules, *nodes)
    found = one(model)
    assert (found.verdict, found.tape) == (verdict, tape)
    assert [finding.kind for finding in found.findings] == kinds
    texts = " ".join(f"{finding.what} {finding.remedy}" for finding in found.findings)
    assert all(text in texts for text in said)
    fixed = fix(model, ["x"], ["y"])
    assert (fixed.rules, len(fixed.left)) == ([], verdict != "flows")


def test_rules_that_stop_gradients_are_not_about_activations(tmp_path: Path) -> None:
    """Whoever freezes a tower has not forgotten its ReLUs; whoever overrides one may have."""
    nodes = (
        node("a", "Relu", "x"),
        node("b", "Elu", "a"),
        node("e", "Exp", "b"),
        node("y", "Identity", "e"),
    )
    half = {"match": {"op": "Relu"}, "patch": HALF}
    stop_relu = {"match": {"op": "Relu"}, "patch": {"stop_gradient": True}}
    for rules, told in (([STOP], False), ([stop_relu], False), ([half], True)):
        model = patched_and_read(tmp_path, rules, *nodes)
        [graph] = graphpatch.diagnose(model, "x", "y").document()["graphs"]
        kinds = {note["kind"] for note in graph["notes"]}
        assert ("activations" in kinds) is told, rules


def test_what_a_tape_alone_drops_is_told_apart(run_cli: Any, tmp_path: Path) -> None:
    """A Session ends at the Round alone; that a tape drops a function is not why it is None."""
    nodes = node("r", "Round", "x"), node("a", "Tanh", "r"), node("y", "Tanh", "a")
    model = patched_and_read(tmp_path, [CARRIED], *nodes)
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


def test_a_session_and_a_tape_number_forms_of_ops_together() -> None:
    """What is known of one form was told of another, and a gradient that flows was zero."""
    [doctor] = doctors(graphpatch.load(graphs.sample()))
    main = doctor.session.graph.main
    assert doctor.session.wiring(main) is doctor.tape.wiring(main)
