"""Whether TensorFlow knows the shape of a tensor when it has imported the graph.

It infers shapes as it imports; what the file tells (`_output_shapes`) was inferred by the version
that wrote it, which may have known less. Where the shape is known in full, tf.gradients does not
read the tensor: it makes the ones of the right shape as a constant.
"""

from __future__ import annotations

from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

from graphpatch.analysis.doctor.wiring import Tensor, Wiring
from graphpatch.differentiation.frames import ENTERS, MERGES, SWITCHES
from graphpatch.graph.body import Node

NUMBERS = frozenset({"Rank", "Size"})
HOLDERS = frozenset({"Placeholder", "VariableV2", "Variable"})


def is_known(wiring: Wiring, tensor: Tensor) -> bool:
    """Whether TensorFlow knows every size of a tensor, without running the graph."""
    todo, seen = [tensor], set[Tensor]()
    while todo:
        one = todo.pop()
        if one in seen or _is_told(wiring, one):
            continue
        seen.add(one)
        needed = _needed(wiring, one)
        if needed is None:
            return False
        todo += needed
    return True


def _is_told(wiring: Wiring, tensor: Tensor) -> bool:
    """Whether the file tells the shape of a tensor, every size of it."""
    node = wiring.node(tensor[0])
    value = None if node is None else node.attr("_output_shapes")
    if value is None or tensor[1] >= len(value.list.shape):
        return False
    return _is_full(value.list.shape[tensor[1]])


def _needed(wiring: Wiring, tensor: Tensor) -> list[Tensor] | None:
    """The tensors whose shapes, where all are known, give that of this one; None where none do."""
    index, output = tensor
    node = wiring.node(index)
    if node is None:
        return None
    inputs = wiring.inputs(index)
    if node.op in MERGES:  # what comes round a loop is not yet there when its shape is inferred
        return [] if output == 1 else None
    if node.op in SWITCHES:
        return inputs[:1]
    if node.op in ENTERS:
        constant = node.attr("is_constant")
        return inputs[:1] if constant is not None and constant.b else None
    if output:
        return None
    return _of_first(node, inputs)


def _of_first(node: Node, inputs: list[Tensor]) -> list[Tensor] | None:
    """The same for output 0 of an op that is not of control flow."""
    if node.op == "Const" or node.op in NUMBERS:
        return []
    if node.op in HOLDERS:
        shape = node.attr("shape")
        return [] if shape is not None and _is_full(shape.shape) else None
    if node.op == "Shape":
        return inputs[:1]
    known = node.opdef
    if known is None or not known.keeps_shape:
        return None
    return inputs if known.broadcasts else [inputs[known.keeps_shape[0]]]


def _is_full(shape: TensorShapeProto) -> bool:
    return not shape.unknown_rank and all(dim.size >= 0 for dim in shape.dim)
