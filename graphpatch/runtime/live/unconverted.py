"""Functions of ours that run as they are where a user calls them inside of a `tf.function`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# What AutoGraph looks for on a function: it calls one that has it, and converts any other.
MARK = "autograph_info__"


def unconverted(function: F) -> F:
    """The function, which AutoGraph leaves as it is.

    `tf.autograph.experimental.do_not_convert` does the same, but TensorFlow must be imported for
    it, which is not before a function is called.
    """
    setattr(function, MARK, {})
    return function
