"""No process of a test depends on the processor, or on what the tests were started with."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pinned import PINNED

TESTS = Path(__file__).parent
STARTS = {"run", "Popen", "check_output", "check_call", "call"}


def environments(source: str) -> Iterator[tuple[int, str]]:
    """The line of each process that a file starts, and what it is given as its environment."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr in STARTS and ast.unparse(call.func.value) == "subprocess":
            given = [one.value for one in call.keywords if one.arg == "env"]
            yield call.lineno, ast.unparse(given[0]) if given else "os.environ"


@pytest.mark.slow
def test_no_process_starts_without_the_pin() -> None:
    """An empty environment has none, and TensorFlow 2 turns oneDNN on by the processor then."""
    found = {
        f"{path.relative_to(TESTS)}:{line}": env
        for path in sorted(TESTS.rglob("*.py"))
        for line, env in environments(path.read_text())
    }
    assert len(found) > 20
    assert [place for place, env in found.items() if env == "{}"] == []


@pytest.mark.parametrize("outer", ["0", "1"])
def test_what_the_tests_are_started_with_does_not_count(outer: str) -> None:
    """`tests/conftest.py` pins it for its own process, whose environment others get."""
    program = "import os, tests.conftest; print(os.environ['TF_ENABLE_ONEDNN_OPTS'])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": outer},
        cwd=TESTS.parent,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == (PINNED["TF_ENABLE_ONEDNN_OPTS"], "")
