"""Rules files: what is read, and how every error walks to its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from graphpatch.gradients.spec import DEFAULT
from graphpatch.match.spec import Match
from graphpatch.rules import EMITS, Expect, Rule, load_rules, rules_from
from tests.rule_dicts import matched, patching, rule

# What is read


def test_a_rules_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"version": 1, "rules": [rule(name="mine", expect=2), rule()]}))
    first, second = load_rules(path)
    assert (first.author.rule, second.author.rule) == ("mine", "rule 2")
    assert first.match == msgspec.convert({"op": "Relu"}, Match)
    assert (first.expect, second.expect) == (Expect(2, 2), Expect(1, None))


def test_a_list_of_rules_is_a_rules_file() -> None:
    assert rules_from([rule()]) == rules_from({"version": 1, "rules": [rule()]})
    assert rules_from((rule(),)) == rules_from([rule()])


EXPECTS: list[tuple[Any, Expect, str]] = [
    (3, Expect(3, 3), "3"),
    ({"min": 0}, Expect(0), "at least 0"),
    ({"max": 4}, Expect(1, 4), "1 to 4"),
    ({}, Expect(1, None), "at least 1"),
]


@pytest.mark.parametrize(("value", "expect", "words"), EXPECTS)
def test_how_often_a_rule_must_match(value: Any, expect: Expect, words: str) -> None:
    [found] = rules_from([rule(expect=value)])
    assert found.expect == expect
    assert str(found.expect) == words


def test_the_default_gradient_has_an_older_name() -> None:
    """Rules files of 0.1 say "stock"."""
    [old], [new] = ([rules_from([patching(override_gradient=one)])[0].patch] for one in DEFAULT)
    assert (DEFAULT, old) == (("default", "stock"), new)


@pytest.mark.parametrize("emit", EMITS)
def test_the_carrier_of_a_rule_and_that_of_a_run(emit: str) -> None:
    assert emit_of(rules_from([rule(emit=emit)])) == emit
    assert emit_of(rules_from([rule(emit=emit)], "attr")) == emit
    assert emit_of(rules_from([rule()], emit)) == emit
    assert emit_of(rules_from([rule()])) == "auto"


def emit_of(rules: list[Rule]) -> Any:
    return getattr(rules[0].patch, "emit")  # noqa: B009


# If this changes, a model that was patched by the version before can be patched twice.
FINGERPRINT = "139c4084e9fdfb67"
SAME = rule(name="a", expect=3, emit="attr")
OTHERS = [matched(op="Relu6"), matched(op=["Relu"]), patching(stop_gradient=True)]


def test_a_fingerprint_is_what_a_rule_does() -> None:
    [one] = rules_from([rule()])
    [same] = rules_from([SAME])
    assert one.author.id == same.author.id
    attrs = [{"a": 1, "b": 2}, {"b": 2, "a": 1}]
    [one_way], [the_other] = (rules_from([matched(attr=attr)]) for attr in attrs)
    assert one_way.author.id == the_other.author.id
    others = [rules_from([other])[0].author.id for other in OTHERS]
    assert len({one.author.id, *others}) == 1 + len(OTHERS)
    assert one.author.id == FINGERPRINT
