"""`graphpatch match`: what would be matched, and how near it came where nothing is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphpatch import apply, load, load_rules
from graphpatch.analysis.matches import as_rules_file
from graphpatch.match.ready import READY
from graphpatch.match.select import select
from graphpatch.match.spec import Match
from graphpatch.rules import rules_from
from tests import graphs
from tests.conftest import Run
from tests.examples import DIGITS, GUIDED
from tests.match.ready_tables import FOUND, Net


def test_it_lists_what_apply_lists(run_cli: Run) -> None:
    done = run_cli("match", str(GUIDED), str(DIGITS), "--json")
    found = {rule["name"]: rule["matches"] for rule in done.json["rules"]}
    report = apply(load_rules(GUIDED), DIGITS).report
    assert found == {rule["name"]: rule["matches"] for rule in report["rules"]}


def test_later_rules_see_what_earlier_ones_did(run_cli: Run, rules_file: Any) -> None:
    first = {"match": {"name": "features"}, "patch": {"stop_gradient": True}}
    second = {"op": "StopGradient", "name": "features"}
    rules = rules_file(first, {"match": second, "patch": {"stop_gradient": True}})
    done = run_cli("match", str(rules), str(DIGITS), "--json")
    assert [one["op"] for one in done.json["rules"][1]["matches"]] == ["features"]


def test_typed_types_and_names_hold_together(run_cli: Run) -> None:
    done = run_cli("match", str(DIGITS), "--op", "Relu*", "--name", "block2/**", "--json")
    assert [one["op"] for one in done.json["rules"][0]["matches"]] == ["block2/relu"]


def test_nearest_names_are_those_of_the_first_hundred_rules(run_cli: Run, rules_file: Any) -> None:
    rule = {"match": {"op": "Rleu"}, "patch": {"stop_gradient": True}}
    rules = rules_file(*[rule] * 101)
    first, *_, last = run_cli("match", str(rules), str(DIGITS), "--json").json["rules"]
    assert first["near"][1] == "  op 'Rleu': 0 of them; nearest: Relu, Relu6"
    assert last["near"][1] == "  op 'Rleu': 0 of them"
    end = "  nearest names are listed for the first 100 rules that match nothing"
    assert (last["near"][-1], end in first["near"]) == (end, False)


def test_saved_matches_do_the_same_unchanged(run_cli: Run, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    assert run_cli("match", str(GUIDED), str(DIGITS), "--save", str(saved)).code == 0
    assert len(json.loads(saved.read_text())["rules"]) == 5
    assert_same_patch(load_rules(GUIDED), load_rules(saved), DIGITS)


def assert_same_patch(rules: Any, saved: Any, model: Path) -> None:
    once, again = (apply(each, load(model)).model.graphs for each in (rules, saved))
    assert list(map(graphs.unsigned, once)) == list(map(graphs.unsigned, again))


WHOLE = {"override_gradient": {"formula": ["dy0"]}, "on": "match"}
RUN = {
    "nodes": {
        "a": {"op": "Relu", "name": "relu"},
        "Relu6": {"op": ["Relu6", "Round"], "name": ["tower/relu6", "round"]},
    },
    "edges": [["a", "Relu6", {"repeat": True}]],
}
STOP = {"stop_gradient": True}
SAVED: dict[str, tuple[dict[str, Any], dict[str, Any], list[Any]]] = {
    "in a function too": (
        {"op": "Relu"}, STOP, [{"body": "main", "name": "relu"}, {"body": "f", "name": "relu"}],
    ),
    "an op on which it means nothing": (
        {"name": ["x", "relu"], "body": "main"}, {"override_gradient": "guided_relu"},
        [{"body": "main", "name": ["relu", "x"]}],
    ),
    "ops of a pattern": (
        {"pattern": "a:Relu -> b:Relu6"}, STOP | {"on": ["a", "b"]},
        [{"body": "main", "name": "relu"}, {"body": "main", "name": "tower/relu6"}],
    ),
    "a pattern as one op": (
        {"pattern": "a:Relu ->+ Relu6|Round"}, WHOLE, [{"pattern": RUN, "body": "main"}],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("match", "patch", "saved"), SAVED.values(), ids=SAVED)
def test_what_is_saved_are_rules_by_name(
    model_file: Path, match: dict[str, Any], patch: dict[str, Any], saved: list[Any]
) -> None:
    rules = [{"match": match, "patch": patch, "emit": "function"}]
    file = as_rules_file(rules_from(rules), load(model_file))
    found = json.loads(json.dumps(file))["rules"]
    assert [one["match"] for one in found] == saved
    assert all(one["emit"] == "function" for one in found)
    assert_same_patch(rules, found, model_file)


def test_of_graphs_that_share_a_name_it_is_one_rule(tmp_path: Path) -> None:
    metas = [graphs.metagraph(graphs.sample(), tag) for tag in ("train", "serve")]
    folder = graphs.saved_model_folder(tmp_path / "saved", *metas)
    rules = [{"match": {"op": "Relu6"}, "patch": {"stop_gradient": True}}]
    saved = as_rules_file(rules_from(rules), load(folder))["rules"]
    assert [rule["expect"] for rule in saved] == [2]
    assert_same_patch(rules, saved, folder)


def test_no_match_is_saved_as_nothing(run_cli: Run, rules_file: Any, tmp_path: Path) -> None:
    rule = {"match": {"op": "Elu"}, "patch": {"stop_gradient": True}, "expect": {"min": 0}}
    saved = tmp_path / "saved.json"
    done = run_cli("match", str(rules_file(rule)), str(DIGITS), "--save", str(saved))
    assert done.code == 1
    assert "nothing is matched, so there are no rules to write" in done.stderr
    assert not saved.exists()


def test_json_has_the_near_misses_where_they_are_asked_for(run_cli: Run) -> None:
    arguments = ("match", str(DIGITS), "--json", "--pattern")
    (plain,) = run_cli(*arguments, "Conv2D").json["rules"]
    assert plain["near"] == []
    assert plain["error"] is None
    (explained,) = run_cli(*arguments, "Conv2D", "--explain").json["rules"]
    assert explained["near"][0] == "  looked at 60 ops"
    missing = run_cli(*arguments, "Conv2D -> Elu").json["rules"][0]
    assert missing["matches"] == []
    assert any("Elu is missing: FusedBatchNormV3" in line for line in missing["near"])


def test_a_typed_pattern_that_means_nothing_shows_the_place(run_cli: Run) -> None:
    done = run_cli("match", str(DIGITS), "--pattern", "Conv2D -> Relu:1")
    assert done.code == 1
    assert done.stderr.split("\n")[:3] == [
        "graphpatch: pattern, column 16: Relu has no input 1; it has 0 (features)",
        "  Conv2D -> Relu:1",
        "                 ^",
    ]


def test_numbers_in_names_count_as_numbers(run_cli: Run, tmp_path: Path) -> None:
    """In a file in which ops stand by name, as some tools write them."""
    names = sorted(f"Conv2D_{number}" for number in (1, 2, 11))
    ops = [graphs.node(name, "Conv2D", "x", "x") for name in names]
    path = graphs.saved(tmp_path, graphs.node("x", "Placeholder"), *ops)
    lines = run_cli("match", path, "--op", "Conv2D").stdout.splitlines()[1:]
    assert [line.split()[1] for line in lines] == ["Conv2D_1", "Conv2D_2", "Conv2D_11"]


# `graphpatch patterns`: the ready patterns, and how a rules file says them in full.


def test_without_a_name_it_lists_all_with_their_purpose(run_cli: Run) -> None:
    lines = run_cli("patterns").stdout.splitlines()
    assert lines[::2] == [f"@{name}" for name in READY]
    assert lines[1::2] == [f"    {entry.purpose}" for entry in READY.values()]


@pytest.mark.parametrize("name", ["swish", "@swish"])
def test_one_is_shown_with_its_forms_and_conditions(run_cli: Run, name: str) -> None:
    shown = run_cli("patterns", name).stdout
    assert "  on     sigmoid, mul\n" in shown
    assert "  form   x:_ -> sigmoid:Sigmoid -> mul:Mul; x -> mul\n" in shown
    assert '    where  scale {"inputs":{"any":' in shown


def test_json_is_what_the_library_says(run_cli: Run) -> None:
    every = {"patterns": [entry.document() for entry in READY.values()]}
    assert run_cli("patterns", "--json").json == json.loads(json.dumps(every))


@pytest.mark.slow
@pytest.mark.parametrize("name", READY)
def test_the_forms_as_json_match_the_same_from_a_rules_file(name: str) -> None:
    pattern = [form["pattern"] for form in READY[name].document()["forms"]]
    [rule] = rules_from([{"match": {"pattern": pattern}, "patch": {"stop_gradient": True}}])
    for one, text in FOUND.items():
        if one.partition(":")[0] == name:
            net = Net(text)
            graph = graphs.opened(net.graph_def)
            assert [node.name for node in select(graph, rule.match)] == [net.last]
            assert select(graph, Match(pattern=f"@{name}")) == select(graph, rule.match)


def test_match_takes_one_by_name(run_cli: Run, tmp_path: Path) -> None:
    net = Net(FOUND["swish: plain"])
    path = graphs.saved(tmp_path, *net.nodes)
    [rule] = run_cli("match", path, "--pattern", "@swish", "--json").json["rules"]
    [match] = rule["matches"]
    assert (match["op"], set(match["captures"])) == (net.last, {"sigmoid", "mul"})
