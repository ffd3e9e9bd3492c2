"""Gradients that a live graph has already, which no rule changes any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from graphpatch.table import short


def built_before(graph: Any, names: Collection[str]) -> list[str]:
    """What the report says of gradients that were built of these ops before they were patched.

    Each op of a gradient knows the forward op that it was built for, in the process that built it.
    """
    found: Counter[str] = Counter()
    for op in graph.get_operations():
        forward = op._original_op
        if forward is not None and forward.name in names:
            found[forward.name] += 1
    if not found:
        return []
    some = short([repr(name) for name in found], 1)
    return [
        f"gradients of {some} were built before ({sum(found.values())} ops) and stay as "
        f"they are, in every Session: build them again (tf.gradients, an optimizer's minimize)"
    ]
