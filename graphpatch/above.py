"""What a room calls of rooms above it: TensorFlow's part in `runtime/`, and that of `page/`.

The room says which function it calls, with which types; `graphpatch/__init__.py` says where it is,
before any room is imported. So no room imports one above it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MODULES: dict[str, str] = {}
"""The module of each of these functions, which is imported when one is called."""


class FromAbove(Generic[P, R]):
    """A function of a room above, with the types of its arguments and of what it returns."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: P.args, **options: P.kwargs) -> R:
        """Return what the function returns, or raises."""
        function: Callable[P, R] = getattr(importlib.import_module(MODULES[self.name]), self.name)
        return function(*args, **options)

    def is_for(self, function: Callable[P, R]) -> None:
        """The module of the function calls this: mypy finds where the types are others."""
