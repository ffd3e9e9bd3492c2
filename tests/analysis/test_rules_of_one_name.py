"""Rules of one name in a model, from several files: which is meant, and which is which."""

from __future__ import annotations

import re
from typing import Any

import pytest

from graphpatch import apply, diff, load
from graphpatch.analysis.revert import revert
from graphpatch.errors import PatchError
from graphpatch.formats import Model
from graphpatch.graph import provenance
from graphpatch.graph.record import Author, labels
from graphpatch.graph.wire import piece_bytes
from graphpatch.page.rule_marks import of_patched
from tests import graphs

GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
CLIP = {
    "match": {"name": "relu", "body": "main"},
    "patch": {"filter_gradient": {"clip": {"min": -1, "max": 1}}},
}


@pytest.fixture
def both() -> tuple[Model, Model]:
    """A model, and what two runs made of it, each with a rule without a name."""
    model = load(graphs.sample())
    return model, apply([CLIP], apply([GUIDED], model).model).model


def raw(model: Any) -> bytes:
    return b"".join(map(piece_bytes, model.pieces()))


def rule_ids(model: Model) -> dict[str, str]:
    """The ids, by the patch."""
    rules = {one.id for one in model.graphs[0].library.rules}
    told = provenance.patches(model.graphs[0])
    return {next(iter(told[one])): one for one in rules}


def test_a_name_of_two_is_refused_with_what_tells_them_apart(both: tuple[Model, Model]) -> None:
    ids = rule_ids(both[1])
    with pytest.raises(PatchError) as caught:
        revert(both[1], "rule 1")
    said = str(caught.value)
    assert "'rule 1' is each of 2 rules; give the id:" in said
    assert re.search(rf"{ids['override_gradient']}  'rule 1': guided_relu at \S", said)
    assert re.search(rf"{ids['filter_gradient']}  'rule 1': filter_gradient clip\(", said)


@pytest.mark.parametrize("digits", [4, 8, 16])
def test_an_id_takes_one_off(both: tuple[Model, Model], digits: int) -> None:
    model, patched = both
    found = revert(patched, rule_ids(patched)["filter_gradient"][:digits])
    label = f"rule 1 ({rule_ids(patched)['filter_gradient'][:8]})"
    assert found.report["rules"] == [label]
    assert raw(found.model) == raw(apply([GUIDED], model).model)
    assert raw(revert(found, "rule 1").model) == raw(model)


def test_the_first_is_taken_off_and_the_other_applied_again(both: tuple[Model, Model]) -> None:
    model, patched = both
    found = revert(patched, rule_ids(patched)["override_gradient"])
    assert raw(found.model) == raw(apply([CLIP], model).model)


def test_diff_and_page_show_both(both: tuple[Model, Model]) -> None:
    model, patched = both
    listed = sorted(f"rule 1 ({one[:8]})" for one in rule_ids(patched).values())
    found = [one for one in diff(model, patched).gradients if one["body"] == "main"]
    assert sorted({name for one in found for name in one["rules"]}) == listed
    assert all("guided_relu, then filter_gradient clip" in one["after"] for one in found)
    assert sorted(of_patched(patched.graphs).written) == listed


def test_what_has_not_changed_is_no_difference(both: tuple[Model, Model]) -> None:
    first = apply([GUIDED], both[0]).model
    found = [one for one in diff(first, both[1]).gradients if one["body"] == "main"]
    clip = f"rule 1 ({rule_ids(both[1])['filter_gradient'][:8]})"
    assert {tuple(one["rules"]) for one in found} == {(clip,)}


def test_a_rule_alone_of_its_name_has_it_as_before(both: tuple[Model, Model]) -> None:
    model = apply([GUIDED], both[0]).model
    ((rule, label),) = labels(model.graphs[0].library.rules).items()
    assert rule == Author("rule 1", rule.id)
    assert label == "rule 1"
