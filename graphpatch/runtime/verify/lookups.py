"""Which ops TensorFlow asked for their gradients, while gradients were built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from graphpatch.names import OpKey


@contextmanager
def recorded() -> Iterator[set[OpKey]]:
    """Note each op whose gradient TensorFlow looks up meanwhile.

    `get_gradient_function` is asked of each op that an upstream gradient came to, whether its key
    is registered or its function has a gradient of its own in the library; nothing is built of it
    but by who asked. What C++ differentiates (SymbolicGradient over a body) does not ask.
    """
    from tensorflow.python.framework import ops

    found, original = set[OpKey](), ops.get_gradient_function

    def look_up(op: Any) -> Any:
        is_body = hasattr(op.graph, "outer_graph")
        found.add((op.graph.name if is_body else "main", op.name))
        return original(op)

    ops.get_gradient_function = look_up
    try:
        yield found
    finally:
        ops.get_gradient_function = original
