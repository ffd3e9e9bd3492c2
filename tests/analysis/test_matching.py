"""What rules would match, each on the result of those before that could be applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphpatch import application, load, rules
from graphpatch.analysis.matches import match_rules
from graphpatch.application import RuleResult, patch_matched
from graphpatch.errors import PatchError
from graphpatch.graph.graph import Graph
from graphpatch.rules import Rule

DIGITS = Path(__file__).parent.parent.parent / "scripts/models/digits.pb"


def stop(rule: str, **match: Any) -> dict[str, Any]:
    return {"name": rule, "match": match, "patch": {"stop_gradient": True}}


RULES = (
    stop("relus", op="Relu"),
    stop("convolutions", op="Conv2D"),
    stop("stops", op="StopGradient", taken=True),
    stop("none", name="nowhere"),
    stop("stops of stops", op="StopGradient", body="main", taken=True),
    stop("adds", op="BiasAdd"),
)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs that were copied."""
    copied, copy = [], Graph.copy

    def counted(graph: Graph) -> Graph:
        copied.append(graph)
        return copy(graph)

    monkeypatch.setattr(Graph, "copy", counted)
    return copied


def test_many_rules_copy_a_graph_once(copies: list[Graph]) -> None:
    model = load(DIGITS)
    found = match_rules(rules.rules_from(RULES), model)
    assert copies == model.graphs
    assert [len(one.matches) > 0 for one in found] == [True, True, True, False, True, True]
    assert [bool(one.error) for one in found] == [not one.matches for one in found]
    assert found[3].error.startswith("rule 'none': matched nothing")


@pytest.mark.parametrize("bad", [0, 4])
def test_a_rule_that_fails_halfway_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, copies: list[Graph], bad: int
) -> None:
    model = load(DIGITS)
    given = rules.rules_from(RULES)
    others = match_rules([one for place, one in enumerate(given) if place != bad], model)
    whole = match_rules(given, model)[bad].matches

    def failing(rule: Rule, found: Any) -> RuleResult:
        step = patch_matched(rule, found)
        if rule is given[bad]:
            raise PatchError("halfway")
        return step

    copies.clear()
    monkeypatch.setattr(application, "patch_matched", failing)
    found = match_rules(given, model)
    failed = found.pop(bad)
    assert (failed.error, failed.matches) == ("halfway", whole)
    assert found == others
    assert len(copies) == 3
