"""What the README says is there, and it stays short; test_docs.py runs its examples."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from graphpatch.rules import rules_from
from tests.examples import ROOT, blocks, commands, pages

README = (ROOT / "README.md").read_text()
CONSOLE = commands(README)
INLINE = re.compile(r'`(\{"(?:formula|scale|clip|registered|override_gradient)": .*?\})`')


def test_there_are_commands_to_run() -> None:
    assert len(CONSOLE) >= 5
    assert len(blocks(README, "python")) >= 1


@pytest.mark.parametrize("line", [1, 2])
def test_the_quick_start_does_what_it_says(line: int, run_cli: Any, tmp_path: Path) -> None:
    """Each line but the first, which installs; the second needs what the first wrote."""
    quick_start = blocks(README, "sh")[0].splitlines()
    assert len(quick_start) == 3
    shutil.copy(ROOT / "scripts/models/numerals.pb", tmp_path)
    for command in quick_start[1 : line + 1]:
        name, *words = shlex.split(command.removesuffix(" --open"))
        assert name == "graphpatch"
        done = run_cli(*(word.replace("scripts/models", str(tmp_path)) for word in words))
        assert done.code == 0, done.stderr
    written = {1: "numerals.patched.pb", 2: "numerals.patched.html"}[line]
    assert (tmp_path / written).is_file()


def test_it_fits_on_few_screens() -> None:
    assert len(README.splitlines()) <= 220


def test_each_gradient_in_the_text_is_one() -> None:
    """That of the README and of all other pages."""
    found = [text for page in pages() for text in INLINE.findall(page.read_text())]
    inline = [text for text in found if "..." not in text and not re.search(r": [A-Z]+\b", text)]
    assert len(inline) >= 10
    for text in inline:
        found = json.loads(text)
        patch = found if "override_gradient" in found else {"override_gradient": found}
        assert len(rules_from([{"match": {}, "patch": patch}])) == 1


def test_every_command_is_in_the_readme() -> None:
    from graphpatch.cli import COMMANDS

    assert [name for name in COMMANDS if f"graphpatch {name}" not in README] == []
