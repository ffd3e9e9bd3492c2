"""Tasks through processes of this machine: each done once, whoever dies over it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from graphpatch.errors import FleetError
from graphpatch.fleet.plan import local_outputs
from graphpatch.fleet.task import Job, Task, TaskResult
from graphpatch.fleet.work import Work
from graphpatch.formats.output import sweep

MOST_STARTS = 4  # times that workers are started before that is given up
PAUSE = 0.3  # seconds before the third time, twice as many before the fourth

P = ParamSpec("P")
R = TypeVar("R")


class Pool:
    """Who does the work: an executor that can be had again when its workers died.

    `window` is how many tasks are handed out at once: enough to keep all workers busy, and few,
    as each of them is a suspect when a worker dies. A task is given up when that happened to it
    `lives` times, the second half of them alone. One that `tells_of_deaths` does no task again by
    itself.
    """

    lives = 6
    tells_of_deaths = True
    died: tuple[type[BaseException], ...] = (BrokenProcessPool,)

    def __init__(self, jobs: int) -> None:
        self.jobs, self.window = jobs, 2 * jobs
        self.executor: Executor | None = None
        self.workers: list[Any] = []

    def submit(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Hand a call to a worker; the first one starts them, as does one after a death.

        Raises FleetError where they cannot be started.
        """
        failed: BaseException | None = None
        for attempt in range(MOST_STARTS):
            try:
                if self.executor is not None:
                    return self.executor.submit(call, *args, **kwargs)
                self.executor = self._started()
                before = multiprocessing.active_children()
                with _interrupts_later():
                    future = self.executor.submit(call, *args, **kwargs)
                self.workers = [o for o in multiprocessing.active_children() if o not in before]
                return future
            except (BrokenExecutor, OSError, EOFError) as error:  # the process that forks them died
                failed = error
                if self.executor is not None:
                    self.executor.shutdown(wait=isinstance(error, BrokenExecutor))
                self.executor = None
                if attempt + 1 < MOST_STARTS:
                    time.sleep(PAUSE * attempt)  # it may still be ending
        said = str(failed) or type(failed).__name__
        raise FleetError(f"the worker processes cannot be started: {said}") from failed

    def close(self, at_once: bool = False) -> None:
        """End the workers; `at_once`, in the middle of what they do."""
        if self.executor is None:
            return
        if at_once:
            for worker in self.workers:
                worker.kill()
        self.executor.shutdown(wait=True, cancel_futures=True)

    def _started(self) -> Executor:
        # What has been imported is shared with the workers, and never looked at by a collection.
        gc.freeze()
        return ProcessPoolExecutor(self.jobs, _start_method(), initializer=_prepare_worker)


def _start_method() -> BaseContext:
    """Return how workers start: forked, in milliseconds, where that is safe; else from a server."""
    if sys.platform == "linux" and threads() == 1:
        return multiprocessing.get_context("fork")
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["graphpatch.fleet.work"])
    return context


def threads() -> int:
    """Return the threads of this process, those of libraries too: a fork copies none but one."""
    return len(list(Path("/proc/self/task").iterdir()))


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Let an interrupt wait until workers have started: they would tell of it each."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare_worker() -> None:
    """A worker leaves an interrupt to the command, and does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


class FleetRun:
    """The tasks of one command, on their way.

    When a worker dies, all that were handed out with its task are suspects. They are done again;
    one that is there each time is done alone, and given up where that goes wrong as often: a model
    that no process survives fails alone too.
    """

    def __init__(self, work: Work, job: Job, tasks: Sequence[Task], pool: Pool) -> None:
        self.work, self.job, self.pool = work, job, pool
        self.waiting, self.suspects = deque(tasks), deque[Task]()
        self.out: dict[Future[TaskResult], Task] = {}
        self.deaths: Counter[int] = Counter()
        # Who was at these may have left something half-written.
        self.suspected: list[Task] = [] if pool.tells_of_deaths else list(tasks)

    def results(self) -> Iterator[TaskResult]:
        """Yield what became of each task, as each ends. An interrupt ends the workers at once."""
        try:
            while self._hand_out():
                for future in wait(self.out, return_when=FIRST_COMPLETED).done:
                    done = self._ended(future)
                    if done is not None:
                        yield done
        except BaseException:
            self.pool.close(at_once=True)
            sweep(local_outputs([*self.suspected, *self.out.values()]))
            raise
        self.pool.close()
        sweep(local_outputs(self.suspected))

    def _hand_out(self) -> bool:
        if self.suspects:
            if not self.out:
                self._submit(self.suspects.popleft())
            return True
        while self.waiting and len(self.out) < self.pool.window:
            self._submit(self.waiting.popleft())
        return bool(self.out)

    def _submit(self, task: Task) -> None:
        self.out[self.pool.submit(self.work, self.job, task)] = task

    def _ended(self, future: Future[TaskResult]) -> TaskResult | None:
        task = self.out.pop(future)
        try:
            return future.result()
        except self.pool.died:
            self.deaths[task.place] += 1
        except CancelledError as error:
            raise FleetError(f"{task.model}: the workers have gone away: {error}") from error
        self.suspected.append(task)
        deaths = self.deaths[task.place]
        if deaths >= self.pool.lives:
            return TaskResult(
                task, error=f"{task.model}: worker processes died over it, again and again"
            )
        if deaths >= self.pool.lives // 2:
            self.suspects.append(task)
        else:
            self.waiting.appendleft(task)
        return None
