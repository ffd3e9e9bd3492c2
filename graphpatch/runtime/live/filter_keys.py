"""Patches that change what flows back through an op's outputs or inputs, as keys."""

from __future__ import annotations

from functools import partial

import numpy as np

from graphpatch import opdefs
from graphpatch.errors import PatchError
from graphpatch.gradients import interpreter
from graphpatch.gradients.composed import ComposedGradient, GradientLayer
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.program import gradient_ops
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.spec import DefaultGradient, Gradient, PythonGradient, RegisteredKey
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.graph.op_types import CALLS
from graphpatch.patches import at, carrier, op_args
from graphpatch.patches.filter import FilterGradient
from graphpatch.patches.stop import StopGradient
from graphpatch.runtime.live.gradient_keys import NoKeyError, refuse_key_at_boundary

# Calls of functions: TensorFlow has their gradient under no key.
ALL_CALLS = CALLS | {"SymbolicGradient", "RemoteCall"}

# Gradients of TensorFlow that give zeros for zeros.
LINEAR_FILTERS = frozenset({"Identity", "Neg", "Sign"})


def filter_by_key(
    patch: FilterGradient, node: Node, now: ComposedGradient, editor: Editor
) -> ComposedGradient | None:
    """What flows back passes a gradient, before or behind the op's own."""
    carrier.refuse_key(patch.gradient, patch.emit)
    if not _lets_gradient_through(node, patch.at, editor):
        return None
    _check_filter(patch.gradient, node, editor)
    side, place = at.parsed(patch.at)
    if side == "output" and _has_several_outputs(node) and not keeps_zeros(patch.gradient, editor):
        raise NoKeyError(
            f"{node} has several outputs: TensorFlow gives its gradient zeros for those that "
            f"nothing flows back to, and this filter makes something else of zeros"
        )
    layer = GradientLayer(place, patch.gradient)
    return now.behind(layer) if side == "output" else now.before(layer)


def stop_all(
    patch: StopGradient, node: Node, now: ComposedGradient, editor: Editor
) -> ComposedGradient | None:
    """Nothing flows back."""
    if not _lets_gradient_through(node, patch.at, editor):
        return None
    side, place = at.parsed(patch.at)
    if side == "output" and place is not None and _has_several_outputs(node):
        raise NoKeyError(f"{node} has several outputs, and the gradient stops at one of them")
    layer = GradientLayer(place, None)
    return now.behind(layer) if side == "output" else now.before(layer)


def _lets_gradient_through(node: Node, where: str, editor: Editor) -> bool:
    """Whether anything flows back there; the report says where nothing does.

    Raises NoKeyError where something does that no gradient function of this op sees.
    """
    reason = at.idle(node, where)
    if reason:
        editor.skipped(reason)
        return False
    if op_args.is_source(node):
        raise NoKeyError(f"{node} is a source: TensorFlow asks for no gradient of it")
    refuse_key_at_boundary(node)
    if node.op in ALL_CALLS or node.op in node.body.library.signatures:
        raise NoKeyError(f"{node} calls a function, whose gradient TensorFlow has under no key")
    return True


def _has_several_outputs(node: Node) -> bool:
    return sum(map(op_args.carries, op_args.known_outputs(node))) > 1


def _check_filter(gradient: Gradient, node: Node, editor: Editor) -> None:
    """Raise FormulaError or PatchError where the gradient is not a filter of one tensor."""
    if isinstance(gradient, RegisteredKey):
        if gradient.by_name:
            _check_unary(gradient)
        return
    if isinstance(gradient, PythonGradient | DefaultGradient):
        return
    found = (*op_args.known_inputs(node), *op_args.known_outputs(node))
    for dtype in {arg.dtype or "" for arg in found if op_args.carries(arg)}:
        tensor = Signature.of([("x0", dtype)], [("y0", dtype)], same_shape=True)
        editor.cached(
            ("filters", gradient.key, dtype), partial(gradient_ops, gradient.formula, tensor)
        )


def _check_unary(gradient: RegisteredKey) -> None:
    known = opdefs.lookup(gradient.key)
    if known is not None and (len(known.inputs), len(known.outputs)) != (1, 1):
        raise PatchError(
            f"the gradient of {gradient.key} is for {len(known.inputs)} inputs and "
            f"{len(known.outputs)} outputs; a filter is for one tensor"
        )


def keeps_zeros(gradient: Gradient, editor: Editor) -> bool:
    """Whether a filter lets zeros through as zeros, for numbers of every size in the tensor."""
    if isinstance(gradient, RegisteredKey):
        return gradient.key in LINEAR_FILTERS
    if isinstance(gradient, PythonGradient | DefaultGradient):
        return False
    return editor.cached(("zeros", gradient.key), lambda: _gives_zeros(gradient.formula))


def _gives_zeros(formula: Formula) -> bool:
    sizes = np.geomspace(1e-6, 1e6, 25, dtype="float32")
    tensor = np.concatenate([-sizes, [0.0], sizes]).astype("float32")
    found = interpreter.gradient(formula, [tensor], [tensor], [np.zeros_like(tensor)])
    return found[0] is not None and not np.any(found[0])
