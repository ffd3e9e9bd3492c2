"""A command over one model or many, carried out: here, by processes, or by a Dask cluster."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from graphpatch.errors import FleetError
from graphpatch.fleet import work
from graphpatch.fleet.order import FleetOrder, TaskResult
from graphpatch.fleet.search import Task, local_outputs, plan, search
from graphpatch.fleet.work import Call, Work, run_task
from graphpatch.formats.destination import is_remote, reported
from graphpatch.formats.output import sweep

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

SAFE_PATH = "PYTHONSAFEPATH"
TRIES = 3  # how often a model is tried alone on which a worker may have died

Results = Iterator[TaskResult]


def check_models(order: FleetOrder) -> tuple[int, Results]:
    """Return how many models there are, and for each whether it has the rules applied."""
    order_with_rules, tasks = order.with_rules(), search(order.models, order.allow_chained)
    return len(tasks), _results(order_with_rules, work.check_model, tasks)


def patch_models(order: FleetOrder, here: Work | None = None) -> tuple[int, Results]:
    """Return how many models there are, and what became of each, as each ends.

    What is not for workers is done `here`, where that is given.
    Raises FleetError, RulesError or OutputError where no model is touched.
    """
    into = order.out if order.is_into_folder() else None
    recorded = order.recorded and into is not None and not order.dry_run
    order_with_rules = order.with_rules(recorded)
    tasks = search(order.models, order.allow_chained)
    # A model that was searched for, or lies elsewhere, has no output unless -o names one.
    nowhere = any(task.searched or is_remote(task.model) for task in tasks)
    if not (order.dry_run and order.out is None and nowhere):
        tasks = plan(tasks, order.out, order.rules, into is not None)

    def results(tasks: Sequence[Task]) -> Results:
        if here is not None:
            return (here(order_with_rules, task) for task in tasks)
        return _results(order_with_rules, work.patch_model, tasks)

    if into is not None and not order.dry_run:
        return len(tasks), _into_folder(order_with_rules, tasks, into, results)
    if not order.dry_run:
        sweep(local_outputs(tasks))  # what an earlier run left half-written
    return len(tasks), results(tasks)


def _into_folder(
    order: FleetOrder, tasks: list[Task], folder: str, results: Callable[[list[Task]], Results]
) -> Results:
    """Yield the results of tasks that write into a folder, each written down in its manifest."""
    from graphpatch.fleet.manifest import Manifest

    with _made(folder):
        sweep(local_outputs(tasks))
        if not order.recorded:
            yield from results(tasks)
            return
        manifest = Manifest(folder, order)
        if order.resume:
            tasks = [replace(task, known=manifest.known(task)) for task in tasks]
        try:
            for done in results(tasks):
                manifest.add(done)
                yield done
        finally:
            manifest.close()


@contextmanager
def _made(folder: str) -> Iterator[None]:
    """Make a folder; what is made goes again where it stays empty, as a run that failed left it."""
    path = Path(folder)
    missing = [] if is_remote(folder) else [path, *path.parents]
    missing = [above for above in missing if not above.exists()]
    with reported(folder):
        path.mkdir(parents=True, exist_ok=True) if missing else None
    try:
        yield
    finally:
        for above in missing:
            with suppress(OSError):  # there is something in it
                above.rmdir()


def _results(order: FleetOrder, work: Work, tasks: Sequence[Task]) -> Results:
    """Yield what became of each task: one after the other in this process, or by workers."""
    call = partial(run_task, work, order)
    paths = (order.out or "", *(task.model for task in tasks))
    in_memory = [path for path in paths if path.startswith("memory://")]  # this process's own
    if order.scheduler is not None:
        if in_memory:
            raise FleetError(f"{in_memory[0]}: workers do not see the memory of this process")
        from graphpatch.fleet.cluster import by_cluster

        out = None if order.dry_run else order.out
        return by_cluster(order.scheduler, call, tasks, out)
    has_affinity = hasattr(os, "sched_getaffinity")  # else all cores, also those of others
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    jobs = min(order.jobs or cores, len(tasks))
    if jobs > 1 and not in_memory:
        return by_processes(call, tasks, jobs)
    gc.freeze()  # what there is now is not looked at by the collection after a model
    return map(call, tasks)


# Processes of this machine.


def by_processes(call: Call, tasks: Sequence[Task], jobs: int) -> Results:
    """Yield what became of each task, as each ends. An interrupt ends the workers at once.

    When a worker dies, the tasks that were under way are tried again, each alone: a model that no
    process survives fails alone. Raises FleetError where no process can be started.
    """
    waiting, suspects = deque(tasks), list[Task]()
    try:
        while waiting:
            suspects = yield from _until_a_death(call, waiting, jobs)
            for task in suspects:
                for _ in range(TRIES):
                    if not (yield from _until_a_death(call, deque([task]), 1)):
                        break
                else:
                    yield work.died(task)
            sweep(local_outputs(suspects))
    except BaseException:
        sweep(local_outputs(tasks))
        raise


def _until_a_death(
    call: Call, waiting: deque[Task], jobs: int
) -> Generator[TaskResult, None, list[Task]]:
    """Yield what became of waiting tasks; return those under way when a worker died, if one did."""
    from concurrent.futures import FIRST_COMPLETED, wait
    from concurrent.futures.process import BrokenProcessPool

    under_way: dict[Future[TaskResult], Task] = {}
    with _pool(jobs) as pool:
        while waiting or under_way:
            try:
                while waiting and len(under_way) < 2 * jobs:
                    future = pool.submit(call, waiting[0])
                    under_way[future] = waiting.popleft()
            except BrokenProcessPool:
                pass  # the futures tell of it as well
            ended = wait(under_way, return_when=FIRST_COMPLETED).done
            survived = [future for future in ended if future.exception() is None]
            for future in survived:
                del under_way[future]
                yield future.result()
            if len(survived) < len(ended):
                break
    return list(under_way.values())


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Give worker processes, which are killed where this ends by an error or an interrupt."""
    import multiprocessing  # here, as a command over one model needs none of it
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor

    context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
    if sys.version_info >= (3, 11):  # else the server would import from the current folder
        context.set_forkserver_preload(["graphpatch.fleet.work"])
    before = multiprocessing.active_children()
    pool = ProcessPoolExecutor(jobs, context, initializer=_prepare_worker)
    try:
        try:
            with _safe_path():
                pool.submit(int).result()
        except (BrokenProcessPool, OSError, EOFError) as error:
            says = str(error) or type(error).__name__
            raise FleetError(f"the worker processes cannot be started: {says}") from error
        yield pool
    except BaseException:
        for worker in multiprocessing.active_children():
            if worker not in before:
                worker.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Let Python processes that start here not import from the current folder, where it can."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(SAFE_PATH)
        if before is not None:
            os.environ[SAFE_PATH] = before


def _prepare_worker() -> None:
    """Leave an interrupt to the command, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    import multiprocessing
    from multiprocessing import connection

    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
