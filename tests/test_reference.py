"""The reference says what the code has."""

from __future__ import annotations

import json
import re

import click
import pytest
from pages import gradients, rules

import graphpatch
from graphpatch.cli import COMMANDS, cli
from graphpatch.cli.schema import outputs
from graphpatch.gradients.library import LIBRARY
from graphpatch.rules import rules_from
from scripts import reference
from tests.conftest import Run
from tests.examples import ROOT


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_says_what_the_code_has(name: str) -> None:
    if name == "commands":
        pytest.importorskip("click", minversion="8.2", reason="older ones spell usage otherwise")
    text = reference.page(name).read_text()
    assert reference.with_tables(name, text) == text, "run: python scripts/reference.py"


def test_each_gradient_has_its_page() -> None:
    pages = {path.stem: path.read_text() for path in reference.gradient_page("").parent.iterdir()}
    assert pages == gradients.pages(), "run: python scripts/reference.py"


@pytest.mark.parametrize("name", LIBRARY)
def test_the_rule_on_the_page_of_a_gradient_is_one(name: str) -> None:
    [rule] = re.findall(r"```json\n(.*)\n```", reference.gradient_page(name).read_text())
    assert name in json.dumps(rules_from([json.loads(rule)])[0].written_patch)


def test_no_type_of_the_schema_is_left_out() -> None:
    assert rules.unknown() == [], "add it to TABLES, and INSIDE, of scripts/pages/rules.py"


jsonschema = pytest.importorskip("jsonschema")

# What each command is asked for, to see the keys of what it prints.
DIGITS, ROUND = "scripts/models/digits.pb", "docs/examples/round.json"
ASKED = {
    "apply": [ROUND, DIGITS, "--dry-run"],
    "check": [ROUND, "build/reference.pb"],
    "diff": [DIGITS, DIGITS],
    "doctor": [DIGITS, "--from", "image"],
    "gradients": ["clip"],
    "match": [ROUND, DIGITS],
    "ops": [DIGITS, "image"],
    "patterns": ["@swish"],
    "recipes": [],
    "revert": ["build/reference.pb", "--dry-run"],
    "view": [DIGITS, "--from", "image", "--to", "logits"],
    "verify": ["--no-run", DIGITS, "build/reference.pb"],
}


@pytest.mark.parametrize("command", ASKED)
def test_the_json_output_is_what_its_schema_says(command: str, run_cli: Run) -> None:
    (ROOT / "build").mkdir(exist_ok=True)
    graphpatch.apply(ROOT / ROUND, ROOT / DIGITS).model.save(ROOT / "build/reference.pb")
    paths = [ROOT / one if (ROOT / one).suffix else one for one in ASKED[command]]
    found = run_cli(command, *paths, "--json")
    document = json.loads(found.stdout)
    asked = run_cli("schema", "--output", command).json
    assert asked["$id"] == f"urn:graphpatch:output:{command}:1"
    jsonschema.Draft202012Validator.check_schema(asked)
    jsonschema.validate(document, asked)
    assert set(asked["required"]) <= set(document) <= set(asked["properties"])


def test_each_command_with_json_has_a_schema_and_is_asked() -> None:
    found = {name for name in COMMANDS if "as_json" in parameters(name)}
    assert found == set(outputs())
    asked = set(ASKED) | {"split"}  # tests/cli/test_split.py asks it
    assert found == asked, f"add a call to ASKED: {sorted(found ^ asked)}"


def parameters(command: str) -> list[str | None]:
    return [one.name for one in cli.get_command(click.Context(cli), command).params]
