"""How often a rule must match, and what is said where it does not."""

from __future__ import annotations

from typing import Any

import pytest

from graphpatch import Model, apply
from graphpatch.errors import MatchError

STOP = {"stop_gradient": True}


def stopping(op: str, patch: Any = STOP, **keys: Any) -> dict[str, Any]:
    """A rule on the ops of this type in the main graph."""
    return {"match": {"op": op, "body": "main"}, "patch": patch, **keys}


EXPECT: list[tuple[str, Any, str]] = [
    ("Identity", 2, ""),
    ("Identity", {"min": 1, "max": 2}, ""),
    ("Identity", {"max": 2}, ""),
    ("Elu", {"min": 0}, ""),
    ("Elu", 0, ""),
    ("Identity", 1, "matched 2, expected 1"),
    ("Identity", 3, "matched 2, expected 3"),
    ("Identity", 0, "matched 2, expected 0"),
    ("Identity", {"min": 3}, "matched 2, expected at least 3"),
    ("Identity", {"max": 1}, "matched 2, expected 1"),
    ("Identity", {"min": 3, "max": 4}, "matched 2, expected 3 to 4"),
    ("Eluu", {}, "matched nothing, expected at least 1\n  looked at 11 ops"),
]


@pytest.mark.parametrize(("op", "expect", "message"), EXPECT)
def test_a_rule_matches_as_often_as_it_says(
    model: Model, op: str, expect: Any, message: str
) -> None:
    first = stopping("Relu", {"override_gradient": "Elu"})
    rules = [first, stopping(op, expect=expect, name="mine")]
    if not message:
        assert len(apply(rules, model).report["rules"]) == 2
        return
    with pytest.raises(MatchError) as raised:
        apply(rules, model)
    assert str(raised.value).startswith(f"{model.path}: rule 'mine': {message}")


def test_a_rule_that_matches_nothing_says_what_comes_near(model: Model) -> None:
    with pytest.raises(MatchError) as raised:
        apply([{"match": {"op": "Relu5", "name": "tower/*"}, "patch": STOP}], model)
    assert str(raised.value).splitlines() == [
        f"{model.path}: rule 'rule 1': matched nothing, expected at least 1",
        "  looked at 11 ops",
        "  op 'Relu5': 0 of them; nearest: Relu, Relu6",
        "  name 'tower/*': 1 of them",
    ]
