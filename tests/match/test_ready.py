"""The ready patterns, form by form, on graphs by hand; and what comes near, and must not match."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from graphpatch.errors import RulesError
from graphpatch.match.ready import READY, form_pattern
from graphpatch.match.select import find, select
from graphpatch.match.spec import Match
from graphpatch.rules import rules_from
from tests import graphs
from tests.match.ready_graphs import Net
from tests.match.ready_tables import FOUND, MISSED


def matched(net: Net, names: Iterable[str] = READY) -> dict[str, list[str]]:
    """Of each of these ready patterns that is there, the ops in which it ends."""
    graph = graphs.opened(net.graph_def)
    found = {name: select(graph, Match(pattern=f"@{name}")) for name in names}
    return {name: [node.name for node in nodes] for name, nodes in found.items() if nodes}


@pytest.mark.every(5)
@pytest.mark.parametrize("name", FOUND)
def test_a_form_is_found_once_and_is_nothing_else(name: str) -> None:
    net = Net()
    last = FOUND[name](net)
    net("Relu6", last)
    assert matched(net) == {name.partition(":")[0]: [last]}


@pytest.mark.parametrize("name", MISSED)
def test_what_comes_near_is_not_found(name: str) -> None:
    net = Net()
    net("Exp", MISSED[name](net))
    assert matched(net, [name.partition(":")[0]]) == {}


@pytest.mark.parametrize("name", READY)
def test_each_has_forms_and_near_misses_here(name: str) -> None:
    for table in (FOUND, MISSED):
        assert [one for one in table if one.partition(":")[0] == name]


@pytest.mark.every(5)
@pytest.mark.parametrize("name", FOUND)
def test_inputs_of_what_commutes_may_be_swapped(name: str) -> None:
    net, pattern = Net(), name.partition(":")[0]
    last = FOUND[name](net)
    for node in net.nodes:
        if node.op in {"Add", "AddV2", "Mul", "Maximum", "Minimum", "SquaredDifference"}:
            node.input[:] = reversed(node.input)
    assert matched(net, [pattern]) == {pattern: [last]}


@pytest.mark.slow
def test_every_form_is_used() -> None:
    nets = []
    for build in FOUND.values():
        nets.append(Net())
        build(nets[-1])
    opened = [graphs.opened(net.graph_def) for net in nets]
    unused = [
        text
        for entry in READY.values()
        for text, where in entry.forms.items()
        if not any(select(graph, Match(pattern=form_pattern(text, where))) for graph in opened)
    ]
    assert unused == []


@pytest.mark.parametrize("name", READY)
def test_on_can_name_every_capture(name: str) -> None:
    captures = READY[name].captures()
    assert captures
    rule: dict[str, Any] = {"match": {"pattern": f"@{name}"}}
    for on in (captures, *captures):
        rules = rules_from([{**rule, "patch": {"stop_gradient": True, "on": on}}])
        assert rules[0].on == ((on,) if isinstance(on, str) else tuple(on))
    with pytest.raises(RulesError, match=r"no op of the pattern is called 'nobody'"):
        rules_from([{**rule, "patch": {"stop_gradient": True, "on": "nobody"}}])


SEVERAL = (
    "batch_norm",
    "layer_norm",
    "leaky_relu",
    "leaky_relu_by_abs",
    "prelu",
    "prelu_of_negated_slope",
    "prelu_of_half_slope",
    "swish",
    "hard_swish",
    "gelu",
    "dropout",
)


@pytest.mark.every(5)
@pytest.mark.parametrize("name", [one for one in FOUND if one.partition(":")[0] in SEVERAL])
def test_as_one_op_it_has_x_as_its_first_input(name: str) -> None:
    net = Net()
    FOUND[name](net)
    graph = graphs.opened(net.graph_def)
    [kept] = find(graph, Match(pattern=f"@{name.partition(':')[0]}"), ("match",)).kept
    x = next(node.name for node in net.nodes if node.op == "Placeholder")
    assert kept.inputs[0] == x


def test_a_slip_in_a_name_is_told() -> None:
    rule = {"match": {"pattern": "@swsh"}, "patch": {"stop_gradient": True}}
    with pytest.raises(RulesError, match=r"no ready pattern is called '@swsh'; nearest: @swish"):
        rules_from([rule])


def test_conditions_of_a_form_hold_beside_its_types() -> None:
    pattern = form_pattern("a:Relu -> b:Relu", {"b": {"name": "out"}})
    assert pattern.nodes == {"a": Match(op="Relu"), "b": Match(op="Relu", name="out")}
