"""Rules files: what is read, and how every error walks to its key."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

import graphpatch
from graphpatch.errors import RulesError
from graphpatch.gradients.spec import DEFAULT
from graphpatch.match.spec import Match
from graphpatch.rules import EMITS, Expect, load_rules, rules_from, rules_in, rules_of
from tests.graphs import graphdef

ZERO = {"override_gradient": "zero"}


def rule(**keys: Any) -> dict[str, Any]:
    """A rule with these keys besides."""
    return {"match": {"op": "Relu"}, "patch": ZERO, **keys}


def patching(**patch: Any) -> dict[str, Any]:
    """A rule with this patch."""
    return {"match": {"op": "Relu"}, "patch": patch}


def matched(**match: Any) -> dict[str, Any]:
    """A rule with this match."""
    return {"match": match, "patch": ZERO}


# What is read


def test_a_rules_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"version": 1, "rules": [rule(name="mine", expect=2), rule()]}))
    first, second = load_rules(path)
    assert (first.author.rule, second.author.rule) == ("mine", "rule 2")
    assert first.match == msgspec.convert({"op": "Relu"}, Match)
    assert (first.expect, second.expect) == (Expect(2, 2), Expect(1, None))
    assert rules_from([rule(name="mine", expect=2), rule()]) == [first, second]


EXPECTS = [
    (3, Expect(3, 3), "3"),
    ({"min": 0}, Expect(0), "at least 0"),
    ({"max": 4}, Expect(1, 4), "1 to 4"),
    ({}, Expect(1, None), "at least 1"),
]


def test_how_often_a_rule_must_match() -> None:
    for value, expect, words in EXPECTS:
        [made] = rules_from([rule(expect=value)])
        assert (made.expect, str(made.expect)) == (expect, words)


def test_the_default_gradient_has_an_older_name() -> None:
    """Rules files of 0.1 say "stock"."""
    [old], [new] = ([rules_from([patching(override_gradient=one)])[0].patch] for one in DEFAULT)
    assert (DEFAULT, old) == (("default", "stock"), new)


@pytest.mark.parametrize("emit", EMITS)
def test_the_carrier_of_a_rule_and_that_of_a_run(emit: str) -> None:
    written, given = [rule(emit=emit)], [rule()]
    for args in ((written,), (written, "attr"), (given, emit)):
        assert asdict(rules_from(*args)[0].patch)["emit"] == emit
    assert asdict(rules_from(given)[0].patch)["emit"] == "auto"


# If this changes, a model that was patched by the version before can be patched twice.
FINGERPRINT = "139c4084e9fdfb67"
SAME = rule(name="a", expect=3, emit="attr")
OTHERS = [matched(op="Relu6"), matched(op=["Relu"]), patching(stop_gradient=True)]


def test_a_fingerprint_is_what_a_rule_does() -> None:
    attrs = [{"a": 1, "b": 2}, {"b": 2, "a": 1}]
    rules = [rule(), SAME, *OTHERS, *(matched(attr=attr) for attr in attrs)]
    ids = [rules_from([one])[0].author.id for one in rules]
    assert ids[:2] == [FINGERPRINT] * 2
    assert ids[-2] == ids[-1]
    assert len(set(ids)) == len(ids) - 2


# Rules files that are wrong: how every error walks to its key, or to a line and a column.


MIXED: list[Any] = [*rules_from([rule(name="ready")]), rule(), rule(emit=3)]
# The document, and the whole message; scripts/provoking/of_rules.py has more.
ERRORS: dict[str, tuple[Any, str]] = {
    "a text": ("rules", "at the top: expected an object, found a string"),
    "a key of the rule in its patch": ([{"match": {}, "patch": {**ZERO, "emit": "attr"}}],
     "rules[0].patch: unknown key 'emit'; write: \"emit\" beside \"patch\", in the rule itself"),
    "how many there are": ([rule(count=4)],
     "rules[0]: unknown key 'count'; write: \"expect\": 4"),
    "in any": ([matched(any=[{"op": "Relu"}, {"opp": "x"}])],
     "rules[0].match.any[1]: unknown key 'opp'; nearest: op"),
    "in attr": ([matched(attr={"T": {"inn": []}})],
     "rules[0].match.attr[...]: unknown key 'inn'; nearest: in"),
    "in an edge": ([matched(pattern={"nodes": {}, "edges": [["a", "b", {"inptu": 1}]]})],
     "rules[0].match.pattern.edges[0][2]: unknown key 'inptu'; nearest: input"),
    "an object for a body": ([matched(body={})],
     'rules[0].match.body: expected a string or a list, found an object; for example "body": '
     '"main"'),
    "a type for an input": ([matched(inputs={"op": "Relu"})],
     'rules[0].match.inputs[...]: expected an object, found a string; for example "inputs": '
     '{"0": {"op": "Conv2D"}}'),
    "an order of none": ([matched(nth={"at": 1, "by": "size"})],
     'rules[0].match.nth.by: not a legal value: \'size\'; legal: "graph", "name", "file"'),
    "a value of nothing": ([matched(value={})],
     "rules[0].match.value: give near, or one of >, <, >=, <=, !=; for example \"value\": "
     '{"near": 0.5, "tolerance": 1e-06}'),
    "a regular expression inside": ([matched(**{"not": {"name_regex": "*"}})],
     "rules[0] ('rule 1'): name_regex '*' is not a regular expression: no argument for "
     "repetition operator: * (in RE2's syntax)"),
    "an input below 0": ([patching(straight_through={"input": -1})],
     "rules[0].patch.straight_through.input: expected a whole number >= 0; for example "
     '"input": 1'),
    "a registered gradient without a name": ([patching(override_gradient={"registered": ""})],
     "rules[0] ('rule 1'): patch.override_gradient: \"registered\" is the name of a gradient, "
     "not ''"),
}  # fmt: skip


@pytest.mark.parametrize(("document", "message"), ERRORS.values(), ids=ERRORS)
def test_an_error_walks_to_its_key(document: Any, message: str) -> None:
    with pytest.raises(RulesError) as raised:
        rules_from(document)
    assert str(raised.value) == message


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(RulesError, match=r"holds '\\ud800', half of a surrogate pair"):
        rules_from([{**rule(), "name": "a\ud800"}])


def test_a_rule_that_is_read_stands_beside_dicts() -> None:
    names = [made.author.rule for made in rules_of(MIXED[:2])]
    assert names == ["ready", "rule 2"]
    with pytest.raises(RulesError, match=r"^rules\[2\]\.emit: expected a string"):
        graphpatch.apply(MIXED, graphdef())


FORMULAS = ("dy * 2", "dx*x", "x1", "where(y > 0, dy, 0)")
NEAREST = [
    *((text, f'of a formula: {{"formula":"{text}"}}') for text in FORMULAS),
    ("guided_rlu", "override_gradient: 'guided_rlu' is neither a gradient of the library nor an"),
    ("guided_rlu", "nearest: guided_relu"),
    ("relu6", "Relu6"),
]


@pytest.mark.parametrize(("text", "message"), NEAREST)
def test_a_gradient_that_is_not_there(text: str, message: str) -> None:
    with pytest.raises(RulesError) as raised:
        rules_from([patching(override_gradient=text)])
    assert message in str(raised.value)


DOCUMENT = {"version": 1, "rules": [rule()]}
RULES = json.dumps(DOCUMENT)

# What is not JSON, and what the message says; scripts/provoking/of_rules.py has more.
NOT_JSON: dict[str | bytes, str] = {
    "---\nversion: 1\n": "line 1, column 1: not valid JSON: Expecting value; JSON has no",
    RULES + " // x": "JSON has no comments and no comma before a closing bracket",
    '{"version": 1,\n "rules": [}]': "line 2, column 12: not valid JSON: Expecting value",
    "{version: 1}": "property name enclosed in double quotes",
    '{"version": NaN}': "not valid JSON: JSON is malformed: invalid character (byte 12)",
    '{"version": ' + "7" * 5000 + "}": "not valid JSON: Integer value out of range",
    '{"version": 1}\n{}': "line 2, column 1: not valid JSON: Extra data",
    "\ufeff{x}": "line 1, column 2:",
    b'{"version": "\xff"}': "byte 13 is not text in UTF-8",
    b"\x0a\x10\x0a\x01x\x12\x0bPlaceholder": "it is not text; expected a rules file",
    '{"a":' * 2000 + "1" + "}" * 2000: "it is nested more than 120 levels deep",
}


@pytest.mark.parametrize(("text", "message"), NOT_JSON.items(), ids=NOT_JSON.values())
def test_what_is_not_json_has_its_place(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = tmp_path / "rules.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RulesError) as raised:
        load_rules(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)


def test_what_is_accepted() -> None:
    (plain,), (marked,) = (rules_in(RULES.encode(code), "r") for code in ("utf-8", "utf-8-sig"))
    assert marked.written == plain.written
    assert rules_from({"$schema": "rules.schema.json", **DOCUMENT})
    with pytest.raises(RulesError) as refused:
        rules_in(b"", "mine.json")
    assert rules_in(str(refused.value).partition("like this: ")[2].encode(), "shown")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "gone", "No such file"),
        (tmp_path, "Is a directory; expected"),
    ):
        with pytest.raises(RulesError, match=f"cannot read {path}: {reason}"):
            load_rules(path)
