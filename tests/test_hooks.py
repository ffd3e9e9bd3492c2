"""The pre-commit hook and the GitHub action check models as their files say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import graphpatch
from tests.examples import ROOT

DIGITS, RULES = ROOT / "scripts/models/digits.pb", ROOT / "tests/data/relu.json"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with a patched model and one that is not; a `graphpatch` on the path beside it."""
    command = f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m graphpatch "$@"\n'
    (tmp_path / "graphpatch").write_text(command)
    (tmp_path / "graphpatch").chmod(0o755)
    (tmp_path / "bare.pb").write_bytes(DIGITS.read_bytes())
    graphpatch.apply(RULES, DIGITS).save(tmp_path / "patched.pb")
    return tmp_path


def path_with(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **more}


def test_the_hook_runs_check_on_model_files(models: Path) -> None:
    """pre-commit appends the changed files that `files` matches to `entry` and its `args`."""
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text()
    keys = dict(re.findall(r"^[ -] (\w+): (.*)$", hook, re.M))
    assert keys["id"] == "graphpatch-check"
    names = ["patched.pb", "bare.pb", "m.pbtxt", "m.meta", "model.json", "README.md"]
    chosen = [name for name in names if re.search(keys["files"], name)]
    assert chosen == ["patched.pb", "bare.pb", "m.pbtxt", "m.meta"]
    for name, code in (("patched.pb", 0), ("bare.pb", 1)):
        command = [*keys["entry"].split(), str(RULES), name]
        done = subprocess.run(command, cwd=models, env=path_with(models), check=False)
        assert done.returncode == code


def test_the_action_runs_check_on_its_inputs(models: Path) -> None:
    action = (ROOT / "action.yml").read_text()
    script = action.rpartition("run: |\n")[2]
    for name, code in (("patched.pb", 0), ("bare.pb", 1), ("*.pb", 1)):
        environment = path_with(models, RULES=str(RULES), MODELS=name)
        done = subprocess.run(["bash", "-e", "-c", script], cwd=models, env=environment)
        assert done.returncode == code
    assert set(re.findall(r"\$\{\{ inputs\.([\w-]+) \}\}", action)) == set(
        re.findall(r"^  ([\w-]+):$", action.partition("runs:")[0], re.M)
    )
