"""A Dask cluster that is there already, as a pool. Workers read and write the files themselves."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import graphpatch
from graphpatch.errors import FleetError
from graphpatch.fleet import remote
from graphpatch.fleet.greeting import client_of_scheduler
from graphpatch.fleet.pool import Pool
from graphpatch.formats.destination import reported

WORKER_TIMEOUT = 5  # seconds, for a worker to be there


class Cluster(Pool):
    """The workers of a scheduler. It does again by itself what a worker that died was at.

    Raises FleetError where the scheduler does not answer, or a worker cannot do the work: it has
    no graphpatch, or another version, or does not see the files.
    """

    lives = 2
    tells_of_deaths = False

    def __init__(self, address: str, models: Sequence[str], out: str | None) -> None:
        super().__init__(1)
        self.address = address
        self.client = _connect(address)
        try:
            self._refuse_workers(models, out)
        except BaseException:
            self.client.close()
            raise
        self.window = max(64, 4 * sum(self.client.nthreads().values()))
        self.died = (_killed_worker(),)

    def close(self, at_once: bool = False) -> None:
        """Let the cluster go; `at_once`, take back what is not done yet."""
        if self.executor is not None:
            self.executor.shutdown(wait=not at_once)
        self.client.close()

    def _started(self) -> Executor:
        executor: Executor = self.client.get_executor(pure=False)
        return executor

    def _refuse_workers(self, models: Sequence[str], out: str | None) -> None:
        try:
            self.client.wait_for_workers(1, timeout=WORKER_TIMEOUT)
        except TimeoutError:
            raise FleetError(f"the scheduler {self.address} has no workers") from None
        with _token_file(out) as token:
            paths = [*token, *(one for one in models[:1] if not remote.is_remote(one))]
            sizes = {str(Path.cwd() / path): _file_size(path) for path in paths}
            answers = self.client.run(probe, sizes, on_error="return")
        for worker, answer in sorted(answers.items()):
            reason = _worker_reason(answer, out)
            if reason:
                raise FleetError(f"worker {worker} {reason}")


def probe(sizes: dict[str, int]) -> tuple[str, list[str]]:
    """On a worker: its graphpatch, and which of the files it does not see as they are."""
    return graphpatch.__version__, [
        path for path, size in sizes.items() if _file_size(path) != size
    ]


def _file_size(path: str) -> int:
    """The size of a file; of a folder, that it is there; -1 where there is nothing."""
    if Path(path).is_dir():
        return 0
    try:
        with Path(path).open("rb") as file:
            return os.fstat(file.fileno()).st_size
    except OSError:
        return -1


def _worker_reason(answer: Any, out: str | None) -> str:
    """Why a worker cannot do the work; nothing where it can."""
    here = graphpatch.__version__
    if "ModuleNotFoundError" in repr(answer) or "AttributeError" in repr(answer):
        return f"has no graphpatch, or another one: install graphpatch {here} there ({answer})"
    if isinstance(answer, BaseException):
        return f"does not answer: {answer!r}"
    version, unseen = answer
    if version != here:
        return f"has graphpatch {version}, and this is {here}; they must be the same"
    if unseen:
        seen = unseen[0] if "graphpatch-probe" not in unseen[0] else f"the folder {out}"
        return f"does not see {seen} as this machine does; the files must lie where all see them"
    return ""


@contextlib.contextmanager
def _token_file(out: str | None) -> Iterator[list[str]]:
    """A file in the folder of outputs that nobody else could have, while this lasts."""
    folder = None if out is None or remote.is_remote(out) else Path(out)
    if folder is None or not folder.is_dir():
        yield []
        return
    path = folder / f".graphpatch-probe-{uuid.uuid4().hex}"
    with reported(path):
        path.write_bytes(b"seen")
    try:
        yield [str(path)]
    finally:
        path.unlink(missing_ok=True)


def _connect(address: str) -> Any:
    try:
        return client_of_scheduler(address)
    except ImportError:
        raise FleetError("--scheduler needs Dask: pip install distributed") from None
    except Exception as error:  # whatever an address can be wrong in
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FleetError(f"no scheduler answers at {address}: {reason}") from error


def _killed_worker() -> type[BaseException]:
    from distributed import KilledWorker

    found: type[BaseException] = KilledWorker
    return found
