"""Standard streams that are full, closed or devices, and interrupts: nothing is half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT, Run
from tests.refusals import everything, refused


def shell(line: str, folder: Path, *, limit: str = "") -> subprocess.CompletedProcess[str]:
    """Run `graphpatch` as a shell does, with its redirections."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    text = f"{limit} {sys.executable} -m graphpatch {line}"
    return subprocess.run(
        ["/bin/bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True
    )


WRITING = (
    "apply rules.json model.pb -o out.pb",
    "apply rules.json large.pb -o -",
    "apply rules.json saved -o out --json",
    "apply rules.json file://$PWD/model.pb -o out.pb --json",
    "view model.pb -o out.html",
    "recipes guided_backprop --save out.json",
)


@pytest.mark.every(3)
@pytest.mark.parametrize("stream", [">&-", ">/dev/full"])
@pytest.mark.parametrize("line", WRITING)
def test_who_cannot_tell_of_it_writes_nothing(folder: Path, line: str, stream: str) -> None:
    before = everything(folder)
    done = shell(f"{line} {stream}", folder)
    assert done.returncode == 1
    assert "standard output" in done.stderr
    assert "Traceback" not in done.stderr
    assert everything(folder) == before


def test_without_standard_error_the_work_is_done(folder: Path) -> None:
    assert shell(f"{WRITING[0]} 2>&-", folder).returncode == 0
    assert (folder / "out.pb").stat().st_size > 0


def test_view_with_rules_that_fail_writes_no_page(run_cli: Run, folder: Path) -> None:
    (folder / "other.json").write_text((folder / "rules.json").read_text().replace("Relu", "Elu"))
    before = everything(folder)
    done = run_cli("view", "model.pb", "--rules", "other.json", cwd=folder)
    assert (done.code, done.raw) == (1, b"")
    assert everything(folder) == before


START_FAILS = """
from concurrent.futures import ProcessPoolExecutor as Pool
Pool.submit = lambda *args: (_ for _ in ()).throw(OSError(11, "no process"))
from graphpatch.cli import main
main()
"""


def test_workers_that_cannot_start_leave_no_manifest(run_cli: Run, folder: Path) -> None:
    args = ("apply", "rules.json", "model.pb", "large.pb", "-o", "new/", "-j", "2")
    done = run_cli(*args, cwd=folder, command=[sys.executable, "-c", START_FAILS])
    refused(done, "the worker processes cannot be started: [Errno 11] no process")
    assert not (folder / "new").exists()


STARTED = "from graphpatch.__main__ import main; print('up', flush=True); main()"


@pytest.mark.parametrize("seconds", [0.01, 0.1, 0.3, 1.0])
def test_an_interrupt_soon_after_the_start_says_nothing(folder: Path, seconds: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED, "apply", "rules.json", "large.pb", "-o", "out.pb"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()  # Python is up: before that an interrupt is Python's to tell
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode in (130, -signal.SIGINT, 0)
    assert said.strip() == ""


def test_rules_come_through_a_pipe_and_from_no_device(folder: Path) -> None:
    assert shell("match <(cat rules.json) model.pb", folder).returncode == 0
    (folder / "zero.json").symlink_to("/dev/zero")
    for line, said in (
        ("match zero.json model.pb", "zero.json: it is a device"),
        ("apply rules.json @zero.json -o out/", "zero.json: it is a device"),
        ("ops - </dev/zero", "standard input: it is a device"),
        ("match - model.pb </dev/zero", "standard input: it is a device"),
    ):
        done = shell(line, folder, limit="ulimit -v 4000000;")
        assert (done.returncode, done.stdout) == (1, "")
        assert said in done.stderr
