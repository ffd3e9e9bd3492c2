"""Our own Python, which AutoGraph must not rewrite where it is called in a tf.function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from graphpatch.runtime.graph_run import require_tensorflow

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

# What AutoGraph looks for on a function: it calls one that has it, and converts any other.
AUTOGRAPH_INFO = "autograph_info__"


def unconverted(function: Decorated) -> Decorated:
    """Return the function, which runs as it is in a tf.function; functions that it is given do not.

    Those are converted as far as the tf.function asks for it: they are the user's. TensorFlow is
    imported when the function is called, not before.
    """

    @functools.wraps(function)
    def called(*args: Any, **keywords: Any) -> Any:
        tf = require_tensorflow(f"{function.__name__} works on graphs of")
        args = tuple(map(_as_asked, args))
        return tf.autograph.experimental.do_not_convert(function)(*args, **keywords)

    setattr(called, AUTOGRAPH_INFO, {})
    return called  # type: ignore[return-value]


def _as_asked(argument: Any) -> Any:
    import tensorflow as tf

    autograph = tf.__internal__.autograph
    context = autograph.control_status_ctx()
    if context.status.name != "ENABLED" or not inspect.isroutine(argument):
        return argument
    return autograph.tf_convert(argument, context)
