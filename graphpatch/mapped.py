"""Files that are read: what a program does before it maps a large one, and small ones whole."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

BEFORE_MAPPING: list[Callable[[], None]] = []
"""What a program calls before it maps its first large file; a library calls nothing."""

MOST_READ = 512 << 20  # bytes of rules, a list, a manifest


def read_whole(path: str | os.PathLike[str], most: int = MOST_READ) -> bytes:
    """Return what a file or pipe holds; `-` is standard input.

    Raises OSError for a device, which has no end, and for more than `most` bytes.
    """
    piped = str(path) == "-"
    with nullcontext(sys.stdin.buffer) if piped else Path(path).open("rb") as file:
        try:
            mode = os.fstat(file.fileno()).st_mode
        except io.UnsupportedOperation:  # a program put something else in the place of its input
            mode = 0
        if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not file.isatty()):
            if not file.read(1):  # /dev/null
                return b""
            raise OSError(errno.EINVAL, "it is a device, which has no end", str(path))
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MB", str(path))
    return data
