"""Forked processes are like fresh ones, but for what is imported; where they cannot be, fresh."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import forked, order
from tests.pinned import PINNED

CHECKOUT = Path(__file__).parent.parent
# json stands for what is slow to import: no Python has it at its start.
LOADED = "import sys; print('json' in sys.modules)"
TOLD = """
import os, sys
print(sys.argv, os.getcwd(), sorted(os.environ), sys.path[:2], sys.stdin.read(), __name__)
sys.stderr.write(sys.stdout.encoding + sys.stdout.errors + str(sys.stdout.line_buffering))
sys.exit(7)
"""


def ran(start: list[str], *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*start, *words], capture_output=True, check=False, **options)


@pytest.mark.parametrize("way", ["-c", "script", "-m"])
def test_a_program_sees_the_same(way: str, tmp_path: Path) -> None:
    """The path that a process has of its own, too."""
    (tmp_path / "told.py").write_text(TOLD)
    words = {"-c": ["-c", TOLD], "-m": ["-m", "told"], "script": [str(tmp_path / "told.py")]}[way]
    environment = {**os.environ, "ONLY": "here", "PYTHONPATH": "/nowhere"}
    del environment["HOME"]
    options = {"input": b"given", "cwd": tmp_path, "env": environment}
    soon = ran(forked.python("json"), *words, "a", "b c", **options)
    fresh = ran([sys.executable], *words, "a", "b c", **options)
    assert (soon.returncode, soon.stderr) == (7, fresh.stderr)
    assert soon.stdout == fresh.stdout


def test_what_counts_at_the_start_is_given_to_a_fresh_python() -> None:
    for name in ("PYTHONHASHSEED", "TF_XLA_FLAGS"):
        environment = {**os.environ, name: "1"}
        assert ran(forked.python("json"), "-c", LOADED, env=environment).stdout == b"False\n", name
    assert ran(forked.client("of no server"), "-c", LOADED).stdout == b"False\n"


def test_who_is_killed_takes_the_fork_along(tmp_path: Path) -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
    start = [*forked.python("json"), "-c", program]
    with subprocess.Popen(start, stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        child = int(asking.stdout.readline())
        asking.kill()
    for _ in range(500):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.01)
    raise AssertionError("the fork still runs")


def test_a_server_that_ended_is_started_again() -> None:
    server = forked.SERVERS[forked.python("json")[-2]]
    for _ in range(2):
        assert ran(forked.python("json"), "-c", LOADED).stdout == b"True\n"
        server.kill()
        server.wait()


def test_the_longest_come_first_and_tests_stay_in_order() -> None:
    assert [str(path) for path in order.PLACES if not path.is_file()] == []
    first, last, a = (order.HERE / name for name in (order.LONGEST[0], order.LONGEST[-1], "a.py"))
    items = [SimpleNamespace(path=path, name=n) for path in (a, last, first) for n in "ab"]
    order.longest_first(items)
    expected = [(path, name) for path in (first, last, a) for name in "ab"]
    assert [(item.path, item.name) for item in items] == expected


@pytest.mark.parametrize("outer", ["0", "1"])
def test_what_the_tests_are_started_with_does_not_count(outer: str) -> None:
    program = "import os, tests.conftest; print(os.environ['TF_ENABLE_ONEDNN_OPTS'])"
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": outer}
    done = ran([sys.executable, "-c", program], env=environment, cwd=CHECKOUT)
    assert done.stdout.decode().strip() == PINNED["TF_ENABLE_ONEDNN_OPTS"]
