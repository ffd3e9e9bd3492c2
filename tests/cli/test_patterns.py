"""`graphpatch patterns`: the ready patterns, and how a rules file says them in full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphpatch.match.ready import READY
from graphpatch.match.select import select
from graphpatch.match.spec import Match
from graphpatch.rules import rules_from
from tests import graphs
from tests.conftest import Run
from tests.match.ready_graphs import Net
from tests.match.ready_tables import FOUND


def test_without_a_name_it_lists_all_with_their_purpose(run_cli: Run) -> None:
    done = run_cli("patterns")
    assert (done.code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[::2] == [f"@{name}" for name in READY]
    assert lines[1::2] == [f"    {entry.purpose}" for entry in READY.values()]


@pytest.mark.parametrize("name", ["swish", "@swish"])
def test_one_is_shown_with_its_forms_and_conditions(run_cli: Run, name: str) -> None:
    done = run_cli("patterns", name)
    assert done.code == 0
    assert "  on     sigmoid, mul\n" in done.stdout
    assert "  form   x:_ -> sigmoid:Sigmoid -> mul:Mul; x -> mul\n" in done.stdout
    assert '    where  scale {"inputs":{"any":' in done.stdout


def test_json_is_what_the_library_says(run_cli: Run) -> None:
    every = {"patterns": [entry.document() for entry in READY.values()]}
    assert run_cli("patterns", "--json").json == json.loads(json.dumps(every))
    [one] = run_cli("patterns", "gelu", "--json").json["patterns"]
    assert (one["name"], one["on"]) == ("@gelu", ["scaled", "cdf", "half", "mul"])


@pytest.mark.slow
@pytest.mark.parametrize("name", READY)
def test_the_forms_as_json_match_the_same_from_a_rules_file(name: str) -> None:
    pattern = [form["pattern"] for form in READY[name].document()["forms"]]
    [rule] = rules_from([{"match": {"pattern": pattern}, "patch": {"stop_gradient": True}}])
    for one, build in FOUND.items():
        if one.partition(":")[0] == name:
            net = Net()
            last = build(net)
            graph = graphs.opened(net.graph_def)
            assert [node.name for node in select(graph, rule.match)] == [last]
            assert select(graph, Match(pattern=f"@{name}")) == select(graph, rule.match)


def test_match_takes_one_by_name(run_cli: Run, tmp_path: Path) -> None:
    net = Net()
    last = FOUND["swish: plain"](net)
    path = tmp_path / "model.pb"
    path.write_bytes(net.graph_def.SerializeToString())
    done = run_cli("match", path, "--pattern", "@swish", "--json")
    [rule] = done.json["rules"]
    assert [one["op"] for one in rule["matches"]] == [last]
    assert set(rule["matches"][0]["captures"]) == {"sigmoid", "mul"}
