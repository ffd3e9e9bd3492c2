"""`graphpatch match`: what would be matched, and how near it came where nothing is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphpatch import apply, load, load_rules
from tests import graphs

Run = Callable[..., Any]

ROOT = Path(__file__).parent.parent.parent
DIGITS, GUIDED = ROOT / "scripts/models/digits.pb", ROOT / "scripts/models/guided.json"


def test_it_lists_what_apply_lists(run_cli: Run) -> None:
    done = run_cli("match", str(GUIDED), str(DIGITS), "--json")
    found = {rule["name"]: rule["matches"] for rule in done.json["rules"]}
    report = apply(load_rules(GUIDED), DIGITS).report
    assert found == {rule["name"]: rule["matches"] for rule in report["rules"]}


def test_later_rules_see_what_earlier_ones_did(run_cli: Run, rules_file: Any) -> None:
    first = {"match": {"name": "features"}, "patch": {"stop_gradient": True}}
    rules = rules_file(first, {"match": {"op": "StopGradient"}, "patch": {"stop_gradient": True}})
    done = run_cli("match", str(rules), str(DIGITS), "--json")
    assert [one["op"] for one in done.json["rules"][1]["matches"]] == ["features"]


def test_a_typed_pattern_shows_its_captures(run_cli: Run) -> None:
    done = run_cli("match", str(DIGITS), "--pattern", "bn:FusedBatchNormV3 -> act:Relu")
    assert done.code == 0
    assert (
        "Relu block1/relu  (bn is block1/batch_norm/normalize, act is block1/relu)" in done.stdout
    )


def test_typed_types_and_names_hold_together(run_cli: Run) -> None:
    done = run_cli("match", str(DIGITS), "--op", "Relu*", "--name", "block2/**", "--json")
    assert [one["op"] for one in done.json["rules"][0]["matches"]] == ["block2/relu"]


def test_where_nothing_matches_it_says_how_near_it_came(run_cli: Run, rules_file: Any) -> None:
    pattern = {"pattern": "conv:Conv2D -> bias:BiasAdd"}
    rules = rules_file({"match": pattern, "patch": {"stop_gradient": True}})
    done = run_cli("match", str(rules), str(DIGITS))
    assert done.code == 1
    assert "no 'bias': not FusedBatchNormV3 'block1/batch_norm/normalize'" in done.stdout
    assert "error: rule 'rule 1': matched nothing, expected at least 1" in done.stdout


def test_explain_shows_the_counts_where_something_matches_too(run_cli: Run) -> None:
    plain = run_cli("match", str(DIGITS), "--op", "Relu")
    explained = run_cli("match", str(DIGITS), "--op", "Relu", "--explain")
    assert "looked at 60 ops" not in plain.stdout
    assert explained.stdout.startswith(plain.stdout.rstrip("\n"))
    assert "looked at 60 ops" in explained.stdout


def test_saved_matches_do_the_same_unchanged(run_cli: Run, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    assert run_cli("match", str(GUIDED), str(DIGITS), "--save", str(saved)).code == 0
    assert len(json.loads(saved.read_text())["rules"]) == 5
    one, other = (apply(load_rules(path), load(DIGITS)).model for path in (GUIDED, saved))
    assert graphs.unsigned(one.graphs[0]) == graphs.unsigned(other.graphs[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([str(DIGITS)], "give RULES and MODEL, or MODEL and one of"),
        ([str(GUIDED), str(DIGITS), "--op", "Relu"], "give RULES and MODEL, or MODEL and one of"),
        ([str(DIGITS), "--op", "Relu", "--save", "x.json"], "--save writes what a rules file"),
    ],
)
def test_wrong_usage(run_cli: Run, arguments: list[str], message: str) -> None:
    done = run_cli("match", *arguments)
    assert done.code == 2
    assert message in done.stderr


def test_what_is_read_is_never_written_over(run_cli: Run, tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_bytes(GUIDED.read_bytes())
    done = run_cli("match", str(rules), str(DIGITS), "--save", str(rules))
    assert done.code == 1
    assert "never written over" in done.stderr
    assert rules.read_bytes() == GUIDED.read_bytes()
