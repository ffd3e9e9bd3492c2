"""A Dask cluster that is there already, as a pool. Workers read and write the files themselves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar
from urllib.parse import urlsplit

import graphpatch
from graphpatch.errors import FleetError
from graphpatch.fleet import remote
from graphpatch.fleet.run import Pool
from graphpatch.formats.destination import reported

P = ParamSpec("P")
R = TypeVar("R")

SOCKETS = {"", "tcp", "tls", "ws", "wss"}  # addresses that are a host and a port
SPEAKS_FIRST = {"", "tcp"}  # where the scheduler is the first to speak
ANSWER_TIMEOUT = 4  # seconds, for each of the answers that are waited for
RETRIED, RETRY = 2, 0.1  # seconds: a scheduler may be on its way up


def client_of_scheduler(address: str) -> Any:
    """Return a client of the scheduler at an address.

    Raises ImportError where Dask is not there, and whatever else is wrong with the address; where
    nothing is reached, within ANSWER_TIMEOUT seconds, the import of Dask, and ANSWER_TIMEOUT again.
    """
    call_within(ANSWER_TIMEOUT, wait_for_listener, address)
    import distributed

    # What happens to the connection is told by our errors, and a task that is lost is done again.
    for name in ("distributed", "distributed.client"):  # Dask gives each a level of its own
        logging.getLogger(name).setLevel(logging.CRITICAL)
    call_within(ANSWER_TIMEOUT, asyncio.run, _shake(distributed, address))
    client_of: Any = distributed.Client  # typed or not, as Dask is there or not
    return call_within(
        ANSWER_TIMEOUT, client_of, address, timeout=ANSWER_TIMEOUT, set_as_default=False
    )


def wait_for_listener(address: str) -> None:
    """Wait until something listens there, and speaks as a scheduler does: at once.

    It takes no import of Dask to find out that nobody is there. Raises OSError where that is so,
    ValueError where the address is none.
    """
    scheme, _, place = address.rpartition("://")
    if scheme not in SOCKETS:
        return  # Dask knows what that is, if anything
    parts = urlsplit(f"//{place}")
    if not parts.hostname or parts.port is None:
        raise ValueError("an address is HOST:PORT, or tcp://HOST:PORT")
    with _connection((parts.hostname, parts.port)) as connection:
        if scheme in SPEAKS_FIRST:
            _hear(connection)


def call_within(seconds: float, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What a call returns or raises; TimeoutError where it is not back in time, and left to itself.

    The name of a host may be looked up without end, and some connections are waited for so.
    """
    answer: queue.Queue[Callable[[], R]] = queue.Queue()

    def run() -> None:
        try:
            value = call(*args, **kwargs)
            answer.put(lambda: value)
        except BaseException as error:  # raised again where it is waited for
            answer.put(partial(_raise, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        result = answer.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer for {seconds} seconds") from None
    return result()


def _raise(error: BaseException) -> NoReturn:
    raise error


def _connection(place: tuple[str, int]) -> socket.socket:
    """Return a connection to what listens there, or will in a moment."""
    until = time.monotonic() + RETRIED
    while True:
        try:
            return socket.create_connection(place, ANSWER_TIMEOUT)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(RETRY)


def _hear(connection: socket.socket) -> None:
    try:
        heard = connection.recv(1)  # within the patience that it was connected with
    except TimeoutError:
        raise TimeoutError("what listens there does not answer") from None
    if not heard:
        raise ConnectionError("what listens there closes the connection")


async def _shake(distributed: Any, address: str) -> None:
    """Ask who is there; what is not a scheduler fails here, and leaves nothing.

    A client that failed halfway would be waited for when the process ends.
    """
    secrets = distributed.Security().get_connection_args("client")
    try:
        comm = await distributed.comm.connect(address, timeout=ANSWER_TIMEOUT, **secrets)
    except MemoryError:  # the first word of a scheduler is a size
        raise ConnectionError("what listens there is not a Dask scheduler") from None
    try:
        identity = await distributed.core.send_recv(comm, op="identity")
    finally:
        comm.abort()
    if identity["type"] != "Scheduler":
        raise ConnectionError(
            f"what listens there is not a Dask scheduler, but a {identity['type']}"
        )


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
            paths = [*token, *(model for model in models[:1] if not remote.is_remote(model))]
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
    """Return the size of a file; of a folder, that it is there; -1 where there is nothing."""
    if Path(path).is_dir():
        return 0
    try:
        with Path(path).open("rb") as file:
            return os.fstat(file.fileno()).st_size
    except OSError:
        return -1


def _worker_reason(answer: Any, out: str | None) -> str:
    """Return why a worker cannot do the work; nothing where it can."""
    here = graphpatch.__version__
    if "ModuleNotFoundError" in repr(answer) or "AttributeError" in repr(answer):
        return f"has no graphpatch, or another one: install graphpatch {here} there ({answer})"
    if isinstance(answer, BaseException):
        return f"does not answer: {answer!r}"
    version, unseen = answer
    if version != here:
        return f"has graphpatch {version}, and this is {here}; they must be the same"
    if unseen:
        path = unseen[0] if "graphpatch-probe" not in unseen[0] else f"the folder {out}"
        return f"does not see {path} as this machine does; the files must lie where all see them"
    return ""


@contextlib.contextmanager
def _token_file(out: str | None) -> Iterator[list[str]]:
    """Return a file in the folder of outputs that nobody else could have, while this lasts."""
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

    error_class: type[BaseException] = KilledWorker
    return error_class
