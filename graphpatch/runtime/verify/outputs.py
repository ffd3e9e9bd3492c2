"""The tensors that a graph is there for, and those that a gradient may be asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from graphpatch.analysis.gradient_scope import gradient_scopes
from graphpatch.control_flow.op_types import ENTERS, EXITS, MERGES, SWITCHES
from graphpatch.dtypes import HANDLES
from graphpatch.graph.node import Body
from graphpatch.graph.op_types import PARSERS, PIPELINES, VARIABLES
from graphpatch.runtime.graph_run import ASSIGNED, waiting_ops

MOST_CONSTANTS = 8  # by which gradients are taken at most
RESERVED = "reserve_space"
WRITES = re.compile("(Resource)?(Sparse)?(Assign|Apply|Scatter)|CountUpTo|ResourceCountUpTo")
LARGEST_OUTPUT = 1 << 24  # elements of a tensor that is compared


def result_tensors(graph: Any) -> list[str]:
    """Return the tensors that are computed, and that no op computes another tensor of.

    A float tensor that is made an int of, as logits by ArgMax, is among them; so is what only ops
    read that write to variables, or give nothing. Left out are those in v1 loops and branches,
    which cannot be fetched, what only this process can hold, and what is left uninitialised.
    """
    hidden = ops_in_control_flow(graph)
    return [
        output.name
        for op in graph.get_operations()
        if op.inputs and op not in hidden and not op.name.startswith(ASSIGNED)
        for output in op.outputs
        if is_value(output) and not _gives_comparable(output) and not _is_scratch(output)
    ]


def default_targets(graph: Any, compared: Iterable[str], patched: Iterable[str]) -> list[str]:
    """Return the float outputs among these of which gradients are taken, where nobody names them.

    Nothing reads their ops: not what ops give beside what is read. First come those that are
    computed from the ops that rules patched.
    """
    among = set(compared)
    ends = [graph.get_tensor_by_name(name) for name in result_tensors(graph) if name in among]
    unread = [t for t in ends if not any(map(_gives_comparable, t.op.outputs))]
    ops = {op.name: op for op in graph.get_operations()}
    behind = waiting_ops([ops[name] for name in patched if name in ops])
    targets = sorted(filter(is_differentiable, unread), key=lambda tensor: tensor.op not in behind)
    return [tensor.name for tensor in targets]


def trained(graph: Any, main: Body) -> set[Any]:
    """Return the gradients that update variables, and the ops that are computed from them.

    Gradients of which a loss is computed, as a gradient penalty, are not among them: they come
    before the gradients of that loss.
    """
    scopes = gradient_scopes(main)
    inside = [[op for op in graph.get_operations() if scope.holds(op.name)] for scope in scopes]
    updating: set[Any] = set()
    for ops in inside:
        behind = waiting_ops(ops, control=False)
        before_others = any(op in behind for group in inside if group is not ops for op in group)
        if not before_others and any(map(writes, behind)):
            updating |= behind
    return updating


def fetchable(graph: Any, names: Iterable[str]) -> Iterator[str]:
    """Yield those of these tensors that exist and can be fetched."""
    hidden = ops_in_control_flow(graph)
    for name in names:
        try:
            tensor = graph.get_tensor_by_name(name)
        except (KeyError, ValueError):
            continue
        if is_value(tensor) and tensor.op not in hidden:
            yield name


def writing(graph: Any, names: Iterable[str]) -> list[str]:
    """Of these tensors those that come after an op that writes to a variable.

    In the same run others read it, and who is faster decides what they give.
    """
    writers = [op for op in graph.get_operations() if writes(op)]
    behind = waiting_ops(writers)
    return [name for name in names if graph.get_tensor_by_name(name).op in behind]


def writes(op: Any) -> bool:
    """Return whether an op writes to the variable that is its first input."""
    if not op.inputs:
        return False
    dtype = op.inputs[0].dtype
    return WRITES.match(op.type) is not None and (dtype._is_ref_dtype or dtype.name == "resource")


def is_value(tensor: Any) -> bool:
    """Return whether it can be fetched as an array, of a size that can be held."""
    dtype = tensor.dtype
    small = (tensor.shape.num_elements() or 0) <= LARGEST_OUTPUT
    return small and dtype.base_dtype.name not in HANDLES and not dtype._is_ref_dtype


def is_differentiable(tensor: Any) -> bool:
    """Return whether TensorFlow takes gradients of it, or by it."""
    dtype = tensor.dtype
    return bool(dtype.is_floating or dtype.is_complex) and not dtype._is_ref_dtype


def default_sources(graph: Any, fed: Iterable[str], patched: Iterable[str] = ()) -> list[str]:
    """The floats that are fed, parsed or read; or else the variables of floats; or else constants.

    Of constants the largest count, which are weights: models that are fed words have no others.
    Those that `patched` ops are computed of are added where no fed float comes to these ops.
    """
    parsed = [op for op in graph.get_operations() if op.type in PARSERS | PIPELINES]
    tensors = [graph.get_tensor_by_name(name) for name in fed]
    tensors += (tensor for op in parsed for tensor in op.outputs)
    names = list(dict.fromkeys(tensor.name for tensor in tensors if is_differentiable(tensor)))
    if not names:
        return _held_tensors(graph, graph.get_operations())
    behind = waiting_ops([graph.get_tensor_by_name(name).op for name in names])
    ops = {op.name: op for op in graph.get_operations()}
    missed = [ops[name] for name in patched if name in ops and ops[name] not in behind]
    return [*names, *_held_tensors(graph, _ops_before(missed))]


def _ops_before(ops: Iterable[Any]) -> list[Any]:
    """Return what these ops are computed of, in the order of the graph."""
    ops_found, todo = set[Any](), list(ops)
    while todo:
        op = todo.pop()
        if op not in ops_found:
            ops_found.add(op)
            todo += [tensor.op for tensor in op.inputs]
    return sorted(ops_found, key=lambda op: op._id)


def _held_tensors(graph: Any, ops: Iterable[Any]) -> list[str]:
    """Return the variables of floats among some ops, or else the largest constants."""
    ops = list(ops)
    variables = [op for op in ops if op.type in VARIABLES]
    names = [op.outputs[0].name for op in variables if op.get_attr("dtype").is_floating]
    if names:
        return names
    hidden = ops_in_control_flow(graph)
    constants = [
        op.outputs[0]
        for op in ops
        if op.type == "Const" and op not in hidden and is_differentiable(op.outputs[0])
    ]
    constants.sort(key=lambda tensor: -(tensor.shape.num_elements() or 0))
    return [tensor.name for tensor in constants[:MOST_CONSTANTS]]


def ops_in_control_flow(graph: Any) -> set[Any]:
    """Return the ops in v1 loops and branches, of which a Session fetches nothing."""
    inside: set[Any] = set()
    for start, end in ((ENTERS, EXITS), (SWITCHES, MERGES)):
        todo = [op for op in graph.get_operations() if op.type in start and op not in inside]
        while todo:
            op = todo.pop()
            if op not in inside:
                inside.add(op)
                readers = {to for output in op.outputs for to in output.consumers()}
                todo += [to for to in readers if to.type not in end]
    return inside


def _gives_comparable(tensor: Any) -> bool:
    """Return whether another tensor that can be compared in its place is computed of it."""
    outputs = [to for reader in tensor.consumers() for to in reader.outputs if is_value(to)]
    return (
        any(is_differentiable(to) for to in outputs) if is_differentiable(tensor) else bool(outputs)
    )


def _is_scratch(tensor: Any) -> bool:
    """Return whether it is room that an op reserves for its gradient, and need not fill."""
    args = tensor.op.op_def.output_arg if tensor.op.op_def is not None else ()
    return len(args) == len(tensor.op.outputs) and args[tensor.value_index].name.startswith(
        RESERVED
    )
