"""The examples of the documentation's pages do what the pages say."""

from __future__ import annotations

import pytest

from tests.examples import ROOT, blocks, commands, ran, ran_python

PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.glob("docs/**/*.md")}
CONSOLE = [(name, block) for name, page in PAGES.items() for block in commands(page)]
PYTHON = [name for name, page in PAGES.items() if blocks(page, "python")]


@pytest.mark.parametrize(
    ("name", "block"),
    CONSOLE,
    ids=[f"{name}: {block.partition(chr(10))[0]}" for name, block in CONSOLE],
)
def test_a_command_prints_what_the_page_shows(name: str, block: str) -> None:
    if block.startswith("$ graphpatch verify") or " --run" in block:
        pytest.importorskip("tensorflow")
    run = ran(block)
    assert (run.stdout + run.stderr).strip() == block.partition("\n")[2]


@pytest.mark.parametrize("name", PYTHON)
def test_the_python_examples_of_a_page_run(name: str) -> None:
    """One after the other, in the order of the page."""
    pytest.importorskip("tensorflow")
    run = ran_python(PAGES[name])
    assert run.returncode == 0, run.stderr
