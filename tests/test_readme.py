"""The README's examples do what it says."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from graphpatch.rules import rules_from
from scripts import readme_tables

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CONSOLE = [block.strip() for block in re.findall(r"```console\n(.*?)```", README, re.S)]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


@pytest.fixture(autouse=True)
def _in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    (ROOT / "build").mkdir(exist_ok=True)
    monkeypatch.chdir(ROOT)


def ran(block: str) -> subprocess.CompletedProcess[str]:
    """What the command of a console block says."""
    words = shlex.split(block.partition("\n")[0])
    assert words[:2] == ["$", "graphpatch"]
    command = [sys.executable, "-m", "graphpatch", *words[2:]]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("block", CONSOLE, ids=[block.partition("\n")[0] for block in CONSOLE])
def test_a_command_prints_what_the_readme_shows(block: str) -> None:
    run = ran(block)
    assert (run.stdout + run.stderr).strip() == block.partition("\n")[2]


def test_there_are_commands_to_run() -> None:
    assert len(CONSOLE) >= 5


def test_the_rules_are_those_of_the_demo() -> None:
    (rules,) = blocks("json")
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
    for block in CONSOLE:
        if " -o " in block:  # what the examples then load
            assert ran(block).returncode == 0
    code = "\n".join(blocks("python"))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_tables_list_what_there_is() -> None:
    assert readme_tables.with_tables(README) == README


def test_every_command_is_in_the_readme() -> None:
    from graphpatch.cli import COMMANDS

    assert [name for name in COMMANDS if f"graphpatch {name}" not in README] == []
