"""Inputs tried in processes of their own, each known by its kind, seed and number."""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from fuzzing.case import SECONDS, Case, Find, tried
from fuzzing.kinds import KINDS
from fuzzing.sources import models
from graphpatch import cli

MEMORY = 6 << 30
WAITING = 10  # seconds that a worker may sleep over one input; those that it waits for a processor
# are none of these, as a busy machine is not a fault
COMMANDS = 8  # of one input, at most
EACH = 500  # inputs of one process

FORK = multiprocessing.get_context("fork")


class Number(NamedTuple):
    """Which input: the same one every time."""

    kind: str
    seed: int
    number: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.seed}:{self.number}"

    def case(self) -> Case:
        """Return the input itself."""
        return KINDS[self.kind](Random(str(self)))


class Answer(NamedTuple):
    """What came of one input."""

    number: Number
    finds: list[Find]
    commands: int


def answers(numbers: Iterator[Number]) -> Iterator[Answer]:
    """Yield what comes of each input, in turn; a worker that dies or is silent is a find too."""
    models()  # once, before any process is forked
    for command in cli.COMMANDS:
        importlib.import_module(f"graphpatch.cli.{command}")
    batch: list[Number] = []
    for number in numbers:
        batch.append(number)
        if len(batch) == EACH:
            yield from _batch(batch)
            batch = []
    yield from _batch(batch)


def _batch(batch: list[Number]) -> Iterator[Answer]:
    while batch:
        ours, theirs = FORK.Pipe(duplex=False)
        process = FORK.Process(target=_work, args=(batch, theirs))
        process.start()
        assert process.pid is not None
        theirs.close()
        done = 0
        fault = ""
        while not fault and done < len(batch):
            try:
                if _answered(ours, process.pid):
                    finds, commands = ours.recv()
                    yield Answer(batch[done], [Find(*one) for one in finds], commands)
                    done += 1
                else:
                    fault = "hang"
            except EOFError:
                fault = "died"
        if process.is_alive() and fault == "hang":
            process.kill()
        process.join()
        if fault:
            where = f"exit {process.exitcode}"
            fault = "slow" if process.exitcode == -signal.SIGXCPU else fault
            yield Answer(batch[done], [Find(fault, where, batch[done].case().commands[0], "")], 1)
            done += 1
        batch = batch[done:]


def _answered(answers: Connection, worker: int) -> bool:
    """Wait for an answer, as long as the worker works; False where it sleeps."""
    slept = 0
    while slept < WAITING:
        if answers.poll(1):
            return True
        slept += sleeps(worker)
    return False


def sleeps(process: int) -> bool:
    """Whether a process waits for something other than a processor or a disk."""
    state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "S"


def _work(batch: list[Number], answer: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    # As on a machine without TensorFlow: what it does with a hostile graph is its own.
    sys.modules["tensorflow"] = None  # type: ignore[assignment]
    folder = Path(tempfile.mkdtemp(prefix="fuzzing-"))
    try:
        for place, number in enumerate(batch):
            case = number.case()
            limit_processor_time(2 * COMMANDS * SECONDS)
            finds, commands = tried(case, folder)
            answer.send(([tuple(one) for one in finds], commands))
            if place % 50 == 0:
                gc.collect()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    answer.close()
    os._exit(0)


def limit_processor_time(seconds: float) -> None:
    """Let the system end this process after so much more: Python cannot stop one long call."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds) + 1, most))


def shrunk(case: Case, find: Find, seconds: float = 8) -> Case:
    """Return a smaller case with the same find, as many parts of its file taken out as may be."""
    until = time.monotonic() + seconds
    size = max(1, len(case.files[case.varied]) // 2)
    while size and time.monotonic() < until:
        at, before = 0, len(case.files[case.varied])
        while at < len(case.files[case.varied]) and time.monotonic() < until:
            content = case.files[case.varied]
            smaller = case.with_varied(content[:at] + content[at + size :])
            if _same(smaller, find):
                case = smaller
            else:
                at += size
        size = size // 2 if len(case.files[case.varied]) == before or size > 1 else 0
    return case


def _same(case: Case, find: Find) -> bool:
    """Whether a case still has the find; asked in a process of its own, which may die."""
    ours, theirs = FORK.Pipe(duplex=False)

    def ask() -> None:
        limit_processor_time(COMMANDS * SECONDS)
        signal.alarm(6 * WAITING)
        with tempfile.TemporaryDirectory(prefix="fuzzing-") as folder:
            theirs.send(any(one.key == find.key for one in tried(case, Path(folder))[0]))
        os._exit(0)

    process = FORK.Process(target=ask)
    process.start()
    theirs.close()
    try:
        return bool(ours.recv())
    except EOFError:
        return False
    finally:
        process.join()


def saved(answer: Answer, find: Find, folder: Path) -> Path:
    """Write a find down: the files as they were, the mutated one shrunk, and what was told."""
    place = folder / f"{answer.number.kind}-{find.fault.replace(' ', '-')}-{answer.number.number}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    case = answer.number.case()
    small = shrunk(case, find) if find.fault not in ("hang", "died", "slow") else case
    small.make(place)
    (place / f"whole-{case.varied}").write_bytes(case.files[case.varied])
    told: dict[str, Any] = {
        "input": str(answer.number),
        **find._asdict(),
        "commands": case.commands,
    }
    (place / "find.json").write_text(json.dumps(told, indent=1))
    return place
