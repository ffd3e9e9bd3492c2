"""Selecting ops from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphpatch
from graphpatch import Selection, load, select
from graphpatch.errors import MatchError, RulesError
from graphpatch.formats import Model
from tests import graphs


@pytest.fixture
def model(model_file: Path) -> Model:
    return load(model_file)


def names(selection: Selection) -> list[str]:
    return [node.name for node in selection]


def test_without_a_key_it_is_every_op(model: Model) -> None:
    assert len(select(model)) == model.node_count
    assert names(select(model)) == [node.name for body in model.graphs[0].bodies for node in body]


def test_keys_are_those_of_a_rules_file(model: Model) -> None:
    relus = select(model, op="Relu")
    assert {node.op for node in relus} == {"Relu"}
    assert relus.types == {"Relu": len(relus)}
    assert names(select(model, not_={"op": "Relu"})) == names(~relus)


def test_it_is_refined_joined_and_inverted(model: Model) -> None:
    main, relus = select(model, body="main"), select(model, op="Relu")
    assert names(relus.where(body="main")) == names(relus & main)
    assert names(relus.where(lambda node: node.body.is_main)) == names(relus & main)
    assert (relus | ~relus).keys == select(model).keys
    assert not relus & ~relus
    assert (main - relus).keys | (main & relus).keys == main.keys
    assert names(main | relus) == [n.name for n in select(model) if n in [*main, *relus]]


def test_it_prints_what_it_is(model: Model) -> None:
    first, *rest = str(select(model, op="Relu", body="main")).split("\n")
    assert first == f"{len(rest)} ops of {model.path}"
    assert rest[0].strip().startswith("Relu '")


def test_patching_it_is_applying_a_rule_to_just_these_ops(model: Model) -> None:
    selection = select(model, op="Relu")
    patch = {"override_gradient": "guided_relu"}
    by_rule = graphpatch.apply(
        [{"name": "selection", "match": {"op": "Relu"}, "patch": patch}], model
    )
    mine = selection.apply(patch)
    found = [[m["op"] for m in r.report["rules"][0]["matches"]] for r in (mine, by_rule)]
    assert found[0] == found[1] == names(selection)


def test_the_model_is_left_as_it_was(model: Model) -> None:
    before = graphs.joined(model.pieces())
    select(model, op="Relu", body="main").apply({"stop_gradient": True})
    assert graphs.joined(model.pieces()) == before


def test_nothing_selected_cannot_be_patched(model: Model) -> None:
    with pytest.raises(MatchError, match="nothing is selected"):
        select(model, op="Elu").apply({"stop_gradient": True})


def test_an_unknown_key_is_told_with_the_nearest(model: Model) -> None:
    with pytest.raises(RulesError, match="unknown key 'ops'; nearest: op"):
        select(model, ops="Relu")


def test_selections_of_two_models_cannot_be_joined(model: Model, model_file: Path) -> None:
    with pytest.raises(MatchError, match="two models"):
        select(model) | select(load(model_file))
