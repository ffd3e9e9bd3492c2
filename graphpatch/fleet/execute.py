"""A command over one model or many, carried out: from its order to what became of each."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from graphpatch.errors import FleetError
from graphpatch.fleet import remote, work
from graphpatch.fleet.order import FleetOrder
from graphpatch.fleet.plan import FoundModels, local_outputs, plan, search
from graphpatch.fleet.task import Job, Task, TaskResult
from graphpatch.fleet.work import Work
from graphpatch.formats.destination import reported
from graphpatch.formats.output import sweep

if TYPE_CHECKING:
    from graphpatch.fleet.run import Pool


def check_models(order: FleetOrder) -> tuple[int, Iterator[TaskResult]]:
    """Return how many models there are, and for each whether it has the rules applied."""
    job = order.job()
    tasks = _unwritten(search(order.models, order.allow_chained))
    return len(tasks), _results_of_tasks(order, work.check_model, job, tasks)


def patch_models(order: FleetOrder, here: Work | None = None) -> tuple[int, Iterator[TaskResult]]:
    """Return how many models there are, and what became of each, as each ends.

    What is not for workers is done `here`.

    Raises FleetError, RulesError or OutputError where no model is touched.
    """
    job, models = order.job(), search(order.models, order.allow_chained)
    into = order.out if order.is_into_folder() else None
    if order.dry_run and order.out is None and any(map(_needs_folder, models)):
        tasks = _unwritten(models)
    else:
        tasks = plan(models, order.out, order.rules, into is not None)
    if not order.dry_run:
        sweep(local_outputs(tasks))  # what an earlier run left half-written
    if into is not None and not order.dry_run and here is None:
        return len(tasks), _recorded(order, job, tasks, into)
    results = _results_of_tasks(order, here or work.patch_model, job, tasks)
    if into is not None and not order.dry_run:
        return len(tasks), _into_folder(into, results)
    return len(tasks), results


def _into_folder(folder: str, results: Iterator[TaskResult]) -> Iterator[TaskResult]:
    with _made(folder):
        yield from results


def _needs_folder(model: FoundModels) -> bool:
    """Return whether a model goes nowhere unless -o says where."""
    return model.searched or remote.is_remote(model.model)


def _unwritten(models: Sequence[FoundModels]) -> list[Task]:
    return [Task(place, model.model, "", model.searched) for place, model in enumerate(models)]


def _recorded(order: FleetOrder, job: Job, tasks: list[Task], into: str) -> Iterator[TaskResult]:
    """Yield the results, each written down in the folder that they go into."""
    from graphpatch.fleet.manifest import Manifest

    with _made(into):
        manifest = Manifest(into, job)
        if order.resume:
            tasks = [replace(task, known=manifest.known(task)) for task in tasks]
        results = _results_of_tasks(order, work.patch_model, replace(job, recorded=True), tasks)
        try:
            for done in results:
                manifest.add(done)
                yield done
        finally:
            manifest.close()


@contextmanager
def _made(folder: str) -> Iterator[None]:
    """Make a folder; what is made goes again where it stays empty, as a run that failed left it."""
    path = Path(folder)
    missing = [] if remote.is_remote(folder) else [path, *path.parents]
    missing = [missing_folder for missing_folder in missing if not missing_folder.exists()]
    with reported(folder):
        for missing_folder in reversed(missing):
            missing_folder.mkdir(exist_ok=True)
    try:
        yield
    finally:
        for missing_folder in missing:
            with suppress(OSError):  # there is something in it
                missing_folder.rmdir()


def _results_of_tasks(
    order: FleetOrder, work: Work, job: Job, tasks: Sequence[Task]
) -> Iterator[TaskResult]:
    """Return what became of each task: one after the other in this process, or by workers."""
    pool = _worker_pool(order, tasks)
    if pool is not None:
        from graphpatch.fleet.run import FleetRun

        return FleetRun(work, job, tasks, pool).results()
    gc.freeze()  # what there is now is never looked at by the collection after a model
    return map(partial(work, job), tasks)


def _worker_pool(order: FleetOrder, tasks: Sequence[Task]) -> Pool | None:
    """Return who shares the work; None where it is for this process."""
    paths = (order.out or "", *(task.model for task in tasks))
    in_memory = [path for path in paths if remote.is_own_memory(path)]
    if order.workers.scheduler is not None:
        if in_memory:
            raise FleetError(f"{in_memory[0]}: workers do not see the memory of this process")
        from graphpatch.fleet.cluster import Cluster

        models = [task.model for task in tasks]
        return Cluster(order.workers.scheduler, models, None if order.dry_run else order.out)
    jobs = min(order.workers.jobs or _cores(), len(tasks))
    if jobs == 1 or in_memory or not order.is_for_workers():
        return None
    from graphpatch.fleet.run import Pool

    return Pool(jobs)


def _cores() -> int:
    """Return the cores that this process may use."""
    mine: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(mine(0)) if mine else os.cpu_count() or 1
