"""A folder takes the place of another, without a moment in which there is none."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from graphpatch.formats.unfinished import sweep, unfinished_name

SWAP = 2  # RENAME_EXCHANGE of Linux
HERE = -100  # AT_FDCWD: a path that is not absolute starts from the current folder
CANNOT = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}


def exchange(temporary: Path, path: Path) -> None:
    """Put the new folder in its place; one that was there goes once the new one stands.

    Who is killed in the middle leaves the old one or the new one there, whole. Where the system
    cannot swap two names at once, the old one may be left as `.NAME.TOKEN.old`, and none there; the
    next write to this place takes it away.
    """
    if not path.exists():
        temporary.rename(path)
    elif _swapped(temporary, path):
        return
    else:
        _by_turns(temporary, path)
    sweep([path])


def _by_turns(temporary: Path, path: Path) -> None:
    old = unfinished_name(path, "old")
    path.rename(old)
    try:
        temporary.rename(path)
    except OSError:
        old.rename(path)
        raise


def _swapped(one: Path, other: Path) -> bool:
    """Swap two names where system and file system can; whether they could."""
    swap = _renameat2()
    if swap is None:
        return False
    code = swap(HERE, os.fsencode(one), HERE, os.fsencode(other), SWAP)
    if code and code not in CANNOT:
        raise OSError(code, os.strerror(code), str(other))
    return code == 0


def _renameat2() -> Callable[..., int] | None:
    """The system's call, as a function that returns an error's number; None where it has none."""
    import ctypes

    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no library of no name
        return None
    place = (ctypes.c_int, ctypes.c_char_p)
    call.argtypes = [*place, *place, ctypes.c_uint]
    return lambda *args: ctypes.get_errno() if call(*args) else 0
