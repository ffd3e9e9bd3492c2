"""The recipes of docs/CONTRIBUTING.md: their examples, added to a copy of the package, work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.examples import ROOT, blocks
from tests.graphs import function, graphdef, node

PAGE = (ROOT / "docs" / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = PAGE.partition("## Recipes\n")[2].partition("\n## ")[0]
# The heading of a recipe, and what its line in the table calls it.
TITLES = {
    "Add a gradient to the library": "a gradient",
    "Add a kind of patch": "a kind of patch",
    "Add a key to match": "a key to match",
    "Add a command": "a command",
    "Add a fix to doctor": "a fix of doctor",
}
EXAMPLE = re.compile(r"# graphpatch/(\S+?\.py)(?:, before: (.*))?\n")

# Prints what the examples do, where TensorFlow cannot be imported.
PROGRAM = """
import json, sys
sys.modules["tensorflow"] = None
import numpy
import graphpatch
from graphpatch.cli import cli
from graphpatch.cli.schema import output_schema
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.interpreter import gradient
from graphpatch.cli.schema import schema

def applied(match, patch):
    return graphpatch.apply([{"match": match, "patch": patch}], "model.pb")

def refused(match, patch):
    try:
        applied(match, patch)
    except graphpatch.GraphpatchError as error:
        return str(error)

def keys(name):
    return schema()["$defs"][name]["properties"]

result = applied({"input_count": 2}, {"scale_gradient": 0.5})
result.save("patched.pb")
before = graphpatch.load("model.pb").graph_def()
doctored = graphpatch.diagnose("model.pb", ["x"], ["mod"], fix=True)
squash, zero = LIBRARY["squash"].formula({}), numpy.zeros(())
cli(["functions", "model.pb", "--json"], standalone_mode=False)
print(json.dumps({
    "package": graphpatch.__file__,
    "matched": [one["op"] for one in result.report["rules"][0]["matches"]],
    "patched": [node.name for node in result.graph_def().node],
    "reverted": graphpatch.revert("patched.pb").graph_def() == before,
    "told": [keys("Patch")["scale_gradient"]["examples"], keys("Match")["input_count"]["examples"]],
    "output": sorted(output_schema("functions")["properties"]),
    "squash": gradient(squash, [zero], [zero], [zero - 3], {})[0].item(),
    "fixed": {rule["name"].partition(":")[0]: rule["patch"] for rule in doctored.rules},
    "refused": [
        refused({"op": "Relu"}, {"scale_gradient": 1}),
        refused({"op": "Relu"}, {"scale_gradient": "2"}),
        refused({"op": "Relu", "input_count": "2"}, {"scale_gradient": 2}),
        refused({"op": "Relu", "input_count": 2}, {"scale_gradient": 2}),
    ],
}))
"""


def examples(title: str) -> list[tuple[str, str, str]]:
    """Of each example of a recipe: its file, the line that it goes before, and its text."""
    text = RECIPES.partition(f"### {title}\n")[2].partition("\n### ")[0]
    found = []
    for block in map(textwrap.dedent, blocks(text, "text")):
        first = EXAMPLE.match(block)
        assert first is not None, block
        found.append((first[1], first[2] or "", block[first.end() :]))
    return found


def add(package: Path, name: str, before: str, text: str) -> None:
    """Write an example into a copy of the package, as its first line says."""
    path = package / name
    if not before:
        assert not path.exists()
        path.write_text(text, encoding="utf-8")
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if line.strip().startswith(before))
    path.write_text("".join([*lines[:place], text, *lines[place:]]), encoding="utf-8")


def test_the_table_has_each_recipe_and_its_files_and_tests() -> None:
    assert re.findall(r"^### (.*)", RECIPES, re.M) == list(TITLES)
    for title, called in TITLES.items():
        [row] = re.findall(rf"^\| {called} \| (.*?) \|", RECIPES, re.M)
        assert re.findall(r"`(.*?)`", row) == [*dict.fromkeys(name for name, *_ in examples(title))]
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    tests = {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.M)}
    assert set(re.findall(r"`(test_\w+)`", RECIPES)) <= tests


@pytest.mark.slow
@pytest.mark.parametrize("title", TITLES)
def test_the_tests_of_the_table_fail_until_the_rest_is_there(title: str, tmp_path: Path) -> None:
    """The examples alone, in a copy of the checkout."""
    made = shutil.ignore_patterns("__pycache__", "*.patched.*", "pictures")
    for name in ("graphpatch", "tests", "scripts", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=made)
    for name in ("setup.cfg", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    for example in examples(title):
        add(tmp_path / "graphpatch", *example)
    [row] = re.findall(rf"^\| {TITLES[title]} \|.*\| (.*?) \|$", RECIPES, re.M)
    named = set(re.findall(r"`(test_\w+)`", row))
    files = [
        path
        for path in (tmp_path / "tests").rglob("test_*.py")
        if named & set(re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M))
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-rf", "-k", " or ".join(named)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [*command, *files], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert set(re.findall(r"^FAILED \S+::(\w+)", ran.stdout, re.M)) == named, ran.stdout


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the package with all examples in it does."""
    folder = tmp_path_factory.mktemp("contributing")
    shutil.copytree(ROOT / "graphpatch", folder / "graphpatch")
    for title in TITLES:
        for example in examples(title):
            add(folder / "graphpatch", *example)
    body = function("half", ["a"], [node("y", "Relu", "a")], {})
    nodes = node("x", "Placeholder"), node("relu", "Relu", "x"), node("mod", "Mod", "x", "relu")
    model = graphdef(*nodes, functions=[body])
    (folder / "model.pb").write_bytes(model.SerializeToString())
    command, environment = (
        [sys.executable, "-c", PROGRAM],
        {**os.environ, "PYTHONPATH": str(folder)},
    )
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert not ran.returncode, ran.stderr
    printed, found = ran.stdout.splitlines()
    return {"printed": json.loads(printed), "folder": folder, **json.loads(found)}


def test_the_examples_work_and_refuse_what_is_wrong(done: dict[str, Any]) -> None:
    assert Path(done["package"]).parent == done["folder"] / "graphpatch"
    assert done["squash"] == -3 / (1 + 3)
    assert {"mod", "mod/forward"} <= set(done["patched"])
    assert done["reverted"]
    assert done["matched"] == ["mod"]
    assert done["told"] == [[0.5], [2]]  # the schema has both
    assert done["printed"] == {"model": "model.pb", "functions": {"half": 1}}
    assert done["output"] == ["functions", "model"]
    fix = {"override_gradient": {"formula": ["dy", "-dy * (x0 - y) / x1"]}}
    assert done["fixed"]["its true gradient"] == fix
    nothing, number, whole, other = done["refused"]
    assert nothing.endswith("a factor of 1 changes nothing")
    said = "rules[0].patch.scale_gradient: expected a number, found a string; for example"
    assert number.startswith(said)
    assert "input_count: expected a whole number, found a string" in whole
    assert "the number of its inputs is 1" in other
