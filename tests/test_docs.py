"""The examples of the documentation's pages do what the pages say."""

from __future__ import annotations

import json
import re

import pytest

import graphpatch
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


@pytest.fixture(scope="module")
def failed() -> dict[str, str]:
    pytest.importorskip("tensorflow")
    return failed_together({name: PAGES[name] for name in PYTHON})


@pytest.mark.parametrize("name", PYTHON)
def test_the_python_examples_of_a_page_run(name: str, failed: dict[str, str]) -> None:
    """One after the other, in the order of the page."""
    assert failed.get(name) is None, failed[name]


def test_a_page_that_fails_is_told() -> None:
    found = failed_together({"good": "```python\nx = 1\n```", "bad": "```python\nx\n```"})
    assert list(found) == ["bad"]
    assert "NameError" in found["bad"]


def test_rules_files_on_a_page_are_the_files_that_it_names() -> None:
    shown = [found for page in PAGES.values() for found in FILES.findall(page)]
    assert len(shown) >= 3
    for name, text in shown:
        assert json.loads((ROOT / name).read_text()) == json.loads(text)


def test_commands_that_show_their_output_are_run() -> None:
    """They stand in console blocks; a block of text shows what no test can run, and says why."""
    texts = [(name, block) for name, page in PAGES.items() for block in blocks(page, "text")]
    assert [name for name, block in texts if "$ graphpatch" in block] == []


def test_patterns_that_explain_the_syntax_are_patterns() -> None:
    shown = next(
        block for block in blocks(PAGES["docs/reference/patterns.md"], "text") if "->" in block
    )
    patterns = [re.split(r" {3,}", line)[0] for line in shown.splitlines()]
    assert all("matches" not in text and graphpatch.pattern(text) for text in patterns)


def test_the_examples_need_no_more_than_the_package() -> None:
    """A user who installed graphpatch has no tests of it."""
    for name, page in PAGES.items():
        code = "\n".join(blocks(page, "python"))
        if name != "docs/CONTRIBUTING.md":
            assert not re.search(r"^\s*(?:from|import) (?:tests|scripts)\b", code, re.M), name
