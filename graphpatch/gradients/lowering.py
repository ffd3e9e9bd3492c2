"""A program as NodeDefs: ops beside others in a graph, or the body of a gradient function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from graphpatch.dtypes import NO_NUMBERS
from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.ops import (
    AttrValue,
    BroadcastShape,
    Constant,
    Program,
    Value,
    needed,
    op_def,
)
from graphpatch.gradients.program import formula_ops, gradient_ops
from graphpatch.gradients.signature import Signature
from graphpatch.graph.attrs import DTYPE_NUMBERS
from graphpatch.protos import AttrValue as AttrValueProto
from graphpatch.protos import FunctionDef, NodeDef


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
    """Return the nodes of one formula of inputs alone, such as the g(x) of a surrogate; one result.

    `inputs` are the pairs (tensor, dtype) that x0, x1, ... stand for; `dtype` is that of the
    result. Nodes are called `prefix/OpType`; with `in_function`, tensors are spelled as in the body
    of a function. TensorFlow differentiates these ops as it does any: through `round`, `floor`,
    `sign` and conditions nothing flows. Raises FormulaError where the formula reads y or dy, or
    does not suit the inputs.
    """
    arguments = [(f"x{place}", kind) for place, (_, kind) in enumerate(inputs)]
    lowered = formula_ops(formula, Signature.of(arguments, [("y0", dtype)], attrs), dtype)
    tensors = {f"x{place}": tensor for place, (tensor, _) in enumerate(inputs)}
    results = [value for value in lowered.results if value is not None]
    return node_defs(lowered.program, results, tensors, in_function, f"{prefix}/")


def node_defs(
    program: Program,
    values: Iterable[Value],
    tensors: Mapping[str, str],
    in_function: bool,
    prefix: str = "",
) -> FormulaNodes:
    """Return the nodes that these values are computed from, and the tensors that they are.

    A node is called by its op type, numbered from the second of its kind on. `tensors` says how
    arguments are spelled, where not by their own name.
    """
    results = tuple(values)
    steps = needed(program, results)
    count: Counter[str] = Counter()
    names = {}
    for number in steps:
        op_type = program.steps[number].op_type
        names[number] = f"{prefix}{op_type}" + (f"_{count[op_type]}" if count[op_type] else "")
        count[op_type] += 1

    def spelled(value: Value) -> str:
        if isinstance(value.source, str):
            return tensors.get(value.source, value.source)
        output = op_def(program.steps[value.source].op_type).outputs[0].name
        return f"{names[value.source]}:{output}:0" if in_function else names[value.source]

    nodes = []
    for number in steps:
        step = program.steps[number]
        node = NodeDef(name=names[number], op=step.op_type, input=map(spelled, step.tensors))
        for attr, value in step.attrs:
            node.attr[attr].CopyFrom(_attr_proto(value))
        nodes.append(node)
    shapes = tuple(value.shape for value in results)
    return FormulaNodes(tuple(nodes), tuple(map(spelled, results)), shapes)


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


def gradient_function(
    name: str,
    formula: Formula,
    inputs: Sequence[tuple[str, str]],
    outputs: Sequence[tuple[str, str]],
    attrs: Mapping[str, object] | None = None,
    same_shape: bool = False,
    op_type: str = "",
    more: int = 0,
) -> FunctionDef:
    """Return the function (x..., y..., dy...) -> (dx..., zeros like y...) of a gradient.

    `inputs` and `outputs` are the pairs (`x0`, dtype), (`y0`, dtype) of the op; an input that the
    formula neither reads nor has a gradient for may be left out. dx is called `dx0`, the gradient
    of the output that is passed through `gy0`. An input without a gradient gets zeros, since a
    function returns a tensor for everything: whoever calls it puts a StopGradient before such an
    input where there shall be none. `same_shape` promises that inputs and outputs have one shape,
    and spares the sum down to it. `op_type` is that of the op, which `forward` and `own` compute;
    the last `more` inputs are not its own.

    The same arguments give the same function, node for node. Raises FormulaError where the
    formula does not suit the op.
    """
    signature = Signature.of(inputs, outputs, attrs, same_shape, op_type=op_type, more=more)
    for argument, dtype in (*inputs, *outputs):
        if dtype in NO_NUMBERS:
            raise FormulaError(f"{argument} is {dtype}; a gradient function cannot take it")
    count = max((int(argument[1:]) + 1 for argument, _ in inputs), default=0)
    lowered = gradient_ops(formula.cut(count), signature)
    program = lowered.program

    def zeros(argument: str, dtype: str) -> Value:
        return program.op("ZerosLike", Value(argument, dtype, signature.shape(argument)))

    results = {
        f"d{argument}": zeros(argument, dtype) if value is None else value
        for (argument, dtype), value in zip(inputs, lowered.results, strict=True)
    }
    results |= {f"g{argument}": zeros(argument, dtype) for argument, dtype in outputs}
    for result, value in results.items():  # a function returns no argument as it came
        if isinstance(value.source, str):
            results[result] = program.op("Identity", value)
    body = node_defs(program, results.values(), {}, in_function=True)
    function = FunctionDef(node_def=body.nodes)
    function.signature.name = name
    for argument, dtype in signature.variables.items():
        function.signature.input_arg.add(name=argument, type=DTYPE_NUMBERS[dtype])
    for (result, value), tensor in zip(results.items(), body.results, strict=True):
        function.signature.output_arg.add(name=result, type=DTYPE_NUMBERS[value.dtype])
        function.ret[result] = tensor
    function.signature.is_stateful = any(op_def(node.op).stateful for node in body.nodes)
    return function
