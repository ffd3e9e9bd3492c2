"""Tensors that cannot be the loss: those of which tf.gradients makes no ones to start with."""

from __future__ import annotations

from collections.abc import Container

from graphpatch.analysis.doctor.finding import Finding
from graphpatch.control_flow.op_types import EXITS
from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.dtypes import HANDLES
from graphpatch.graph.body import Node


def target_refusal(wiring: Wiring, target: Tensor, in_loops: Container[str], shapes: Shapes) -> str:
    """What tf.gradients raises for a target that it makes no ones like; or nothing.

    A tensor in a loop cannot be read from outside the loop, not even its shape, where that is not
    known; TensorFlow 2.21 fails in saying so.
    """
    dtype, node = wiring.dtype(target), Node(wiring.body, target[0])
    is_inside = node.name in in_loops and node.op not in EXITS
    if is_inside and not shapes.is_known(target):
        return "TypeError: 'NoneType' object is not iterable"
    if dtype == "string":
        return "TypeError: Expected string, but got 1 of type 'int'."
    if dtype in HANDLES:
        return f"TypeError: `dtype` <dtype: '{dtype}'> is not compatible with 1 of dtype int64."
    if dtype in {"complex64", "complex128"}:
        return f"TypeError: Gradients of complex tensors must set grad_ys (y.dtype = {dtype})"
    return ""


def target_finding(wiring: Wiring, target: Tensor, says: str) -> Finding:
    """The finding of such a target, which is its own blocker."""
    dtype = wiring.dtype(target)
    reason = "lies in a v1 loop" if "iterable" in says else f"is {dtype}"
    what = f"{wiring.spelled(target)} {reason}: it cannot be the loss"
    node = Node(wiring.body, target[0])
    return Finding("target", node, None, what, says, "take a real number as the target")
