"""Tasks through a pool: each done once, whoever dies over it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait

from graphpatch.errors import FleetError
from graphpatch.fleet.plan import local_outputs
from graphpatch.fleet.pool import Pool
from graphpatch.fleet.task import Job, Task, TaskResult
from graphpatch.fleet.work import Work
from graphpatch.formats.output import sweep


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
        """What became of each task, as each ends. An interrupt ends the workers at once."""
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
