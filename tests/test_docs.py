"""The examples of the documentation's pages do what the pages say."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.cli import COMMANDS
from graphpatch.rules import rules_from
from tests.examples import ROOT, blocks, commands, failed_together, pages, ran

PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in pages()}
CONSOLE = [(name, block) for name, page in PAGES.items() for block in commands(page)]
PYTHON = [name for name, page in PAGES.items() if blocks(page, "python")]
FILES = re.compile(r'```json title="(.*?)"\n(.*?)```', re.S)
NEEDS_TENSORFLOW = re.compile(
    r"^\$ graphpatch (?:verify|references|split .* -o) | --run| build/references"
)


@pytest.mark.parametrize(
    ("name", "block"),
    CONSOLE,
    ids=[f"{name}: {block.partition(chr(10))[0]}" for name, block in CONSOLE],
)
def test_a_command_prints_what_the_page_shows(name: str, block: str) -> None:
    if NEEDS_TENSORFLOW.search(block):
        pytest.importorskip("tensorflow")
    run = ran(block)
    assert (run.stdout + run.stderr).strip() == block.partition("\n")[2]


@cache
def failed(half: int) -> dict[str, str]:
    """The tracebacks of every second page: a half in one process, within seconds."""
    return failed_together({name: PAGES[name] for name in PYTHON[half::2]})


@pytest.mark.parametrize("name", PYTHON)
def test_the_python_examples_of_a_page_run(name: str) -> None:
    """One after the other, in the order of the page."""
    pytest.importorskip("tensorflow")
    assert failed(PYTHON.index(name) % 2).get(name) is None, failed(PYTHON.index(name) % 2)[name]


def test_what_a_page_shows_of_files_and_commands() -> None:
    """Rules files are those that it names; what a command prints stands in a block that is run."""
    shown = [found for page in PAGES.values() for found in FILES.findall(page)]
    assert len(shown) >= 3
    for name, text in shown:
        assert json.loads((ROOT / name).read_text()) == json.loads(text)
    for name, page in PAGES.items():
        assert not any("$ graphpatch" in block for block in blocks(page, "text")), name
        code = "\n".join(blocks(page, "python"))
        if name != "docs/CONTRIBUTING.md":  # a user who installed graphpatch has no tests of it
            assert not re.search(r"^\s*(?:from|import) (?:tests|scripts)\b", code, re.M), name


def test_patterns_that_explain_the_syntax_are_patterns() -> None:
    shown = next(
        block for block in blocks(PAGES["docs/reference/patterns.md"], "text") if "->" in block
    )
    patterns = [re.split(r" {3,}", line)[0] for line in shown.splitlines()]
    assert all("matches" not in text and graphpatch.pattern(text) for text in patterns)


README = (ROOT / "README.md").read_text()
INLINE = re.compile(r'`(\{"(?:formula|scale|clip|registered|override_gradient)": .*?\})`')


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


def test_each_gradient_in_the_text_is_one() -> None:
    """That of the README and of all other pages."""
    found = [text for page in PAGES.values() for text in INLINE.findall(page)]
    inline = [text for text in found if "..." not in text and not re.search(r": [A-Z]+\b", text)]
    assert len(inline) >= 10
    for gradient in map(json.loads, inline):
        patch = gradient if "override_gradient" in gradient else {"override_gradient": gradient}
        assert len(rules_from([{"match": {}, "patch": patch}])) == 1


def test_every_command_is_in_the_readme() -> None:
    assert [name for name in COMMANDS if f"graphpatch {name}" not in README] == []
    assert len(README.splitlines()) <= 220, "make room for it: say something else in fewer lines"


NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def outputs(notebook: Any) -> list[list[str]]:
    """What each cell prints and shows, without what TensorFlow says on stderr."""
    cells = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    return [[_text(one) for one in cell if one.get("name") != "stderr"] for cell in cells]


def _text(output: Any) -> str:
    data = output.get("data", {})
    return f"{output.get('text') or data.get('text/plain')}{data.get('text/html', '')}"


@pytest.mark.slow
def test_the_notebook_shows_what_its_cells_give() -> None:
    pytest.importorskip("tensorflow")
    for name in ("nbformat", "nbclient", "ipykernel"):
        pytest.importorskip(name, reason="nbformat, nbclient, ipykernel run it")
    import nbclient
    import nbformat

    stored = nbformat.read(NOTEBOOK, as_version=4)
    fresh = nbformat.read(NOTEBOOK, as_version=4)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    options = {"metadata": {"path": str(ROOT)}}
    nbclient.NotebookClient(fresh, timeout=300, kernel_name="python3", resources=options).execute()
    assert outputs(fresh) == outputs(stored)
    assert any("<table>" in text for cell in outputs(stored) for text in cell)
