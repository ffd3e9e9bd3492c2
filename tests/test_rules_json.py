"""What is not the JSON of rules: what it looks like, where, and what to do."""

from __future__ import annotations

import json

import pytest

from graphpatch.errors import RulesError
from graphpatch.rules import rules_in

DOCUMENT = {
    "version": 1,
    "rules": [{"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}],
}
RULES = json.dumps(DOCUMENT)

# A file that is refused, and what the message says.
REFUSED = {
    "yaml": ("version: 1\nrules:\n- match: {op: Relu}\n", "this looks like YAML"),
    "yaml with a comment": ("# mine\n\nrules:\n  - match:\n", "this looks like YAML"),
    "a yaml list": ("- match: {op: Relu}\n  patch: {}\n", "this looks like YAML"),
    "yaml with a start": ("---\nversion: 1\n", "yaml.safe_load"),
    "toml": ("[[rules]]\nmatch = 1\n", "this looks like TOML; rules are JSON"),
    "a line comment": ('{\n // x\n "version": 1}', "line 2, column 2: not valid JSON: JSON has no"),
    "a block comment": ('{"version": 1, /* x */ "rules": []}', "column 16: not valid JSON: JSON"),
    "a comment after a value": ('{"version": 1 // x\n}', "JSON has no comments; remove this one"),
    "a comment first": ('# x\n{"version": 1}', "line 1, column 1: not valid JSON: JSON has no"),
    "a comment last": (RULES + " // x", "JSON has no comments"),
    "a comma": ('{"rules": [1,]}', "column 14: not valid JSON: remove the comma before"),
    "a comma in an object": ('{"version": 1,}', "remove the comma before this bracket"),
    "single quotes": ("{'version': 1}", 'strings are in double quotes: "Relu"'),
    "no quotes": ("{version: 1}", "property name enclosed in double quotes"),
    "Python": ('{"stop_gradient": True}', "JSON writes true, false and null"),
    "an end": ('{"rules": [', "it ends too early: a bracket or a quote is not closed"),
    "nothing": ("\n", "the file is empty; a rules file looks like this: {"),
    "more": (RULES + "]", "Extra data"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_it_says_what_it_looks_like(text: str, said: str) -> None:
    with pytest.raises(RulesError) as refused:
        rules_in(text.encode(), "mine.json")
    assert str(refused.value).startswith("mine.json: ")
    assert said in str(refused.value)


def test_what_the_empty_file_is_told_is_a_rules_file() -> None:
    with pytest.raises(RulesError) as refused:
        rules_in(b"", "mine.json")
    assert rules_in(str(refused.value).partition("like this: ")[2].encode(), "shown")


def test_utf16() -> None:
    with pytest.raises(RulesError, match="the text is UTF-16; save the file as UTF-8"):
        rules_in(RULES.encode("utf-16"), "mine.json")


def test_a_byte_order_mark_is_accepted() -> None:
    (plain,), (marked,) = (rules_in(RULES.encode(code), "r") for code in ("utf-8", "utf-8-sig"))
    assert marked.written == plain.written


def test_dollar_schema_is_accepted() -> None:
    (rule,) = rules_in(json.dumps({"$schema": "rules.schema.json", **DOCUMENT}).encode(), "r")
    assert rule.match.op == "Relu"


def test_columns_count_from_behind_the_mark() -> None:
    with pytest.raises(RulesError, match="line 1, column 2:"):
        rules_in(b"\xef\xbb\xbf{x}", "r")
