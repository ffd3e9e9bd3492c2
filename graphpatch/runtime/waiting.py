"""Which ops of a tf.Graph wait for others."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any


def waiting_ops(ops: Sequence[Any], fed: Container[str] = (), control: bool = True) -> set[Any]:
    """These ops, and all that wait for them; who reads a fed tensor does not wait for its op.

    Without `control`, only what is computed from their tensors.
    """
    found, todo = set(), list(ops)
    while todo:
        op = todo.pop()
        if op not in found:
            found.add(op)
            todo += [
                reader
                for output in op.outputs
                if output.name not in fed
                for reader in output.consumers()
            ]
            todo += op._control_outputs if control else ()
    return found
