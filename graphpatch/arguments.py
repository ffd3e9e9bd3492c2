"""Arguments of the Python API: a TypeError that names one, what it takes, and what was found."""

from __future__ import annotations

import os
from typing import Any

FILE = "the path of a file or folder to write"


def wrong_argument(argument: str, taken: str, value: object) -> TypeError:
    """Return the error for an argument of another type than it takes."""
    return TypeError(f"{argument}: expected {taken}; found {type(value).__name__}")


def check_path(argument: str, value: object, taken: str = FILE) -> None:
    """Raise TypeError where an argument is not a path."""
    if not isinstance(value, str | os.PathLike):
        raise wrong_argument(argument, taken, value)


def check_progress(value: object) -> None:
    """Raise TypeError where what is to be told of progress cannot be called."""
    if value is not None and not callable(value):
        taken = "a function of three (what is done, how much, of how much); a result has save()"
        raise wrong_argument("progress", taken, value)


def tensor_names(argument: str, value: Any) -> list[str]:
    """The names of one tensor or variable, or of a list of them. Raises TypeError for others."""
    if not isinstance(value, list | tuple):
        return [tensor_name(argument, value, ", or a list of these")]
    return [tensor_name(f"{argument}[{place}]", item) for place, item in enumerate(value)]


def tensor_name(argument: str, value: Any, more: str = "") -> str:
    """The name of a tensor or variable, which may be given by it. Raises TypeError for others."""
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if not isinstance(name, str):
        raise wrong_argument(argument, f"a tensor or its name{more}", value)
    return name
