"""Ops as NodeDefs: for the body of a gradient function, or of any formula of an op's inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from tensorboard.compat.proto.attr_value_pb2 import AttrValue as AttrValueProto
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from graphpatch.errors import FormulaError
from graphpatch.gradients.broadcast_shape import BroadcastShape
from graphpatch.gradients.constants import Constant
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.lowering import Lowering
from graphpatch.gradients.program import AttrValue, Program, Step, Value, needed, op_def
from graphpatch.gradients.signature import Signature
from graphpatch.graph.attrs import DTYPE_NUMBERS


class FormulaNodes(msgspec.Struct, frozen=True):
    """Nodes in the order they are computed, and how the results asked for are spelled.

    `shapes` is what is known of the shapes of the results.
    """

    nodes: tuple[NodeDef, ...]
    results: tuple[str, ...]
    shapes: tuple[BroadcastShape, ...]


def formula_nodes(
    formula: Formula,
    inputs: Sequence[tuple[str, str]],
    dtype: str,
    prefix: str,
    in_function: bool = False,
    attrs: Mapping[str, object] | None = None,
) -> FormulaNodes:
    """The nodes of one formula of inputs alone, such as the g(x) of a surrogate; one result.

    `inputs` are the pairs (tensor, dtype) that x0, x1, ... stand for; `dtype` is that of the
    result. Nodes are called `prefix/OpType`; with `in_function`, tensors are spelled as in the body
    of a function. TensorFlow differentiates these ops as it does any: through `round`, `floor`,
    `sign` and conditions nothing flows. Raises FormulaError where the formula reads y or dy, or
    does not suit the inputs.
    """
    arguments = [(f"x{place}", kind) for place, (_, kind) in enumerate(inputs)]
    names = [name for name, _ in arguments]
    text, expression = formula.texts[0], formula.expressions[0]
    unknown = formula.variables.difference(names)
    if unknown or not formula.alike or text is None or expression is None:
        raise FormulaError(f"expected one formula of {', '.join(names)}, found: {formula}")
    program = Program()
    signature = Signature.of(arguments, [("y0", dtype)], attrs)
    value = Lowering(program, signature, dict(formula.values), text).number(expression, dtype)
    tensors = {name: tensor for name, (tensor, _) in zip(names, inputs, strict=True)}
    return node_defs(program, [program.cast(value, dtype)], tensors, in_function, f"{prefix}/")


def node_defs(
    program: Program,
    values: Iterable[Value],
    tensors: Mapping[str, str],
    in_function: bool,
    prefix: str = "",
) -> FormulaNodes:
    """The nodes that these values are computed from, and the tensors that they are.

    `tensors` says how arguments are spelled, where not by their own name.
    """
    asked = tuple(values)
    steps = needed(program, asked)
    names = _step_names(program, steps, prefix)

    def spelled(value: Value) -> str:
        if isinstance(value.source, str):
            return tensors.get(value.source, value.source)
        output = op_def(program.steps[value.source].op_type).outputs[0].name
        return f"{names[value.source]}:{output}:0" if in_function else names[value.source]

    nodes = tuple(_node_def(names[number], program.steps[number], spelled) for number in steps)
    return FormulaNodes(nodes, tuple(map(spelled, asked)), tuple(value.shape for value in asked))


def _step_names(program: Program, steps: Sequence[int], prefix: str) -> dict[int, str]:
    """A name for each of these steps: its op type, numbered from the second of its kind on."""
    seen: Counter[str] = Counter()
    names = {}
    for number in steps:
        op_type = program.steps[number].op_type
        names[number] = f"{prefix}{op_type}_{seen[op_type]}" if seen[op_type] else prefix + op_type
        seen[op_type] += 1
    return names


def _node_def(name: str, step: Step, spelled: Callable[[Value], str]) -> NodeDef:
    node = NodeDef(name=name, op=step.op_type)
    node.input.extend(spelled(value) for value in step.tensors)
    for attr, value in step.attrs:
        node.attr[attr].CopyFrom(_attr_proto(value))
    return node


def _attr_proto(value: AttrValue) -> AttrValueProto:
    if isinstance(value, Constant):
        return AttrValueProto(tensor=value.proto())
    if isinstance(value, bool):
        return AttrValueProto(b=value)
    if isinstance(value, int):
        return AttrValueProto(i=value)
    if isinstance(value, float):
        return AttrValueProto(f=value)
    if isinstance(value, bytes):
        return AttrValueProto(s=value)
    if isinstance(value, tuple):
        return AttrValueProto(list=AttrValueProto.ListValue(i=value))
    return AttrValueProto(type=DTYPE_NUMBERS[value])
