"""A Dask cluster that is there already. Its workers read and write the files themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import graphpatch
from graphpatch.errors import FleetError
from graphpatch.fleet.order import TaskResult
from graphpatch.fleet.search import Task
from graphpatch.fleet.work import Call, died
from graphpatch.formats.destination import is_remote, reported

ANSWER_TIMEOUT = 5  # seconds, for each of the answers that are waited for


def by_cluster(
    address: str, call: Call, tasks: Sequence[Task], out: str | None
) -> Iterator[TaskResult]:
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
                yield died(task)
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
    try:
        client.wait_for_workers(1, timeout=ANSWER_TIMEOUT)
    except TimeoutError:
        raise FleetError(f"the scheduler {address} has no workers") from None
    models = [task.model for task in tasks[:1] if not is_remote(task.model)]
    paths = [str(Path.cwd() / path) for path in models]
    with ExitStack() as stack:
        if out is not None and not is_remote(out) and Path(out).is_dir():
            prefix = ".graphpatch-probe-"  # of a file that nobody else could have
            with reported(out):
                token = stack.enter_context(NamedTemporaryFile(prefix=prefix, dir=out))
            paths.append(str(Path.cwd() / token.name))
        answers = client.run(probe, paths, on_error="return")
    here = graphpatch.__version__
    for worker, answer in sorted(answers.items()):
        if "ModuleNotFoundError" in repr(answer) or "AttributeError" in repr(answer):
            says = f"has no graphpatch, or another one: install graphpatch {here} there ({answer})"
        elif isinstance(answer, BaseException):
            says = f"does not answer: {answer!r}"
        elif answer[0] != here:
            says = f"has graphpatch {answer[0]}, and this is {here}; they must be the same"
        elif answer[1]:
            path = models[0] if models and answer[1][0] == paths[0] else f"the folder {out}"
            says = f"does not see {path} as this machine does; the files must lie where all see it"
        else:
            continue
        raise FleetError(f"worker {worker} {says}")


def probe(paths: list[str]) -> tuple[str, list[str]]:
    """Return on a worker the version of its graphpatch, and which of the paths it cannot read."""
    unseen = []
    for path in map(Path, paths):
        try:
            if not path.is_dir():
                path.open("rb").close()
        except OSError:
            unseen.append(str(path))
    return graphpatch.__version__, unseen
