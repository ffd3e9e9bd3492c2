"""The first words with a scheduler: whether one is there at all, before anything rests on it."""

from __future__ import annotations

import asyncio
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, ParamSpec, TypeVar
from urllib.parse import urlsplit

P = ParamSpec("P")
R = TypeVar("R")

SOCKETS = {"", "tcp", "tls", "ws", "wss"}  # addresses that are a host and a port
SPEAKS_FIRST = {"", "tcp"}  # where the scheduler is the first to speak
ANSWER_TIMEOUT = 4  # seconds, for each of the answers that are waited for
RETRIED, RETRY = 2, 0.1  # seconds: a scheduler may be on its way up


def client_of_scheduler(address: str) -> Any:
    """A client of the scheduler at an address.

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
            found = call(*args, **kwargs)
            answer.put(lambda: found)
        except BaseException as error:  # raised again where it is waited for
            answer.put(partial(_raise, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        told = answer.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer for {seconds} seconds") from None
    return told()


def _raise(error: BaseException) -> NoReturn:
    raise error


def _connection(place: tuple[str, int]) -> socket.socket:
    """A connection to what listens there, or will in a moment."""
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
        told = await distributed.core.send_recv(comm, op="identity")
    finally:
        comm.abort()
    if told["type"] != "Scheduler":
        raise ConnectionError(f"what listens there is not a Dask scheduler, but a {told['type']}")
