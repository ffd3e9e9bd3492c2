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

from graphpatch.control_flow.contexts import is_constant
from graphpatch.control_flow.op_types import ALL_SWITCHES, ENTERS, FIXED, MERGES
from graphpatch.differentiation.handles import handle_origin
from graphpatch.differentiation.known_numbers import gives_numbers, numbers_of
from graphpatch.differentiation.op_shapes import (
    LARGEST_RANK,
    Numbers,
    OpShapes,
    Sizes,
    broadcast,
    known_size,
    merged_shape,
)
from graphpatch.differentiation.shape_rules import BY_OUTPUT, BY_SLOT, RULES, SCALARS
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.errors import ModelError
from graphpatch.graph.body import Body, Node
from graphpatch.graph.op_types import (
    CASES,
    GIVES_ON,
    IFS,
    OLD_VARIABLE,
    OPTIONAL_PLACEHOLDER,
    PIPELINES,
    PLACEHOLDER,
    PLACEHOLDERS,
    REF_VARIABLES,
    RESOURCE_VARIABLE,
)

HOLDERS = PLACEHOLDERS | {OPTIONAL_PLACEHOLDER, *REF_VARIABLES}
# Whose inputs tell the shapes of all outputs, not of the first alone.
TELLING = ENTERS | ALL_SWITCHES | BY_OUTPUT | BY_SLOT
LISTED = PIPELINES | IFS | CASES  # that have the shapes of their outputs in an attr
SCALAR_IS_UNKNOWN = 21  # up to this version of GraphDefs a placeholder without sizes has any shape
# What a rule meets in a broken graph: inputs and attrs that are missing, or mean nothing.
FAULTS_OF_GRAPHS = (LookupError, ValueError, TypeError, ArithmeticError)
KEPT_OUTPUTS = 16  # outputs from which on their shapes are kept


class Shapes(msgspec.Struct, eq=False):
    """The shapes of the tensors of a body, as far as TensorFlow infers them; each inferred once."""

    wiring: Wiring
    _found: dict[Tensor, Sizes] = msgspec.field(default_factory=dict)
    _numbers: dict[Tensor, Numbers | None] = msgspec.field(default_factory=dict)
    _given: dict[str, list[int | None]] = msgspec.field(default_factory=dict)
    _many: dict[tuple[int, str], AttrValue] = msgspec.field(default_factory=dict)

    def is_known(self, tensor: Tensor) -> bool:
        """Whether every size of a tensor is known."""
        found = self.of(tensor)
        return found is not None and None not in found

    def if_known(self, tensor: Tensor) -> Sizes:
        """The sizes of a tensor; None also where a broken graph has not what it reads."""
        try:
            return self.of(tensor)
        except (ModelError, LookupError):
            return None

    def of(self, tensor: Tensor) -> Sizes:
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
        if tensor in self._found or not (noted is None or None in noted or gives_numbers(node)):
            return
        for read in self._inputs(node, tensor):
            before = self.wiring.node(read[0])
            if before is None or before.op not in FIXED:  # that is not there yet on import
                yield read

    def _inputs(self, node: Node, tensor: Tensor) -> list[Tensor]:
        if node.op in LISTED:
            return []
        inputs, slot = self.wiring.inputs(tensor[0]), tensor[1]
        if _calls_function(node):
            place = self._argument_given_on(node, slot)
            return [] if place is None else inputs[place : place + 1]
        return inputs[slot : slot + 1] if node.op in BY_SLOT else inputs

    def _argument_given_on(self, node: Node, output: int) -> int | None:
        """Of a call of a function that gives an argument on as this output: which one."""
        if node.op not in self._given:
            body = node.body.library.function(node.op)
            self._given[node.op] = [] if body is None else _arguments_given_on(body)
        found = self._given[node.op]
        return found[output] if output < len(found) else None

    def _inferred(self, tensor: Tensor) -> Sizes:
        node = self.wiring.node(tensor[0])
        if node is None:
            return None
        noted = self._noted(node, tensor[1])
        if noted is not None and None not in noted and not gives_numbers(node):
            return noted
        inputs, read = self._inputs(node, tensor), set(self._read(tensor))
        known = [one if one in read else None for one in inputs]
        shapes = [None if one is None else self._found.get(one) for one in known]
        numbers = [None if one is None else self._numbers.get(one) for one in known]
        op = OpShapes(node, tensor[1], shapes, numbers)
        found = merged_shape([noted, self._by_op(op)])
        if found is not None and len(found) > LARGEST_RANK:  # which no run can make
            found = None
        if gives_numbers(node):
            self._numbers[tensor] = _numbers_or_none(op, found)
        return found

    def _noted(self, node: Node, output: int) -> Sizes:
        """What `_output_shapes` tells of an output."""
        return self._listed(node, "_output_shapes", output)

    def _listed(self, node: Node, key: str, output: int) -> Sizes:
        """What an attr tells of an output; of many outputs it is read once."""
        value = self._many.get((node.index, key)) or node.attr(key)
        if value is None or output >= len(value.list.shape):
            return None
        if len(value.list.shape) > KEPT_OUTPUTS:
            self._many[node.index, key] = value
        return _known_sizes(value.list.shape[output])

    def _by_op(self, op: OpShapes) -> Sizes:
        node, shapes = op.node, op.shapes
        if node.op in MERGES:
            return () if op.output else _merge_shape(shapes)
        if node.op in ENTERS:
            return shapes[0] if shapes and is_constant(node) else None
        if node.op in ALL_SWITCHES:
            return shapes[0] if shapes else None  # in a broken graph there may be no input
        if node.op in HOLDERS:
            return _declared_shape(node)
        if node.op in LISTED:
            return self._listed(node, "output_shapes", op.output)
        if node.op == "ReadVariableOp":
            return self._of_variable(node)
        if (node.op, op.output) in SCALARS:
            return ()
        if _calls_function(node):
            return shapes[0] if shapes else None
        if op.output and node.op not in TELLING:
            return None
        rule = RULES.get(node.op)
        try:
            return rule(op) if rule is not None else _kept_shape(op)
        except FAULTS_OF_GRAPHS:
            return None

    def _of_variable(self, node: Node) -> Sizes:
        """The shape that the handle of a variable tells, wherever it enters a loop or branch."""
        read = self.wiring.inputs(node.index)
        found = self.wiring.node(handle_origin(self.wiring, read[0])[0]) if read else None
        if found is None or found.op != RESOURCE_VARIABLE:
            return None
        value = found.attr("shape")
        return None if value is None else _known_sizes(value.shape)


