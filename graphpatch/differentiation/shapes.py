"""Whether TensorFlow knows the shape of a tensor when it has imported the graph.

It infers shapes as it imports; what the file tells (`_output_shapes`) was inferred by the version
that wrote it, which may have known less, and many files tell nothing. Where the shape is known in
full, tf.gradients does not read the tensor: it makes the ones of the right shape as a constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

from graphpatch.control_flow.frames import is_constant
from graphpatch.control_flow.op_types import ALL_SWITCHES, ENTERS, FIXED, MERGES
from graphpatch.differentiation.shape_rules import RULES, SCALARS, broadcast
from graphpatch.differentiation.shape_windows import Shape
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.graph.body import Node
from graphpatch.graph.op_types import (
    GIVES_ON,
    OPTIONAL_PLACEHOLDER,
    PLACEHOLDER,
    REF_VARIABLES,
    RESOURCE_VARIABLE,
)

HOLDERS = frozenset({PLACEHOLDER, OPTIONAL_PLACEHOLDER, *REF_VARIABLES})
TELLING = ENTERS | ALL_SWITCHES  # whose inputs tell the shapes of all outputs, not of the first
MANY_OUTPUTS = 16  # outputs from which on their shapes are kept
SAME_SHAPE = frozenset({"Identity", "RefIdentity", *ENTERS, *ALL_SWITCHES})


class Shapes(msgspec.Struct, eq=False):
    """The shapes of the tensors of a body, as far as TensorFlow infers them; each inferred once."""

    wiring: Wiring
    _found: dict[Tensor, Shape] = msgspec.field(default_factory=dict)
    _many: dict[int, AttrValue] = msgspec.field(default_factory=dict)

    def is_known(self, tensor: Tensor) -> bool:
        """Whether every size of a tensor is known."""
        found = self.of(tensor)
        return found is not None and None not in found

    def of(self, tensor: Tensor) -> Shape:
        """The sizes of a tensor, None for one that is not known; None where the rank is not."""
        todo, begun = [tensor], set[Tensor]()
        while todo:
            one = todo[-1]
            if one in self._found:  # several read it, or one by several inputs
                todo.pop()
                continue
            read = () if one in begun else dict.fromkeys(self._read(one))
            missing = [other for other in read if other not in self._found]
            if not missing:
                todo.pop()
                self._found[one] = self._inferred(one)
            else:
                begun.add(one)  # one that is asked again meanwhile is read round a loop
                todo += [other for other in missing if other not in begun]
        return self._found[tensor]

    def _read(self, tensor: Tensor) -> Iterator[Tensor]:
        """The tensors whose shapes tell that of this one."""
        node = self.wiring.node(tensor[0])
        if node is None or (tensor[1] and node.op not in TELLING and not _calls_function(node)):
            return
        noted = self._noted(node, tensor[1])
        if tensor not in self._found and (noted is None or None in noted):
            for read in self.wiring.inputs(tensor[0]):
                before = self.wiring.node(read[0])
                if before is None or before.op not in FIXED:  # that is not there yet on import
                    yield read

    def _inferred(self, tensor: Tensor) -> Shape:
        node = self.wiring.node(tensor[0])
        if node is None:
            return None
        noted = self._noted(node, tensor[1])
        if noted is not None and None not in noted:
            return noted
        inputs, read = self.wiring.inputs(tensor[0]), set(self._read(tensor))
        shapes = [self._found.get(one) if one in read else None for one in inputs]
        found = self._by_op(node, tensor[1], shapes)
        return noted if found is None else found

    def _noted(self, node: Node, output: int) -> Shape:
        """What `_output_shapes` tells of an output; of many outputs it is read once."""
        value = self._many.get(node.index) or node.attr("_output_shapes")
        if value is None or output >= len(value.list.shape):
            return None
        if len(value.list.shape) > MANY_OUTPUTS:
            self._many[node.index] = value
        return _known_sizes(value.list.shape[output])

    def _by_op(self, node: Node, output: int, shapes: Sequence[Shape]) -> Shape:
        first = shapes[0] if shapes else None  # in a broken graph there may be no input
        if node.op in MERGES:
            return () if output else _merged(shapes)
        if node.op in ENTERS:
            return first if is_constant(node) else None
        if node.op in ALL_SWITCHES:
            return first
        if node.op in HOLDERS:
            value = node.attr("shape")
            return None if value is None else _known_sizes(value.shape)
        if node.op == "ReadVariableOp":
            return self._of_variable(node)
        if (node.op, output) in SCALARS:
            return ()
        place = _argument_given_on(node, output)
        if place is not None:
            return shapes[place] if place < len(shapes) else None
        if output:
            return None
        rule = RULES.get(node.op)
        try:
            return rule(node, shapes) if rule is not None else _kept_shape(node, shapes)
        except (IndexError, ValueError):  # a broken graph: the op has other inputs
            return None

    def _of_variable(self, node: Node) -> Shape:
        """The shape that the handle of a variable tells, wherever it enters a loop or branch."""
        seen: set[str] = set()
        while node.data_inputs and node.name not in seen:
            seen.add(node.name)
            found = node.body.producer(node.data_inputs[0])
            if found is None:
                return None
            node = found
            if node.op == RESOURCE_VARIABLE:
                value = node.attr("shape")
                return None if value is None else _known_sizes(value.shape)
            if node.op not in SAME_SHAPE:
                return None
        return None


def _calls_function(node: Node) -> bool:
    return node.op in node.body.library.signatures


def _argument_given_on(node: Node, output: int) -> int | None:
    """Of a call of a function that gives an argument on as this output: which one."""
    body = node.body.library.function(node.op) if _calls_function(node) else None
    if body is None or body.signature is None:
        return None
    outputs = body.signature.output_arg
    text = body.ret.get(outputs[output].name, "") if output < len(outputs) else ""
    given, arguments = body.producer(text), list(body.arguments)
    for _ in body:
        if given is None or given.op not in GIVES_ON or not given.data_inputs:
            break
        text = given.data_inputs[0]
        given = body.producer(text)
    return arguments.index(text) if given is None and text in arguments else None


def _kept_shape(node: Node, shapes: Sequence[Shape]) -> Shape:
    """The shape of output 0 of an op that keeps that of an input, or broadcasts its inputs."""
    known = node.opdef
    if known is None or not known.keeps_shape:
        return None
    if known.broadcasts:
        return broadcast(shapes)
    return shapes[known.keeps_shape[0]] if known.keeps_shape[0] < len(shapes) else None


def _merged(shapes: Sequence[Shape]) -> Shape:
    """What a Merge gives: of what comes round a loop nothing is known when it is imported."""
    if not shapes or any(one is None or len(one) != len(shapes[0] or ()) for one in shapes):
        return None
    columns = zip(*[one for one in shapes if one is not None], strict=True)
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in columns)


def _known_sizes(shape: TensorShapeProto) -> Shape:
    if shape.unknown_rank:
        return None
    return tuple(dim.size if dim.size >= 0 else None for dim in shape.dim)
