"""A command over many models, from its arguments to what became of each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from graphpatch.errors import FleetError, RulesError
from graphpatch.fleet import remote, work
from graphpatch.fleet.cluster import Cluster
from graphpatch.fleet.leftovers import sweep
from graphpatch.fleet.manifest import Manifest
from graphpatch.fleet.plan import is_folder, plan
from graphpatch.fleet.pool import Here, Pool
from graphpatch.fleet.run import Run, local_outputs
from graphpatch.fleet.search import Found, is_search, search
from graphpatch.fleet.task import Done, Job, Task
from graphpatch.formats.output import reported


@dataclass(frozen=True, slots=True)
class Workers:
    """Who does it: so many processes, or a cluster; silent, the cores of this machine."""

    jobs: int | None = None
    scheduler: str | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """What the user asked for: `rules` and `models` as typed."""

    rules: str
    models: tuple[str, ...]
    out: str | None = None
    emit: str | None = None
    allow_python: bool = False
    dry_run: bool = False
    resume: bool = False
    workers: Workers = Workers()

    def is_of_many(self) -> bool:
        """Whether models are searched for, or shared out: then there may be any number of them."""
        asked = self.workers != Workers() or self.resume
        return asked or any(map(is_search, self.models))

    def is_for_workers(self) -> bool:
        """Whether it is for others to do; one model, or one in a pipe, is done at once."""
        several = len(self.models) > 1 and "-" not in self.models
        return several or self.is_of_many() or self.is_remote()

    def is_remote(self) -> bool:
        """Whether something of it lies elsewhere."""
        return any(map(remote.is_remote, (self.rules, *self.models, self.out or "")))

    def job(self) -> Job:
        """What the workers are told. Raises RulesError where the rules are not valid."""
        root = "" if self.workers.scheduler is None else str(Path.cwd())
        raw = _read(self.rules)
        job = Job(raw, self.rules, self.emit, self.allow_python, self.dry_run, root=root)
        job.rules()
        return job


def check(order: Order) -> tuple[int, Iterator[Done]]:
    """How many models there are, and for each whether it has the rules applied."""
    job = order.job()
    tasks = _unwritten(search(order.models))
    return len(tasks), Run(work.check, job, tasks, _pool(order, tasks)).results()


def patch(order: Order) -> tuple[int, Iterator[Done]]:
    """How many models there are, and what became of each, as each ends.

    Raises FleetError, RulesError or OutputError where no model is touched.
    """
    job, found = order.job(), search(order.models)
    into = order.out if order.out and is_folder(order.models, order.out) else None
    if order.dry_run and order.out is None:
        tasks = _unwritten(found)
    else:
        tasks = plan(found, order.out, order.rules, into is not None)
    if into is not None and not order.dry_run:
        _make(into)
        if order.is_of_many():
            return len(tasks), _recorded(order, job, tasks, Manifest(into, job))
    return len(tasks), Run(work.patch, job, tasks, _pool(order, tasks)).results()


def _unwritten(found: Sequence[Found]) -> list[Task]:
    return [Task(place, one.model, "", one.searched) for place, one in enumerate(found)]


def _recorded(order: Order, job: Job, tasks: list[Task], manifest: Manifest) -> Iterator[Done]:
    """The results, each written down; what an earlier run left half-written is taken away."""
    sweep(local_outputs(tasks))
    if order.resume:
        tasks = [replace(task, known=manifest.known(task)) for task in tasks]
    run = Run(work.patch, replace(job, recorded=True), tasks, _pool(order, tasks))
    try:
        for done in run.results():
            manifest.add(done)
            yield done
    finally:
        manifest.close()


def _make(folder: str) -> None:
    if not remote.is_remote(folder):
        with reported(folder):
            Path(folder).mkdir(parents=True, exist_ok=True)


def _read(rules: str) -> bytes:
    if rules == "-":
        return sys.stdin.buffer.read()
    if remote.is_remote(rules):
        return remote.read(rules)
    try:
        return Path(rules).read_bytes()
    except OSError as error:
        raise RulesError(f"cannot read {rules}: {error.strerror or error}") from error


def _pool(order: Order, tasks: Sequence[Task]) -> Pool:
    paths = (order.out or "", *(task.model for task in tasks))
    in_memory = [path for path in paths if remote.is_own_memory(path)]
    if order.workers.scheduler is not None:
        if in_memory:
            raise FleetError(f"{in_memory[0]}: workers do not see the memory of this process")
        models = [task.model for task in tasks]
        return Cluster(order.workers.scheduler, models, None if order.dry_run else order.out)
    jobs = min(order.workers.jobs or _cores(), len(tasks))
    return Here() if jobs == 1 or in_memory else Pool(jobs)


def _cores() -> int:
    """The cores that this process may use."""
    mine: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(mine(0)) if mine else os.cpu_count() or 1
