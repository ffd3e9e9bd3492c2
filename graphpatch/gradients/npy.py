"""The .npy files that rules name: numbers and nothing else, found where the rules are.

Nothing in a file is run, no more memory is taken than the file has bytes, and a name leads neither
out of the folder of the rules nor to a pipe or a device.
"""

from __future__ import annotations

import io
import os
import tokenize
import warnings
from collections.abc import Callable
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from graphpatch.errors import RulesError

NPY_SUFFIX = ".npy"
LARGEST_FILE = 256 << 20  # bytes of one file: what it holds is written into each model
_HEADERS = {(1, 0): "read_array_header_1_0", (2, 0): "read_array_header_2_0"}
# What numpy raises for a header that is none.
BROKEN = (
    *(ValueError, SyntaxError, TypeError, OverflowError, RecursionError, MemoryError),
    tokenize.TokenError,
)

# The bytes of the file that rules call by this name. Raises RulesError where there is none.
Files = Callable[[str], bytes]


def in_folder(folder: Path) -> Files:
    """The files of a folder of this machine."""
    return lambda name: _array_of(folder, checked_name(name))


def checked_name(name: str) -> str:
    """The name of an .npy file, if it stays in the folder of the rules. Raises RulesError."""
    if not name.endswith(NPY_SUFFIX):
        raise RulesError(f"expected lists of numbers or the name of an .npy file, found {name!r}")
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    if posix.is_absolute() or windows.anchor or ".." in (*posix.parts, *windows.parts):
        raise RulesError(f"{name!r} leads out of the folder of the rules file; put the file there")
    return name


def numbers(raw: bytes, name: str) -> Any:
    """The array of numbers that the bytes of an .npy file hold. Raises RulesError for another."""
    found = array(raw, name)
    if found.dtype.kind not in "fiu" or found.dtype.itemsize > 8:
        raise RulesError(f"{name}: expected numbers, found {found.dtype}")
    return found


def array(raw: bytes, name: str) -> Any:
    """The numpy array that the bytes of an .npy file hold, to be read only.

    Raises RulesError where they hold none, or one of Python objects, which would run code.
    """
    import numpy as np

    stream = io.BytesIO(raw)
    try:
        header = _HEADERS.get(np.lib.format.read_magic(stream), "")
        if not header:
            raise RulesError(f"{name} is not an .npy file of numbers: its version is not 1 or 2")
        with warnings.catch_warnings():  # of headers that Python 2 wrote
            warnings.simplefilter("ignore", UserWarning)
            shape, fortran, dtype = getattr(np.lib.format, header)(stream)
        _check_array(shape, dtype, len(raw) - stream.tell(), name)
        flat = np.frombuffer(raw, dtype, prod(shape), stream.tell())
        return flat.reshape(shape, order="F" if fortran else "C")
    except BROKEN as error:
        raise RulesError(f"{name} is not an .npy file of numbers: {_said(error)}") from None


def _check_array(shape: tuple[int, ...], dtype: Any, there: int, name: str) -> None:
    if dtype.hasobject:
        raise RulesError(f"{name}: expected numbers, found {dtype}")
    needed = prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or needed != there:
        raise RulesError(
            f"{name} is not whole: expected {needed:,} bytes of {dtype}{list(shape)}, found "
            f"{there:,}"
        )


def _said(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _array_of(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
        if root not in real.parents:
            raise RulesError(
                f"{path} is a link that leads out of the folder of the rules file, to {real}; "
                f"it is not followed; copy the file there"
            )
        if path.exists() and not path.is_file():
            raise RulesError(f"cannot read {path}: it is not a file")
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise RulesError(f"{path} has {size:,} bytes; {LARGEST_FILE:,} at most go into a rule")
        with path.open("rb") as file:
            return file.read(LARGEST_FILE)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        said = getattr(error, "strerror", None) or error
        raise RulesError(f"cannot read {path}: {said}") from None
