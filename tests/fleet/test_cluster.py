"""A Dask cluster of separate processes does what this machine does; and where it cannot."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.fleet.run import MANIFEST_NAME
from tests import graphs
from tests.conftest import CHECKOUT, Run
from tests.refusals import LARGE, RULE, everything, refused, rules_text

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "reg").mkdir()
    for place in range(20):
        (tmp_path / "reg" / f"{place}.pb").write_bytes(LARGE)
    (tmp_path / "rules.json").write_text(rules_text(RULE))
    return tmp_path


def outputs(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in everything(folder).items() if name != MANIFEST_NAME}


def test_it_writes_what_this_machine_does(run_cli: Run, folder: Path, cluster: Any) -> None:
    args = ["apply", "rules.json", "reg", "--json", "-o"]
    here = run_cli(*args, "here", "-j", "1", cwd=folder)
    there = run_cli(*args, "there", "--scheduler", cluster.scheduler_address, cwd=folder)
    assert (there.code, there.stderr) == (0, "20 models: 20 patched\n")
    assert outputs(folder / "there") == outputs(folder / "here")
    assert report(here) == report(there)
    again = [*args, "there", "--resume", "--scheduler", cluster.scheduler_address]
    assert run_cli(*again, cwd=folder).stderr == "20 models: 0 patched, 20 skipped\n"
    checked = ["check", "rules.json", "there", "--scheduler", cluster.scheduler_address]
    assert run_cli(*checked, cwd=folder).code == 0


def report(done: Any) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    known = {"seconds": 0, "output": ""}
    return sorted((line | known for line in lines), key=lambda line: str(line["model"]))


def test_ten_workers_killed_at_random_moments(folder: Path, run_cli: Run, cluster: Any) -> None:
    for place in range(300):
        (folder / "reg" / f"{place}.pb").write_bytes(LARGE)
    graphs.saved_model_folder(folder / "reg/saved", graphs.metagraph(graphs.sample(), "a"))
    (folder / "reg" / "bad.pb").write_bytes(LARGE[:-1])
    run_cli("apply", "rules.json", "reg", "-o", "here", "-j", "1", cwd=folder)
    chosen, killed, runs = random.Random(5), 0, 0
    while killed < 10:
        killed += disturbed(folder, f"out{runs}", cluster, chosen, 10 - killed)
        assert outputs(folder / f"out{runs}") == outputs(folder / "here")
        runs += 1
        assert runs < 6


def disturbed(folder: Path, out: str, cluster: Any, chosen: random.Random, most: int) -> int:
    """One run over the cluster, and how many of its workers were killed meanwhile."""
    args = ("apply", "rules.json", "reg", "-o", out, "--scheduler", cluster.scheduler_address)
    process = subprocess.Popen(
        [sys.executable, "-m", "graphpatch", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{CHECKOUT}:{os.environ.get('PYTHONPATH', '')}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    killed = set[int]()
    while process.poll() is None:
        time.sleep(chosen.uniform(0, 0.4))
        # Those that are at work: a nanny tells of a worker's process while that starts, too.
        pids = {one.pid for one in cluster.workers.values() if one.pid} - killed
        if (folder / out / MANIFEST_NAME).exists() and pids and len(killed) < most:
            pid = chosen.choice(sorted(pids))
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    _, said = process.communicate()
    # A slow machine shows the progress before it.
    assert "302 models: 301 patched, 1 failed" in said.splitlines(), said
    assert process.returncode == 1
    return len(killed)


# What cannot be done, each one clear message, and nothing written.


@pytest.fixture
def scheduler() -> Iterator[str]:
    """A scheduler without workers."""
    more = {"processes": False, "protocol": "tcp", "dashboard_address": None}
    with distributed.LocalCluster(n_workers=0, **more) as running:
        yield running.scheduler_address


WORKER = "from distributed.cli.dask_worker import main; main()"
NO_GRAPHPATCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "graphpatch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
"""
OLDER = "import graphpatch; graphpatch.__version__ = '0.0.7'\n"
BLIND = """
import sys
def blind(event, args):
    if event == "open" and str(args[0]).startswith({folder!r}):
        raise FileNotFoundError(args[0])
sys.addaudithook(blind)
"""
CANNOT = {
    "without graphpatch": (NO_GRAPHPATCH, "has no graphpatch, or another one: install graphpatch "),
    "another version": (OLDER, f"has graphpatch 0.0.7, and this is {graphpatch.__version__}; they"),
    "without the files": (BLIND, "does not see reg/0.pb as this machine does; the"),
}


@pytest.mark.parametrize(("first", "said"), CANNOT.values(), ids=CANNOT)
def test_unfit_workers(run_cli: Run, folder: Path, scheduler: str, first: str, said: str) -> None:
    code = first.replace("{folder!r}", repr(str(folder))) + WORKER
    process = subprocess.Popen(
        [sys.executable, "-c", code, scheduler, "--no-nanny", "--no-dashboard"],
        cwd=CHECKOUT,
        stderr=subprocess.DEVNULL,
    )
    try:
        args = ("apply", "rules.json", "reg", "-o", "out", "--scheduler", scheduler)
        done = run_cli(*args, cwd=folder)
    finally:
        process.terminate()
        process.wait()
    refused(done, "graphpatch: worker tcp://", said)
    assert len(done.stderr.splitlines()) == 1
    assert outputs(folder / "out") == {}


def test_a_scheduler_without_workers(run_cli: Run, folder: Path, scheduler: str) -> None:
    args = ("apply", "rules.json", "reg", "-o", "out", "--scheduler", scheduler)
    refused(run_cli(*args, cwd=folder), f"graphpatch: the scheduler {scheduler} has no workers\n")


NO_SCHEDULER = {
    "tls://127.0.0.1:1": "TLS expects",
    "nonsense://x": "unknown address scheme 'nonsense'",
    "localhost": "missing port number",
    "tcp://[::1:1": "invalid address",
}


def test_a_scheduler_that_is_not_there(run_cli: Run, folder: Path, cluster: Any) -> None:
    # A worker may just be started anew, as an earlier test killed it: its nanny stays.
    nanny = next(iter(cluster.workers.values())).address
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        wrong = {**NO_SCHEDULER, f"127.0.0.1:{port}": "no answer for 5 seconds"}
        wrong[nanny] = "what listens there is not a Dask scheduler, but a Nanny"
        for address, said in wrong.items():
            args = ("apply", "rules.json", "reg", "-o", "out", "--scheduler", address)
            done = run_cli(*args, cwd=folder)
            refused(done, f"graphpatch: no scheduler answers at {address}: {said}")
            assert len(done.stderr.splitlines()) == 1
            assert not (folder / "out").exists()
