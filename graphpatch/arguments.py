"""Arguments of the Python API: a TypeError that names one, what it takes, and what was found."""

from __future__ import annotations

import os
from typing import Any

FILE = "the path of a file or folder to write"


def wrong_argument(argument: str, taken: str, given: object) -> TypeError:
    """The error for an argument of another type than it takes."""
    return TypeError(f"{argument}: expected {taken}; found {type(given).__name__}")


def check_path(argument: str, given: object, taken: str = FILE) -> None:
    """Raise TypeError where an argument is not a path."""
    if not isinstance(given, str | os.PathLike):
        raise wrong_argument(argument, taken, given)


def check_progress(given: object) -> None:
    """Raise TypeError where what is to be told of progress cannot be called."""
    if given is not None and not callable(given):
        taken = "a function of three arguments: what is done, how much of it, of how much"
        raise wrong_argument("progress", taken, given)


def tensor_names(argument: str, given: Any) -> list[str]:
    """The names of one tensor or variable, or of a list of them. Raises TypeError for others."""
    if not isinstance(given, list | tuple):
        return [tensor_name(argument, given, ", or a list of these")]
    return [tensor_name(f"{argument}[{place}]", one) for place, one in enumerate(given)]


def tensor_name(argument: str, given: Any, more: str = "") -> str:
    """The name of a tensor or variable, which may be given by it. Raises TypeError for others."""
    name = given if isinstance(given, str) else getattr(given, "name", None)
    if not isinstance(name, str):
        raise wrong_argument(argument, f"a tensor or its name{more}", given)
    return name
