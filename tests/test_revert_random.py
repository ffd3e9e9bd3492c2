"""Apply, then revert, is the identity: over random graphs, for each patch kind and carrier."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpatch import Model, apply, patches
from graphpatch.analysis.revert import revert
from graphpatch.errors import PatchError
from graphpatch.protos import NodeDef
from tests import graphs
from tests.draws import draws
from tests.graphs import in_memory, node
from tests.test_untouched import PATCHES, UNARY, Built, built

KINDS: list[dict[str, Any]] = [
    *PATCHES,
    {"override_gradient": {"formula": "dy * 2"}},
    {"filter_gradient": {"registered": "Mine"}},
    {"filter_gradient": {"scale": 0.5}, "at": "output:0"},
    {"surrogate_gradient": "tanh(4 * x)"},
    {"backward_as": {"input": 0}},
    {"freeze": True},
]
EMITS = ("auto", "function", "attr")


def test_every_kind_is_tried() -> None:
    assert {key for patch in KINDS for key in patch} - {"at"} == set(patches.KINDS)


@st.composite
def rules_for(draw: st.DrawFn, built: Built, patch: dict[str, Any] | None, most: int = 3) -> Any:
    """Rules for some ops of a graph, of one kind or of any."""
    legal = [key for key, raw in built.nodes.items() if NodeDef.FromString(raw).op in UNARY]
    if not legal:
        return []
    places = draw(st.lists(st.sampled_from(legal), min_size=1, max_size=most))
    return [
        {
            "name": f"rule {place}",
            "match": {"name": name, "body": label},
            "patch": patch or draw(st.sampled_from(KINDS)),
            "emit": draw(st.sampled_from(EMITS)),
        }
        for place, (label, name) in enumerate(places)
    ]


def with_rules_taken(rules: list[Any], model: Model) -> tuple[Model, list[str]]:
    """The model with those rules on it that it takes, one after the other, and their names."""
    taken = []
    for rule in rules:
        try:
            model = apply([rule], model).model
        except PatchError:
            continue
        taken.append(rule["name"])
    return model, taken


@pytest.mark.every(3)
@pytest.mark.parametrize("patch", [*KINDS, None], ids=str)
@settings(max_examples=draws(25), deadline=None)
@given(st.data())
def test_reverted_it_is_the_same_bytes(patch: dict[str, Any] | None, data: st.DataObject) -> None:
    built = data.draw(built_graphs)
    after, names = with_rules_taken(data.draw(rules_for(built, patch)), in_memory(built.raw))
    if not names:
        return
    raw = graphs.joined(after.pieces())
    assert raw != built.raw
    for model in (after, in_memory(raw)):
        found = revert(model)
        assert graphs.joined(found.model.pieces()) == built.raw
        assert sorted(found.report["rules"]) == sorted(names)
        assert found.report["notes"] == []
    assert graphs.joined(after.pieces()) == raw, "the model that came in"


@settings(max_examples=draws(50), deadline=None)
@given(st.data())
def test_without_one_rule_it_is_as_if_only_the_others_had_been(data: st.DataObject) -> None:
    built = data.draw(built_graphs)
    rules = {
        rule["match"]["body"] + rule["match"]["name"]: rule
        for rule in data.draw(rules_for(built, None))
    }
    after, names = with_rules_taken(list(rules.values()), in_memory(built.raw))
    if len(names) < 2:
        return
    off = data.draw(st.sampled_from(names))
    try:
        found = revert(after, off).model
    except PatchError:
        return
    others = [rule for rule in rules.values() if rule["name"] in names and rule["name"] != off]
    expected, taken = with_rules_taken(others, in_memory(built.raw))
    assert taken == [rule["name"] for rule in others]
    assert graphs.joined(found.pieces()) == graphs.joined(expected.pieces())


CLONED = graphs.graphdef(
    node("x", "Placeholder"), node("noise", "Relu", "x"), node("behind", "Relu", "noise")
).SerializeToString()


SECOND = {"name": "second", "match": {"name": "noise"}, "patch": {"backward_as": {"input": 0}}}


@pytest.mark.parametrize("emit", EMITS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_clone_keeps_no_edit_of_a_rule_that_is_taken_off(kind: dict[str, Any], emit: str) -> None:
    first = {"name": "first", "match": {"name": "behind"}, "patch": kind, "emit": emit}
    try:
        patched = apply([first], in_memory(CLONED)).model
    except PatchError:
        pytest.skip("no such gradient is stored so")
    left = revert(apply([SECOND], patched).model, "first").model
    expected = apply([SECOND], in_memory(CLONED)).model
    assert graphs.joined(left.pieces()) == graphs.joined(expected.pieces())
    assert graphs.joined(revert(left).model.pieces()) == CLONED


built_graphs = built()
