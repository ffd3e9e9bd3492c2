"""A program as NodeDefs: ops beside others in a graph, or the body of a gradient function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

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
    op,
    op_def,
)
from graphpatch.gradients.program import formula_ops, gradient_ops
from graphpatch.gradients.signature import Signature
from graphpatch.graph.attrs import DTYPE_NUMBERS
from graphpatch.protos import AttrValue as AttrValueProto
from graphpatch.protos import FunctionDef, NodeDef


class FormulaNodes(msgspec.Struct, frozen=True):
    """Nodes in the order they are computed, and how the results asked for are spelled.

    `shapes` is what is known of the shapes of the results. A factor of dy can be differentiated
    with respect to the tensors that `varying` names.
    """

    nodes: tuple[NodeDef, ...]
    results: tuple[str, ...]
    shapes: tuple[BroadcastShape, ...]
    varying: frozenset[str] = frozenset()


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
    op = Signature.of([kind for _, kind in inputs], [dtype], attrs)
    value = formula_ops(formula, op, dtype)
    tensors = {f"x{place}": tensor for place, (tensor, _) in enumerate(inputs)}
    return node_defs([value], tensors, in_function, f"{prefix}/")


def node_defs(
    values: Iterable[Value], tensors: Mapping[str, str], in_function: bool, prefix: str = ""
) -> FormulaNodes:
    """Return the nodes that these values are computed from, and the tensors that they are.

    A node is called by its op type, numbered from the second of its kind on. `tensors` says how
    arguments are spelled, where not by their own name.
    """
    results = tuple(values)
    steps = results[0].program.steps
    count: Counter[str] = Counter()
    names: dict[int | str, str] = {}

    def spelled(value: Value) -> str:
        if isinstance(value.source, str):
            return tensors.get(value.source, value.source)
        arg = op_def(steps[value.source].op_type).outputs[0].name
        text = names[value.source] + (f":{arg}" if in_function else "")
        return f"{text}:{value.output}" if in_function or value.output else text

    nodes = []
    for number in needed(results):
        step = steps[number]
        same = count[step.op_type]
        names[number] = f"{prefix}{step.op_type}" + (f"_{same}" if same else "")
        count[step.op_type] += 1
        node = NodeDef(name=names[number], op=step.op_type, input=map(spelled, step.tensors))
        for attr, value in step.attrs:
            node.attr[attr].CopyFrom(_attr_proto(value))
        nodes.append(node)
    shapes = tuple(value.shape for value in results)
    return FormulaNodes(tuple(nodes), tuple(map(spelled, results)), shapes)


_ATTR_FIELDS: Mapping[type, str] = {bool: "b", int: "i", float: "f", bytes: "s"}


def _attr_proto(value: AttrValue) -> AttrValueProto:
    if isinstance(value, Constant):
        return AttrValueProto(tensor=value.proto())
    if isinstance(value, tuple):
        return AttrValueProto(list=AttrValueProto.ListValue(i=value))
    if isinstance(value, str):
        return AttrValueProto(type=DTYPE_NUMBERS[value])
    return AttrValueProto(**{_ATTR_FIELDS[type(value)]: value})


def gradient_function(
    formula: Formula,
    signature: Signature,
    name: str = "",
    read: Collection[int] | None = None,
    is_filter: bool = False,
) -> FunctionDef:
    """Return the function (x..., y..., dy...) -> (dx..., zeros like y...) of a gradient.

    `read` are the inputs of the op that it takes, default: all. The others the formula neither
    reads nor has a gradient for. dx is called `dx0`, the gradient of the output that is passed
    through `gy0`. An input without a gradient gets zeros, since a function returns a tensor for
    everything: whoever calls it puts a StopGradient before such an input where there shall be none.
    Of a filter x0 is y0 as well: it is (x0, dy0) -> dx0.

    The same arguments give the same function, node for node. Raises FormulaError where the
    formula does not suit the op.
    """
    dxs = gradient_ops(formula, signature)
    program = next((dx.program for dx in dxs if dx is not None), Program())
    unread = {f"x{n}" for n in range(len(dxs)) if read is not None and n not in read}
    unread |= {"y0"} if is_filter else set()
    arguments = {n: dtype for n, dtype in signature.variables.items() if n not in unread}
    results: dict[str, Value] = {}
    for argument, dtype in arguments.items():
        if dtype in NO_NUMBERS:
            raise FormulaError(f"{argument} is {dtype}; a gradient function cannot take it")
        dx = dxs[int(argument[1:])] if argument[0] == "x" else None
        if argument[0] != "d":
            result = f"{'d' if argument[0] == 'x' else 'g'}{argument}"
            results[result] = dx or op("ZerosLike", signature.value(program, argument))
    for result, value in results.items():  # a function returns no argument as it came
        if isinstance(value.source, str):
            results[result] = op("Identity", value)
    body = node_defs(results.values(), {"y0": "x0"} if is_filter else {}, in_function=True)
    function = FunctionDef(node_def=body.nodes)
    function.signature.name = name
    for argument, dtype in arguments.items():
        function.signature.input_arg.add(name=argument, type=DTYPE_NUMBERS[dtype])
    for (result, value), tensor in zip(results.items(), body.results, strict=True):
        function.signature.output_arg.add(name=result, type=DTYPE_NUMBERS[value.dtype])
        function.ret[result] = tensor
    function.signature.is_stateful = any(op_def(node.op).stateful for node in body.nodes)
    return function
