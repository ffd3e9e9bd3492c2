"""The README's examples do what it says."""

from __future__ import annotations

import json
import re

import pytest

from graphpatch.rules import rules_from
from scripts import readme_tables
from tests.examples import ROOT, blocks, commands, ran, ran_python

README = (ROOT / "README.md").read_text()
CONSOLE = commands(README)


@pytest.mark.parametrize("block", CONSOLE, ids=[block.partition("\n")[0] for block in CONSOLE])
def test_a_command_prints_what_the_readme_shows(block: str) -> None:
    if block.startswith("$ graphpatch verify"):
        pytest.importorskip("tensorflow")
    run = ran(block)
    assert (run.stdout + run.stderr).strip() == block.partition("\n")[2]


def test_there_are_commands_to_run() -> None:
    assert len(CONSOLE) >= 5


def test_the_rules_are_those_of_the_demo() -> None:
    (rules,) = blocks(README, "json")
    assert json.loads(rules) == json.loads((ROOT / "scripts/models/guided.json").read_text())


def test_each_gradient_in_the_text_is_one() -> None:
    inline = re.findall(r'`(\{"(?:formula|scale|clip|registered)": .*?\})`', README)
    assert len(inline) >= 5
    for text in inline:
        rules = [{"match": {}, "patch": {"override_gradient": json.loads(text)}}]
        assert len(rules_from(rules)) == 1


def test_the_python_examples_run() -> None:
    """One after the other, in the order of the text."""
    pytest.importorskip("tensorflow")
    run = ran_python(README)
    assert run.returncode == 0, run.stderr


def test_the_tables_list_what_there_is() -> None:
    assert readme_tables.with_tables(README) == README


def test_every_command_is_in_the_readme() -> None:
    from graphpatch.cli import COMMANDS

    assert [name for name in COMMANDS if f"graphpatch {name}" not in README] == []
