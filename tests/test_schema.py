"""The JSON Schema of rules files, held against what graphpatch itself takes."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import msgspec
import pytest
from provoking.of_rules import FILES, GRADIENTS, KEYS

from graphpatch.cli.schema import schema
from graphpatch.errors import RulesError
from graphpatch.gradients.library import LIBRARY
from graphpatch.match.ready import READY
from graphpatch.match.spec import Match
from graphpatch.patches import KINDS
from graphpatch.rules import Expect, RuleSpec, decoded, rules_from
from tests.examples import ROOT
from tests.test_rules import ERRORS

jsonschema = pytest.importorskip("jsonschema")
SCHEMA = schema()
DEFINED = SCHEMA["$defs"]


def passes(document: Any) -> bool:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    return bool(validator.is_valid(json.loads(json.dumps(document))))


def test_it_is_a_schema_that_has_every_key() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"].startswith("urn:graphpatch:rules:")
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
    assert DEFINED["RulesFile"]["required"] == ["version", "rules"]
    for name, struct in (("Match", Match), ("Rule", RuleSpec), ("Expect", Expect)):
        legal = {field.encode_name for field in msgspec.structs.fields(struct)}
        assert DEFINED[name]["properties"].keys() == legal
        assert DEFINED[name]["additionalProperties"] is False
    assert DEFINED["Patch"]["properties"].keys() >= KINDS.keys()


def properties() -> list[str]:
    forms = [(name, form) for name, one in DEFINED.items() for form in (one, *one.get("anyOf", ()))]
    return [f"{name}.{key}" for name, form in forms for key in form.get("properties", ())]


@pytest.mark.parametrize("name", [name for name in properties() if name[9:] not in LIBRARY])
def test_each_property_has_a_description_and_an_example(name: str) -> None:
    typ, _, key = name.partition(".")
    forms = (DEFINED[typ], *DEFINED[typ].get("anyOf", ()))
    part = next(one["properties"][key] for one in forms if key in one.get("properties", ()))
    assert part["description"].endswith(".")
    [example] = part["examples"]
    validator = jsonschema.Draft202012Validator({**part, "$defs": DEFINED})
    assert validator.is_valid(json.loads(json.dumps(example)))


RULE = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}


def test_what_is_legal_passes() -> None:
    document = {"version": 1, "rules": [RULE]}
    for legal in ([RULE], document, {"$schema": "x", **document}):
        assert passes(legal)
    for name in LIBRARY:
        needed = {p.name: 1 for p in LIBRARY[name].parameters if p.default is None}
        assert passes([RULE | {"patch": {"override_gradient": {name: needed} if needed else name}}])
    for name in READY:
        assert passes([RULE | {"match": {"pattern": f"@{name}"}}])


def test_the_rules_of_the_repository_and_its_pages_pass() -> None:
    files = [*(ROOT / "tests/data").glob("*.json"), *(ROOT / "scripts").rglob("*.json")]
    texts = [path.read_text() for path in files]
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        texts += re.findall(r"```json\n(.*?)```", page.read_text(), re.S)
    rules = [text for text in texts if '"rules"' in text]
    assert len(rules) >= 5
    assert [text for text in rules if not passes(json.loads(text))] == []


# What the schema passes and graphpatch refuses; docs/reference/rules.md has a line for each
# reason.
PASSED = {
    "a regular expression": {"a regular expression inside", "a regular expression that is not one"},
    "the text of a pattern": {"a typo in a pattern"},
    "a pattern in JSON": {
        "an edge to nowhere", "an optional node that is not there",
        "a closed node that is not there", "two nodes apart",
    },
    "`on`": {"on of no op of the pattern"},
    "`clip`": {"a clip upside down"},
    "`version`": {"a version with a point"},
    "a formula": {
        "a formula with a typo", "a formula that is cut short",
        "a formula with a name that is not there", "Python in a formula", "`and` spelled &&",
        "a power spelled ^", "the larger of two numbers as max",
    },
    "`expect`": {"a maximum below the minimum"},
    "Python": {"Python without --allow-python"},
    "no rules": {"an empty list", "no rules in the list"},
}  # fmt: skip


APPLIED = ("a value that is not one", "an input that the op does not have",
           "an attr that the op does not have", "two formulas for one input")  # fmt: skip
NODE = {"op": "Relu"}
A_NODE: dict[str, Any] = {"nodes": {"a": NODE}}


def matching(**match: Any) -> list[Any]:
    return [RULE | {"match": match}]


# What graphpatch refuses, and messages of which are not held elsewhere.
MORE: dict[str, Any] = {
    "an edge to nowhere": matching(pattern=A_NODE | {"edges": [["a", "b"]]}),
    "an optional node that is not there": matching(pattern=A_NODE | {"optional": ["z"]}),
    "a closed node that is not there": matching(pattern=A_NODE | {"closed": ["z"]}),
    "two nodes apart": matching(pattern={"nodes": {"a": NODE, "b": NODE}}),
    "no nodes": matching(pattern={"nodes": {}}),
    "on of no op of the pattern": [
        {"match": {"pattern": "Relu"}, "patch": {"stop_gradient": True, "on": "x"}}
    ],
    "a clip upside down": [RULE | {"patch": {"override_gradient": {"clip": {"min": 1, "max": 0}}}}],
    "a version with a point": {"version": 1.0, "rules": [RULE]},
    "no such class": matching(**{"class": "act"}),
    "control alone": matching(control=True),
    **{f"{key} of foo": matching(**{key: {"foo": NODE}}) for key in ("inputs", "consumers")},
    "inputs of -1": matching(inputs={"-1": NODE}),
    "a value of nothing": matching(value={}),
    "an attr of nothing": matching(attr={"T": {}}),
    "an attr of none": matching(attr={"T": {"in": []}}),
    "inside nothing": matching(inside={}),
    "between nothing": matching(between={"from": [], "to": "b"}),
    "upstream of nothing": matching(upstream_of={"of": []}),
    **{f"nth {at}": matching(nth=at) for at in ("firstt", "1:2:3:4", "::0")},
    **{f"{key} of none": matching(**{key: []}) for key in ("class", "nth", "taken")},
}


@pytest.mark.parametrize("at", ["first", "last", ":-1", "::2", "1:", 3, [0, -1]])
def test_legal_places_pass(at: Any) -> None:
    assert passes(matching(nth=at))
    assert rules_from(matching(nth=at))


def test_what_it_passes_and_graphpatch_refuses() -> None:
    documents = {name: document for name, (document, _) in ERRORS.items()} | MORE
    for case in (*FILES, *KEYS, *GRADIENTS):
        text = case.files.get("bad.json", b"")
        with contextlib.suppress(RulesError):  # it is not JSON
            documents[case.what] = decoded(text.encode() if isinstance(text, str) else text)
    for name in APPLIED:  # what is legal until a graph is there
        assert rules_from(documents.pop(name)), name
    for document in documents.values():
        with pytest.raises(RulesError):
            rules_from(document)
    passed = {name for name, document in documents.items() if passes(document)}
    assert passed == set().union(*PASSED.values())


def test_the_page_says_so() -> None:
    page = (ROOT / "docs/reference/rules.md").read_text().partition("### What the schema")[2]
    assert re.findall(r"^\| (.+?) \| ", page, re.M)[1:] == [*PASSED]
