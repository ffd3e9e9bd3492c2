"""A formula as a FunctionDef, built without TensorFlow: the gradient function of a GradientDef."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tensorboard.compat.proto.attr_value_pb2 import AttrValue as AttrValueProto
from tensorboard.compat.proto.function_pb2 import FunctionDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from graphpatch.errors import FormulaError
from graphpatch.gradients.constants import DTYPE_NUMBERS, Constant
from graphpatch.gradients.expression import Scalar
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.gradient import gradients, zeros
from graphpatch.gradients.program import AttrValue, Program, Value, needed, op_def
from graphpatch.gradients.signature import Signature

_NOT_CARRIED = ("resource", "variant", "string")


def gradient_function(
    name: str,
    formula: Formula,
    parameters: Mapping[str, Scalar] | None,
    inputs: Sequence[tuple[str, str]],
    outputs: Sequence[tuple[str, str]],
    attrs: Mapping[str, object] | None = None,
    same_shape: bool = False,
) -> FunctionDef:
    """The function (x..., y..., dy...) -> (dx..., zeros like y...) of a gradient.

    `inputs` and `outputs` are the pairs (`x0`, dtype), (`y0`, dtype) of the op; an input that the
    formula neither reads nor has a gradient for may be left out. dx is called `dx0`, the gradient
    of the output that is passed through `gy0`. An input without a gradient gets zeros, since a
    function returns a tensor for everything: whoever calls it puts a StopGradient before such an
    input where there shall be none. `same_shape` promises that inputs and outputs have one shape,
    and spares the sum down to it.

    The same arguments give the same function, node for node. Raises FormulaError where the
    formula does not suit the op.
    """
    signature = Signature.of(inputs, outputs, attrs, same_shape)
    for argument, dtype in (*inputs, *outputs):
        if dtype in _NOT_CARRIED:
            raise FormulaError(f"{argument} is {dtype}; a gradient function cannot take it")
    found = gradients(formula, signature, parameters)
    returned = {
        f"d{argument}": value for (argument, _), value in zip(inputs, found.results, strict=True)
    }
    for argument, dtype in inputs:
        if returned[f"d{argument}"] is None:
            returned[f"d{argument}"] = zeros(found.program, argument, dtype)
    for argument, dtype in outputs:
        returned[f"g{argument}"] = zeros(found.program, argument, dtype)
    return _function(name, signature, found.program, returned)


def _function(
    name: str, signature: Signature, program: Program, returned: Mapping[str, Value | None]
) -> FunctionDef:
    function = FunctionDef()
    function.signature.name = name
    for argument, dtype in signature.variables.items():
        function.signature.input_arg.add(name=argument, type=DTYPE_NUMBERS[dtype])
    values = {arg: _node_of(program, value) for arg, value in returned.items() if value is not None}
    steps = needed(program, values.values())
    names = node_names(program, steps)
    function.node_def.extend(node_def(program, names, number) for number in steps)
    for arg, value in values.items():
        function.signature.output_arg.add(name=arg, type=DTYPE_NUMBERS[value.dtype])
        function.ret[arg] = reference(program, names, value)
    return function


def _node_of(program: Program, value: Value) -> Value:
    """The value as output of a node: a function returns no argument as it came."""
    return program.op("Identity", value) if isinstance(value.source, str) else value


def node_names(program: Program, steps: Sequence[int]) -> dict[int, str]:
    """A name for each of these steps: its op type, numbered from the second of its kind on."""
    seen: Counter[str] = Counter()
    names = {}
    for number in steps:
        op_type = program.steps[number].op_type
        names[number] = f"{op_type}_{seen[op_type]}" if seen[op_type] else op_type
        seen[op_type] += 1
    return names


def node_def(program: Program, names: Mapping[int, str], number: int) -> NodeDef:
    """The NodeDef of a step, its inputs spelled as in a function's body."""
    step = program.steps[number]
    node = NodeDef(name=names[number], op=step.op_type)
    node.input.extend(reference(program, names, value) for value in step.tensors)
    for attr, value in step.attrs:
        node.attr[attr].CopyFrom(attr_proto(value))
    return node


def reference(program: Program, names: Mapping[int, str], value: Value) -> str:
    """How the body of a function spells a tensor: an argument, or `node:output_arg:0`."""
    if isinstance(value.source, str):
        return value.source
    step = program.steps[value.source]
    return f"{names[value.source]}:{op_def(step.op_type).outputs[0].name}:0"


def attr_proto(value: AttrValue) -> AttrValueProto:
    """The message of an attr's value."""
    if isinstance(value, Constant):
        return AttrValueProto(tensor=value.proto())
    if isinstance(value, bool):
        return AttrValueProto(b=value)
    if isinstance(value, int):
        return AttrValueProto(i=value)
    return AttrValueProto(type=DTYPE_NUMBERS[value])
