"""The README's examples do what it says, and it stays short."""

from __future__ import annotations

import json
import re

import pytest

from graphpatch.rules import rules_from
from tests.examples import ROOT, blocks, commands, pages, ran, ran_python

README = (ROOT / "README.md").read_text()
CONSOLE = commands(README)
INLINE = re.compile(r'`(\{"(?:formula|scale|clip|registered|override_gradient)": .*?\})`')


@pytest.mark.parametrize("block", CONSOLE, ids=[block.partition("\n")[0] for block in CONSOLE])
def test_a_command_prints_what_the_readme_shows(block: str) -> None:
    if block.startswith("$ graphpatch verify"):
        pytest.importorskip("tensorflow")
    run = ran(block)
    assert (run.stdout + run.stderr).strip() == block.partition("\n")[2]


def test_there_are_commands_to_run() -> None:
    assert len(CONSOLE) >= 5
    assert len(blocks(README, "python")) >= 1


def test_it_fits_on_few_screens() -> None:
    assert len(README.splitlines()) <= 200


def test_each_gradient_in_the_text_is_one() -> None:
    """That of the README and of all other pages."""
    found = [text for page in pages() for text in INLINE.findall(page.read_text())]
    inline = [text for text in found if "..." not in text and not re.search(r": [A-Z]+\b", text)]
    assert len(inline) >= 10
    for text in inline:
        found = json.loads(text)
        patch = found if "override_gradient" in found else {"override_gradient": found}
        assert len(rules_from([{"match": {}, "patch": patch}])) == 1


def test_the_python_examples_run() -> None:
    """One after the other, in the order of the text."""
    pytest.importorskip("tensorflow")
    run = ran_python(README)
    assert run.returncode == 0, run.stderr


def test_every_command_is_in_the_readme() -> None:
    from graphpatch.cli import COMMANDS

    assert [name for name in COMMANDS if f"graphpatch {name}" not in README] == []
