"""Who does the work on models: this process, processes of this machine, or a Dask cluster.

The cluster is there already, and its workers read and write the files themselves.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import graphpatch
from graphpatch.errors import FleetError
from graphpatch.fleet.search import Task, local_outputs
from graphpatch.fleet.work import FleetOrder, TaskResult, Work, run_task
from graphpatch.formats.destination import is_remote, reported
from graphpatch.formats.output import sweep

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

SAFE_PATH = "PYTHONSAFEPATH"
TRIES = 3  # how often a model is tried alone on which a worker may have died
ANSWER_TIMEOUT = 5  # seconds, for each of the answers of a cluster that are waited for

Call = Callable[[Task], TaskResult]
Results = Generator[TaskResult, None, None]

_CALLS: list[Call] = []  # in a worker process: what it does with each task


def results_of(order: FleetOrder, work: Work, tasks: Sequence[Task]) -> Results:
    """Yield what became of each task: one after the other in this process, or by workers."""
    call = partial(run_task, work, order)
    paths = (order.out or "", *(task.model for task in tasks))
    in_memory = [path for path in paths if path.startswith("memory://")]  # this process's own
    if order.scheduler is not None:
        if in_memory:
            raise FleetError(f"{in_memory[0]}: workers do not see the memory of this process")
        return by_cluster(order.scheduler, call, tasks, None if order.dry_run else order.out)
    has_affinity = hasattr(os, "sched_getaffinity")  # else all cores, also those of others
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    jobs = min(order.jobs or cores, len(tasks))
    if jobs > 1 and not in_memory:
        return by_processes(call, tasks, jobs)
    gc.freeze()  # what there is now is not looked at by the collection after a model
    return (call(task) for task in tasks)


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
                    yield _died(task)
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
    with _pool(jobs, call) as pool:
        while waiting or under_way:
            try:
                while waiting and len(under_way) < 2 * jobs:
                    future = pool.submit(_do, waiting[0])
                    under_way[future] = waiting.popleft()
            except BrokenProcessPool:
                if not under_way:  # else the futures tell of it
                    return [waiting.popleft()]
            ended = wait(under_way, return_when=FIRST_COMPLETED).done
            dead = {future for future in ended if isinstance(future.exception(), BrokenProcessPool)}
            for future in ended - dead:
                del under_way[future]
                yield future.result()
            if dead:
                break
    return list(under_way.values())


@contextmanager
def _pool(jobs: int, call: Call) -> Iterator[ProcessPoolExecutor]:
    """Give processes for tasks, which are killed where this ends by an error or interrupt."""
    import multiprocessing  # here, as a command over one model needs none of it
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor

    context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
    if sys.version_info >= (3, 11):  # else the server would import from the current folder
        context.set_forkserver_preload(["graphpatch.fleet.work"])
    before = multiprocessing.active_children()
    pool = ProcessPoolExecutor(jobs, context, initializer=_prepare_worker, initargs=(call,))
    try:
        try:
            with _safe_path():
                # All start before the first task: the pool waits for ever for one that starts while
                # another dies.
                for started in [pool.submit(int) for _ in range(jobs)]:
                    started.result()
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


def _prepare_worker(call: Call) -> None:
    """Leave an interrupt to the command, and do not outlive it; keep the call, with its rules."""
    _CALLS.append(call)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _do(task: Task) -> TaskResult:
    return _CALLS[0](task)


def _end_with_parent() -> None:
    import multiprocessing
    from multiprocessing import connection

    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _died(task: Task) -> TaskResult:
    """Return the result of a task over which workers died as often as it was tried."""
    return TaskResult(task, error=f"{task.model}: worker processes died over it, again and again")


# The workers of a cluster.


def by_cluster(address: str, call: Call, tasks: Sequence[Task], out: str | None) -> Results:
    """Yield what became of each task, as each ends. Dask does again what a dead worker was at.

    Raises FleetError where the scheduler does not answer or goes away, or a worker cannot do the
    work: it has no graphpatch, or another version, or does not see the files.
    """
    client = _client(address)
    try:
        _check_workers(client, address, tasks, out)
        dask = _dask()
        futures = client.map(call, tasks, pure=False)
        of_future = dict(zip(futures, tasks, strict=True))
        tried_again, ended = set[str](), dask.as_completed(futures, raise_errors=False)
        for future in ended:
            if future.status == "lost":  # with the worker that had the result: Dask does it again
                ended.add(future)
                continue
            task = of_future.pop(future)
            failure = future.exception() if future.status == "error" else None
            is_killed = isinstance(failure, dask.KilledWorker)
            if future.status == "finished":
                yield future.result()
            elif is_killed and task.model not in tried_again:
                # Workers that die of something else, one after the other, may all have been at it.
                tried_again.add(task.model)
                future = client.submit(call, task, pure=False)
                of_future[future] = task
                ended.add(future)
            elif is_killed:
                yield _died(task)
            else:
                reason = failure or future.status
                raise FleetError(f"{task.model}: the workers have gone away: {reason}")
    finally:
        client.close()


def _dask() -> Any:
    """Return the package, of which only some versions are typed."""
    try:
        import distributed
    except ImportError:
        raise FleetError("--scheduler needs Dask: pip install distributed") from None
    return distributed


def _client(address: str) -> Any:
    """Return a client of the scheduler at an address."""
    import asyncio  # here, as most commands need no cluster
    import logging

    dask = _dask()
    # What happens to the connection is told by our errors; Dask gives each logger its own level.
    for name in ("distributed", "distributed.client", "distributed.core"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        asyncio.run(asyncio.wait_for(_check_scheduler(address), ANSWER_TIMEOUT))
        return dask.Client(address, timeout=ANSWER_TIMEOUT)
    except Exception as error:  # whatever an address can be wrong in
        reason = " ".join(str(error).split()) or f"no answer for {ANSWER_TIMEOUT} seconds"
        raise FleetError(f"no scheduler answers at {address}: {reason}") from error


async def _check_scheduler(address: str) -> None:
    """Ask who is there, as a client that failed halfway is waited for when the process ends."""
    secrets = _dask().Security().get_connection_args("client")
    call = _dask().core.rpc(address, timeout=ANSWER_TIMEOUT, connection_args=secrets)
    async with call as scheduler:
        kind = (await scheduler.identity())["type"]
    if kind != "Scheduler":
        raise ConnectionError(f"what listens there is not a Dask scheduler, but a {kind}")


def _check_workers(client: Any, address: str, tasks: Sequence[Task], out: str | None) -> None:
    """Raise FleetError where a worker has another graphpatch, or does not see the files."""
    from tempfile import NamedTemporaryFile

    try:
        client.wait_for_workers(1, timeout=ANSWER_TIMEOUT)
    except TimeoutError:
        raise FleetError(f"the scheduler {address} has no workers") from None
    here = graphpatch.__version__
    names = {str(Path.cwd() / t.model): t.model for t in tasks[:1] if not is_remote(t.model)}
    with ExitStack() as stack:
        if out is not None and not is_remote(out) and Path(out).is_dir():
            prefix = ".graphpatch-probe-"  # of a file that nobody else could have
            with reported(out):
                token = stack.enter_context(NamedTemporaryFile(prefix=prefix, dir=out))
            names[str(Path.cwd() / token.name)] = f"the folder {out}"
        answers = client.run(probe, here, names, on_error="return")
    for worker, answer in sorted(answers.items()):
        says = answer
        if "ModuleNotFoundError" in repr(answer) or "AttributeError" in repr(answer):
            says = f"has no graphpatch, or another one: install graphpatch {here} there ({answer})"
        elif isinstance(answer, BaseException):
            says = f"does not answer: {answer!r}"
        if says:
            raise FleetError(f"worker {worker} {says}")


def probe(version: str, names: Mapping[str, str]) -> str:
    """Return on a worker why it cannot do the work of this version on these paths; or nothing."""
    here = graphpatch.__version__
    if here != version:
        return f"has graphpatch {here}, and this is {version}; they must be the same"
    for path, name in names.items():
        try:
            if not Path(path).is_dir():
                Path(path).open("rb").close()
        except OSError:
            return f"does not see {name} as this machine does; the files must lie where all see it"
    return ""
