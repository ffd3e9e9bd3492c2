"""Processes that start in hundredths of a second: forked from one that has imported what is slow.

`python("tensorflow")` is the start of a command line, in the place of `sys.executable`. Arguments,
environment, folder, streams, exit code and signals are those of a fresh Python. GRAPHPATCH_FRESH=1
makes them all fresh ones, which takes several times as long.
"""

from __future__ import annotations

import atexit
import functools
import os
import socket
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

from tests.pinned import PINNED

HERE = Path(__file__).parent
FRESH = "GRAPHPATCH_FRESH"
COMMAND = "tests.forked.command"  # what imports graphpatch's commands
SOCKETS = "GRAPHPATCH_TESTS_SOCKETS"

# Arguments of commands that import TensorFlow, and commands that leave it to other processes.
NEEDS_TENSORFLOW = {
    *("verify", "split", "references"),
    *("--run", "--rebuild-gradients", "--allow-python"),
}
ASKS_OTHERS = {"verify", "view"}


def running(arguments: Sequence[object]) -> list[str]:
    """What runs graphpatch with these arguments, in the place of `python -m graphpatch`."""
    if NEEDS_TENSORFLOW & set(arguments):
        with_tensorflow = python("tensorflow")
        if arguments[0] not in ASKS_OTHERS:
            return [*with_tensorflow, "-m", "graphpatch"]
    return [*python(COMMAND), "-m", "graphpatch"]


def python(module: str, executable: str = sys.executable) -> list[str]:
    """What runs a command line with a module imported, in the place of an executable."""
    if os.environ.get(FRESH):
        return [executable]
    with STARTING:
        _start(module, executable)
    return client(module, executable)


def client(module: str, executable: str = sys.executable) -> list[str]:
    """The same; where no server was started, the executable itself runs it."""
    path = _socket(module, executable)
    return [sys.executable, "-I", "-S", str(HERE / "client.py"), path, executable]


def _socket(module: str, executable: str) -> str:
    own = executable == sys.executable
    return str(sockets() / (module if own else f"{module} {zlib.crc32(executable.encode())}"))


@functools.cache
def sockets() -> Path:
    """The folder of the sockets: one for a process that runs tests, and for what it starts."""
    if SOCKETS in os.environ:
        return Path(os.environ[SOCKETS])
    folder = tempfile.TemporaryDirectory(prefix="graphpatch-tests-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


SERVERS: dict[str, subprocess.Popen[bytes]] = {}
STARTING = threading.Lock()  # `verify` asks for two at once


def _start(module: str, executable: str) -> None:
    """Start a server, unless one runs already."""
    path = _socket(module, executable)
    if path in SERVERS and SERVERS[path].poll() is None:
        return
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen(64)
        SERVERS[path] = _serve(listening.fileno(), executable, module)


def _serve(descriptor: int, executable: str, module: str) -> subprocess.Popen[bytes]:
    """A new server; who asks before it is ready waits."""
    environment = {**os.environ, **PINNED, SOCKETS: str(sockets())}
    if executable == sys.executable:
        environment["PYTHONPATH"] = str(HERE.parent.parent)
    server = subprocess.Popen(
        [executable, str(HERE / "server.py"), str(descriptor), module],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        pass_fds=[descriptor],
        start_new_session=True,
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait()
