"""What a room calls of later ones, further down in the table of rooms: of `runtime/` and `page/`.

The room says which function it calls, with which types; `graphpatch/__init__.py` says where it is,
before any room is imported. The call imports it. So no room itself imports a later one.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MODULES: dict[str, str] = {}
"""The module of each of these functions, which is imported when one is called."""

_IMPORTING = threading.RLock()


def imported(module: str) -> ModuleType:
    """Return a module, imported where it is not: by one thread at a time.

    Of threads that begin at once, Python fails one with a deadlock of two modules that import each
    other.
    """
    with _IMPORTING:
        return importlib.import_module(module)


class FromLater(Generic[P, R]):
    """A function of a later room, with the types of its arguments and of what it returns."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: P.args, **options: P.kwargs) -> R:
        """Return what the function returns, or raises."""
        function: Callable[P, R] = getattr(imported(MODULES[self.name]), self.name)
        return function(*args, **options)

    def is_for(self, function: Callable[P, R]) -> None:
        """Say which function is meant: its module calls this, for mypy to compare the types."""
