"""Patches that give an op another gradient of its own, as keys."""

from __future__ import annotations

from graphpatch.control_flow.op_types import BOUNDARIES
from graphpatch.errors import PatchError
from graphpatch.gradients.composed import ComposedGradient, python_key, surrogate_key
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.spec import (
    DefaultGradient,
    Gradient,
    InlineFormula,
    PythonGradient,
    RegisteredKey,
    built_in_key,
)
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.patches import carrier, op_args
from graphpatch.patches.override import OverrideGradient, never_fires
from graphpatch.patches.straight_through import StraightThrough
from graphpatch.patches.surrogate import SurrogateGradient


class NoKeyError(PatchError):
    """A patch needs more than a key on an op; a patched graph can do it."""


def override(
    patch: OverrideGradient, node: Node, now: ComposedGradient, editor: Editor
) -> ComposedGradient | None:
    """The op's own gradient is another one; filters stay around it."""
    if isinstance(patch.gradient, DefaultGradient):
        if now.own == node.op:
            raise PatchError(
                f"{node} has no override to take off; its gradient is TensorFlow's default"
            )
        return ComposedGradient(node.op, now.outputs, now.inputs)
    reason = never_fires(node)
    if reason:
        editor.skipped(reason)
        return None
    refuse_key_at_boundary(node)
    carrier.refuse_key(patch.gradient, patch.emit)
    return _composed(own_key(patch.gradient, node, patch.emit, editor), now)


def own_key(gradient: Gradient, node: Node, emit: str, editor: Editor) -> str:
    """The key of a gradient for an op: one of TensorFlow's own where that is exactly it.

    Raises PatchError where the gradient does not fit the op.
    """
    if isinstance(gradient, PythonGradient):
        return python_key(gradient)
    if isinstance(gradient, RegisteredKey):
        carrier.check_once(gradient, node, editor)
        return gradient.key
    assert not isinstance(gradient, DefaultGradient), "it takes off, and gives none"
    fitting = gradient.for_op(node.op)
    carrier.check_once(fitting, node, editor)
    exact = built_in_key(fitting, node.opdef) if emit == "auto" else None
    return exact or fitting.key


def straight_through_key(
    patch: StraightThrough, node: Node, now: ComposedGradient, editor: Editor
) -> ComposedGradient | None:
    """The op counts as the identity of one of its inputs."""
    refuse_key_at_boundary(node)
    patch.check_op(node)
    count = len(op_args.known_inputs(node))
    if count == 1:
        return _composed("Identity", now)
    gradient = InlineFormula(
        Formula.parse(["dy" if n == patch.input else None for n in range(count)])
    )
    carrier.check_once(gradient, node, editor)
    return _composed(gradient.key, now)


def surrogate_or_key(
    patch: SurrogateGradient, node: Node, now: ComposedGradient, editor: Editor
) -> ComposedGradient | None:
    """The op counts as a formula of its inputs, which TensorFlow differentiates."""
    refuse_key_at_boundary(node)
    patch.check_op(node)
    return _composed(surrogate_key(patch.formula), now)


def refuse_key_at_boundary(node: Node) -> None:
    """Raise NoKeyError for an op that leads into or out of a v1 loop or branch.

    TensorFlow computes its gradient inside, and has what a filter reads outside, or the reverse.
    """
    if node.op in BOUNDARIES:
        raise NoKeyError(f"{node} leads into or out of a loop or branch")


def _composed(own: str, now: ComposedGradient) -> ComposedGradient:
    return ComposedGradient(own, now.outputs, now.inputs)
