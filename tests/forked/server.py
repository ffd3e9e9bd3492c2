"""A Python that has imported what takes long, and forks a process for each command line.

As a script, under Python 3.7 too: server.py SOCKET_FD MODULE... It ends with its standard input.
What a command line starts with is what a fresh Python would give it: arguments, environment,
folder, standard streams and sys.path; only the imported modules are there already.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import marshal
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import types

DECLINED, STARTED = -1, -2
# What counts when Python or TensorFlow starts, and cannot be told to a fork of them.
READ_AT_START = {"PYTHONHASHSEED", "PYTHONIOENCODING", "PYTHONOPTIMIZE", "PYTHONUTF8"}
READ_AT_IMPORT = ("TF_", "ONEDNN_", "XLA_", "OMP_")
# What TensorFlow reads anew, and what is Terraform's.
NOT_SETTLED = ("TF_CPP_MIN_LOG_LEVEL", "TF_CLI_", "TF_VAR_", "TF_LOG")
DESCRIPTORS = struct.Struct("3i")
STATUS = struct.Struct("i")


def serve(listening: socket.socket) -> tuple:
    """Fork for each that asks. Returns in the children alone: what each is to run."""
    start = settled(os.environ)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
    while True:
        if sys.stdin in select.select([listening, sys.stdin], [], [])[0]:
            os.killpg(0, signal.SIGKILL)  # nobody asks any more
        connection, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            return answer(connection, start)
        connection.close()


def answer(connection: socket.socket, start: dict) -> tuple:
    """Start a child, and tell who asks how it ends. Returns in the child: what it is to run."""
    try:
        asked, descriptors = received(connection)
        if settled(asked[2]) != start:
            connection.sendall(STATUS.pack(DECLINED))
            os._exit(0)
    except (OSError, ValueError, EOFError):  # who asked was killed before all was said
        os._exit(0)
    child = os.fork()
    if child == 0:
        connection.close()
        return asked, descriptors
    for descriptor in descriptors:
        os.close(descriptor)
    threading.Thread(target=end_with, args=(connection, child), daemon=True).start()
    with contextlib.suppress(OSError):  # who asked was killed: end_with ends the child
        connection.sendall(STATUS.pack(STARTED))
    status = os.waitpid(child, 0)[1]
    with contextlib.suppress(OSError):
        connection.sendall(STATUS.pack(status))
    os._exit(0)


def end_with(connection: socket.socket, child: int) -> None:
    """End the child where who asked was killed."""
    with contextlib.suppress(OSError):
        connection.recv(1)
    os.kill(child, signal.SIGKILL)


def settled(environment) -> dict:  # noqa: ANN001
    """The variables that a fork cannot be given anew."""
    return {
        name: value
        for name, value in environment.items()
        if name in READ_AT_START
        or (name.startswith(READ_AT_IMPORT) and not name.startswith(NOT_SETTLED))
    }


def received(connection: socket.socket) -> tuple:
    """What a client asks: (arguments, folder, environment), and its standard streams."""
    room = socket.CMSG_SPACE(DESCRIPTORS.size)
    data, given, _, _ = connection.recvmsg(4, room)
    [(_, _, packed)] = given
    with connection.makefile("rb") as stream:
        asked = marshal.loads(stream.read(int.from_bytes(data, "big")))
    return asked, DESCRIPTORS.unpack(packed[: DESCRIPTORS.size])


def become(folder: str, environment: dict, descriptors: tuple) -> None:
    """Take the folder, the environment and the standard streams of the client."""
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.chdir(folder)
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(environment)
    for name, mode in (("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb")):
        setattr(sys, name, stream(getattr(sys, name), mode))
        setattr(sys, "__" + name + "__", getattr(sys, name))
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = paths + [path for path in sys.path[1:] if path not in own]


def stream(old: io.TextIOWrapper, mode: str) -> io.TextIOWrapper:
    """A standard stream as Python makes it at its start."""
    place = ["stdin", "stdout", "stderr"].index(old.name.strip("<>"))
    raw = open(place, mode, closefd=False)  # noqa: SIM115
    lines = place == 2 or raw.isatty()
    return io.TextIOWrapper(raw, old.encoding, old.errors, line_buffering=lines)


def run(arguments: list) -> None:
    """Do what Python does with these arguments: -m MODULE, -c PROGRAM or SCRIPT, and more."""
    kind, rest = arguments[0], arguments[1:]
    if kind == "-m":
        sys.argv[:] = rest
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.argv[:] = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))  # noqa: PTH100, PTH120
        runpy.run_path(kind, run_name="__main__")


def main(descriptor: str, modules: list) -> None:
    """Import, then serve; in each child, run what was asked."""
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    (arguments, folder, environment), streams = serve(socket.socket(fileno=int(descriptor)))
    become(folder, environment, streams)
    run(arguments)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
