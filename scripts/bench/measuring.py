"""Measure whole processes, and print what they took beside the targets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

GRAPHPATCH = str(Path(sys.executable).with_name("graphpatch"))
# Modules come as byte code, as pip installs them: else each process would compile them.
ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"},
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
}


class Task(NamedTuple):
    """A command, the exit code that it must have, and the outputs to remove before it runs.

    `model` builds what the command reads, where that is missing. `is_slow` runs in one round only.
    One that takes longer than `seconds` is stopped.
    """

    command: list[str]
    code: int = 0
    removes: tuple[Path, ...] = ()
    builds: tuple[tuple[Path, list[str]], ...] = ()
    is_slow: bool = False
    seconds: float | None = None
    environment: Mapping[str, str] = {}


class Run(NamedTuple):
    """What a process took: wall seconds, peak megabytes of it or a child, processor seconds."""

    seconds: float
    megabytes: float
    processor: float
    output: str = ""


Runs = Mapping[str, Run]


class Target(NamedTuple):
    """What is measured of the runs of a part, and the most that it may be."""

    title: str
    measured: Callable[[Runs], float]
    at_most: float
    unit: str = "x"


class Part(NamedTuple):
    """The tasks of a part, by title, in the order in which they run; and its targets."""

    tasks: dict[str, Task]
    targets: list[Target]


def ratio(title: str, base: str) -> Callable[[Runs], float]:
    """Return the processor time of one task as a multiple of another's."""
    return lambda runs: runs[title].processor / runs[base].processor


def measure(task: Task, log: Path) -> Run:
    """Run one process to its end. Its memory counts from this small process's own, some 20 MB."""
    for path in task.removes:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    with log.open("wb") as file:
        start = time.perf_counter()
        command = ["timeout", str(task.seconds), *task.command] if task.seconds else task.command
        environment = {**ENVIRONMENT, **task.environment}
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    output = log.read_text(errors="replace")
    is_stopped = task.seconds is not None and seconds >= task.seconds
    if process.returncode != task.code and not is_stopped:
        raise SystemExit(f"{' '.join(command)}\nfailed: {output[-2000:]}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Run(seconds, usage.ru_maxrss * unit / 1e6, usage.ru_utime + usage.ru_stime, output)


def build(task: Task) -> None:
    """Make the models that a task reads, where they are missing; whole, or not at all."""
    for model, script in task.builds:
        if not model.exists():
            print(f"building {model}", file=sys.stderr)
            partial = model.with_suffix(".partial")
            words = [str(partial) if word == "OUT" else word for word in script]
            subprocess.run([sys.executable, *words], check=True, env=ENVIRONMENT)
            partial.rename(model)


def measure_all(tasks: Mapping[str, Task], folder: Path, rounds: int) -> dict[str, Run]:
    """Run all tasks in turn, `rounds` times; medians, and the least processor time."""
    for task in tasks.values():
        build(task)
    runs: dict[str, list[Run]] = {title: [] for title in tasks}
    for number in range(rounds):
        for title, task in tasks.items():
            if number and task.is_slow:
                continue
            if sys.stderr.isatty():
                print(f"\rround {number + 1}: {title:60}\r", end="", file=sys.stderr, flush=True)
            runs[title].append(measure(task, folder / "log"))
    return {
        title: Run(
            median(run.seconds for run in each),
            median(run.megabytes for run in each),
            min(run.processor for run in each),
            each[-1].output,
        )
        for title, each in runs.items()
    }


def print_runs(runs: Runs) -> None:
    """Print what each task took."""
    print(f"{'':44}{'seconds':>9}{'processor':>11}{'MB':>8}")
    for title, run in runs.items():
        print(f"{title:44}{run.seconds:9.2f}{run.processor:11.2f}{run.megabytes:8.0f}")


def print_targets(targets: Iterable[Target], runs: Runs) -> bool:
    """Print each target beside its measurement; return whether all are met."""
    met = True
    print(f"\n{'target':64}{'measured':>10}{'at most':>10}")
    for target in targets:
        try:
            measured = target.measured(runs)
        except KeyError:  # of a task that `--only` left out
            continue
        verdict = "" if measured <= target.at_most else "MISSED"
        met = met and not verdict
        print(f"{target.title:64}{measured:10.3f}{target.at_most:10.2f} {target.unit:3}{verdict}")
    print()
    return met
