"""Stands for a Python of its own: asks a server to run a command line, and ends as that ends.

As a script, with `python -I -S`, which starts in 15 ms: client.py SOCKET PYTHON ARGUMENT...
Where the server is not there, or may not do it, PYTHON itself runs ARGUMENT...
"""

from __future__ import annotations

import _socket
import marshal
import os
import sys

STARTED = (-2).to_bytes(4, sys.byteorder, signed=True)
LOST = 70  # the exit code where a server ended before what it ran
LOWEST = 2  # the form of marshal that each Python reads


def started(path: str, arguments: list[str]) -> _socket.socket | None:
    """The connection to a server that runs the command line; None where nobody runs it."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    descriptors = b"".join(one.to_bytes(4, sys.byteorder) for one in range(3))
    request = marshal.dumps((arguments, os.getcwd(), dict(os.environ)), LOWEST)  # noqa: PTH109
    streams = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)
    try:
        connection.connect(path)
        connection.sendmsg([len(request).to_bytes(4, "big")], [streams])
        connection.sendall(request)
        return connection if connection.recv(4) == STARTED else None
    except OSError:
        return None


def end(status: int) -> None:
    """End with this status of waitpid: by the same signal, or with the same code."""
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def main(path: str, python: str, arguments: list[str]) -> None:
    """Ask, and end as the child did."""
    connection = started(path, arguments)
    if connection is None:
        os.execv(python, [python, *arguments])
    for stream in range(3):
        os.close(stream)
    status = connection.recv(4)
    if not status:
        os._exit(LOST)
    end(int.from_bytes(status, sys.byteorder))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
