"""A formula as a FunctionDef, built without TensorFlow: the gradient function of a GradientDef."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorboard.compat.proto.function_pb2 import FunctionDef

from graphpatch.dtypes import NO_NUMBERS
from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.gradient_program import gradient_ops, zeros
from graphpatch.gradients.nodedef_form import node_defs
from graphpatch.gradients.program import Program, Value, op_def
from graphpatch.gradients.signature import Signature
from graphpatch.graph.attrs import DTYPE_NUMBERS


def gradient_function(
    name: str,
    formula: Formula,
    inputs: Sequence[tuple[str, str]],
    outputs: Sequence[tuple[str, str]],
    attrs: Mapping[str, object] | None = None,
    same_shape: bool = False,
    op_type: str = "",
) -> FunctionDef:
    """The function (x..., y..., dy...) -> (dx..., zeros like y...) of a gradient.

    `inputs` and `outputs` are the pairs (`x0`, dtype), (`y0`, dtype) of the op; an input that the
    formula neither reads nor has a gradient for may be left out. dx is called `dx0`, the gradient
    of the output that is passed through `gy0`. An input without a gradient gets zeros, since a
    function returns a tensor for everything: whoever calls it puts a StopGradient before such an
    input where there shall be none. `same_shape` promises that inputs and outputs have one shape,
    and spares the sum down to it. `op_type` is that of the op, which `forward` and `own` compute.

    The same arguments give the same function, node for node. Raises FormulaError where the
    formula does not suit the op.
    """
    signature = Signature.of(inputs, outputs, attrs, same_shape, op_type=op_type)
    for argument, dtype in (*inputs, *outputs):
        if dtype in NO_NUMBERS:
            raise FormulaError(f"{argument} is {dtype}; a gradient function cannot take it")
    count = max((int(argument[1:]) + 1 for argument, _ in inputs), default=0)
    found = gradient_ops(formula.cut(count), signature)
    returned = {
        f"d{argument}": value for (argument, _), value in zip(inputs, found.results, strict=True)
    }
    for argument, _ in inputs:
        if returned[f"d{argument}"] is None:
            returned[f"d{argument}"] = zeros(found.program, signature, argument)
    for argument, _ in outputs:
        returned[f"g{argument}"] = zeros(found.program, signature, argument)
    return _written_function(name, signature, found.program, returned)


def _written_function(
    name: str, signature: Signature, program: Program, returned: Mapping[str, Value | None]
) -> FunctionDef:
    function = FunctionDef()
    function.signature.name = name
    for argument, dtype in signature.variables.items():
        function.signature.input_arg.add(name=argument, type=DTYPE_NUMBERS[dtype])
    values = {arg: _node_of(program, value) for arg, value in returned.items() if value is not None}
    found = node_defs(program, values.values(), {}, in_function=True)
    function.node_def.extend(found.nodes)
    for (arg, value), tensor in zip(values.items(), found.results, strict=True):
        function.signature.output_arg.add(name=arg, type=DTYPE_NUMBERS[value.dtype])
        function.ret[arg] = tensor
    function.signature.is_stateful = any(op_def(node.op).stateful for node in found.nodes)
    return function


def _node_of(program: Program, value: Value) -> Value:
    """The value as output of a node: a function returns no argument as it came."""
    return program.op("Identity", value) if isinstance(value.source, str) else value
