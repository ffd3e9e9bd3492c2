"""The ready patterns, form by form, on graphs by hand; and what comes near, and must not match."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from graphpatch.match.ready import READY, form_pattern
from graphpatch.match.select import find, select
from graphpatch.match.spec import Match
from graphpatch.rules import rules_from
from tests import graphs
from tests.match.ready_tables import FOUND, MISSED, Net


def matched(net: Net, names: Iterable[str] = READY) -> dict[str, list[str]]:
    """Of each of these ready patterns that is there, the ops in which it ends."""
    graph = graphs.opened(net.graph_def)
    found = {name: select(graph, Match(pattern=f"@{name}")) for name in names}
    return {name: [node.name for node in nodes] for name, nodes in found.items() if nodes}


@pytest.mark.every(5)
@pytest.mark.parametrize("name", FOUND)
def test_a_form_is_found_once_and_is_nothing_else(name: str) -> None:
    net = Net(FOUND[name])
    net("Relu6", net.last)
    assert matched(net) == {name.partition(":")[0]: [net.last]}


@pytest.mark.parametrize("name", MISSED)
def test_what_comes_near_is_not_found(name: str) -> None:
    net = Net(MISSED[name])
    net("Exp", net.last)
    assert matched(net, [name.partition(":")[0]]) == {}


@pytest.mark.every(5)
@pytest.mark.parametrize("name", FOUND)
def test_inputs_of_what_commutes_may_be_swapped(name: str) -> None:
    net, pattern = Net(FOUND[name], plus="Add"), name.partition(":")[0]
    for node in net.nodes:
        if node.op in {"Add", "Mul", "Maximum", "Minimum", "SquaredDifference"}:
            node.input[:] = reversed(node.input)
    assert matched(net, [pattern]) == {pattern: [net.last]}


@pytest.mark.slow
def test_every_form_is_used() -> None:
    opened = [graphs.opened(Net(text).graph_def) for text in FOUND.values()]
    unused = [
        text
        for entry in READY.values()
        for text, where in entry.forms.items()
        if not any(select(graph, Match(pattern=form_pattern(text, where))) for graph in opened)
    ]
    assert unused == []


@pytest.mark.parametrize("name", READY)
def test_each_has_near_misses_and_on_can_name_every_capture(name: str) -> None:
    assert any(one.partition(":")[0] == name for one in MISSED)
    captures = READY[name].captures()
    assert captures
    rule: dict[str, Any] = {"match": {"pattern": f"@{name}"}}
    [one] = rules_from([{**rule, "patch": {"stop_gradient": True, "on": captures}}])
    assert one.on == tuple(captures)


SEVERAL = (
    "batch_norm layer_norm leaky_relu leaky_relu_by_abs prelu prelu_of_negated_slope"
    " prelu_of_half_slope swish hard_swish gelu dropout"
).split()


@pytest.mark.every(5)
@pytest.mark.parametrize("name", [one for one in FOUND if one.partition(":")[0] in SEVERAL])
def test_as_one_op_it_has_x_as_its_first_input(name: str) -> None:
    net = Net(FOUND[name])
    graph = graphs.opened(net.graph_def)
    [kept] = find(graph, Match(pattern=f"@{name.partition(':')[0]}"), ("match",)).counted
    assert kept.inputs[0] == net.named["x"]