def _calls_function(node: Node) -> bool:
    return node.op in node.body.library.signatures


def _arguments_given_on(body: Body) -> list[int | None]:
    """Of each output of a function: which argument it gives on as it is, None where it does not."""
    outputs = body.signature.output_arg if body.signature is not None else ()
    known: dict[str, int | None] = {name: n for n, name in enumerate(body.arguments)}
    return [_argument_for(body, body.ret.get(one.name, ""), known) for one in outputs]


def _argument_for(body: Body, text: str, known: dict[str, int | None]) -> int | None:
    """Which argument a tensor is; `known` has those that were looked for before."""
    passed = list[str]()
    while text not in known:
        known[text] = None  # for a tensor that is given on to itself
        passed.append(text)
        given = body.producer(text)
        if given is None or given.op not in GIVES_ON or not given.data_inputs:
            break
        text = given.data_inputs[0]
    known.update(dict.fromkeys(passed, known[text]))
    return known[text]


def _numbers_or_none(op: OpShapes, shape: Sizes) -> Numbers | None:
    try:
        return numbers_of(op, shape)
    except FAULTS_OF_GRAPHS:
        return None


def _declared_shape(node: Node) -> Sizes:
    """What an attr says; where TensorFlow once spelled any shape as that of a number, nothing."""
    value = node.attr("shape")
    sizes = None if value is None else _known_sizes(value.shape)
    is_old = node.op == PLACEHOLDER and node.body.library.producer <= SCALAR_IS_UNKNOWN
    return None if sizes == () and (is_old or node.op == OLD_VARIABLE) else sizes


def _kept_shape(op: OpShapes) -> Sizes:
    """The shape of output 0 of an op that keeps that of an input, or broadcasts its inputs."""
    known = op.node.opdef
    if known is None or not known.keeps_shape:
        return None
    if known.broadcasts:
        return broadcast(op.shapes)
    return merged_shape([op.shapes[slot] for slot in known.keeps_shape if slot < len(op.shapes)])


def _merge_shape(shapes: Sequence[Sizes]) -> Sizes:
    """What a Merge gives: of what comes round a loop nothing is known when it is imported."""
    if not shapes or any(one is None or len(one) != len(shapes[0] or ()) for one in shapes):
        return None
    columns = zip(*[one for one in shapes if one is not None], strict=True)
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in columns)


def _known_sizes(shape: TensorShapeProto) -> Sizes:
    if shape.unknown_rank or len(shape.dim) > LARGEST_RANK:
        return None
    return tuple(known_size(dim.size) for dim in shape.dim)
