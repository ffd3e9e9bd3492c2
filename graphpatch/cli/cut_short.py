"""A large file that is cut short while it is read: a message, and not an end by a signal.

What lies behind the new end of a mapped file cannot be read: the system ends the process that tries
(SIGBUS). Python cannot do anything about it afterwards, so this is done before.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from graphpatch.errors import CHANGED

_KEPT: list[Any] = []  # the system calls it as long as the process lives


def report_cut_short() -> None:
    """From now on, exit with a message where a mapped file ends before its end."""
    if not hasattr(signal, "SIGBUS") or _KEPT:
        return
    import ctypes

    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
    call = ctypes.CDLL(None).signal
    call.argtypes, call.restype = [ctypes.c_int, kind], ctypes.c_void_p
    _KEPT.append(kind(_exit))
    call(signal.SIGBUS, _KEPT[0])


def _exit(_: int) -> None:
    # Nothing is imported here: what is being written has been imported already.
    unfinished = sys.modules.get("graphpatch.formats.unfinished")
    if unfinished is not None:
        unfinished.remove_mine()
    os.write(2, f"graphpatch: {CHANGED}\n".encode())
    os._exit(1)
