"""What a training graph computes from the gradients of its optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphpatch.analysis.gradient_scope import GradientScope
from graphpatch.runtime.running import waiting_ops
from graphpatch.runtime.verify.outputs import writes


def trained(graph: Any, scopes: Sequence[GradientScope]) -> set[Any]:
    """The gradients that update variables, and the ops that are computed from them.

    Gradients of which a loss is computed, as a gradient penalty, are not among them: they come
    before the gradients of that loss.
    """
    inside = [[op for op in graph.get_operations() if one.holds(op.name)] for one in scopes]
    found: set[Any] = set()
    for ops in inside:
        behind = waiting_ops(ops, control=False)
        before_others = any(op in behind for other in inside if other is not ops for op in other)
        if not before_others and any(map(writes, behind)):
            found |= behind
    return found
