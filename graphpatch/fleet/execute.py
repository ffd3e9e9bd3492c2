"""A command over many models, carried out: from its order to what became of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from graphpatch.errors import FleetError
from graphpatch.fleet import remote, work
from graphpatch.fleet.cluster import Cluster
from graphpatch.fleet.manifest import Manifest
from graphpatch.fleet.order import Order
from graphpatch.fleet.plan import plan
from graphpatch.fleet.pool import Here, Pool
from graphpatch.fleet.run import Run, local_outputs
from graphpatch.fleet.search import Found, search
from graphpatch.fleet.task import Done, Job, Task
from graphpatch.formats.output import reported
from graphpatch.formats.unfinished import sweep


def check(order: Order) -> tuple[int, Iterator[Done]]:
    """How many models there are, and for each whether it has the rules applied."""
    job = order.job()
    tasks = _unwritten(search(order.models, order.allow_chained))
    return len(tasks), Run(work.check, job, tasks, _pool(order, tasks)).results()


def patch(order: Order) -> tuple[int, Iterator[Done]]:
    """How many models there are, and what became of each, as each ends.

    Raises FleetError, RulesError or OutputError where no model is touched.
    """
    job, found = order.job(), search(order.models, order.allow_chained)
    into = order.out if order.is_into_folder() else None
    if order.dry_run and order.out is None and any(map(_needs_folder, found)):
        tasks = _unwritten(found)
    else:
        tasks = plan(found, order.out, order.rules, into is not None)
    sweep(local_outputs(tasks))  # what an earlier run left half-written
    if into is not None and not order.dry_run:
        _make(into)
        return len(tasks), _recorded(order, job, tasks, Manifest(into, job))
    return len(tasks), Run(work.patch, job, tasks, _pool(order, tasks)).results()


def _needs_folder(one: Found) -> bool:
    """Whether a model goes nowhere unless -o says where."""
    return one.searched or remote.is_remote(one.model)


def _unwritten(found: Sequence[Found]) -> list[Task]:
    return [Task(place, one.model, "", one.searched) for place, one in enumerate(found)]


def _recorded(order: Order, job: Job, tasks: list[Task], manifest: Manifest) -> Iterator[Done]:
    """The results, each written down."""
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
