"""Is a graph sound: names, inputs, dtypes, cycles. Each fault is found, not the first alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

from graphpatch import names
from graphpatch.analysis.rule_words import StructureFault, fault_at
from graphpatch.analysis.soundness.numbering import ops_in_order
from graphpatch.control_flow.op_types import NEXTS
from graphpatch.dtypes import DTYPE_NAMES, is_ref
from graphpatch.errors import ModelError, did_you_mean
from graphpatch.graph.body import Body, Node
from graphpatch.graph.calls import called_functions
from graphpatch.graph.graph import Graph
from graphpatch.opdefs import FlatArg, tensor_index


def structure_faults(graph: Graph) -> Iterator[StructureFault]:
    """All that is wrong with a graph and its functions, body by body."""
    for body in graph.bodies:
        yield from _repeated_names(body)
        for node in body:
            yield from _input_faults(node)
        yield from _output_faults(body)
        yield from _cycles(body)
    yield from function_faults(graph)


def _repeated_names(body: Body) -> Iterator[StructureFault]:
    if len(body.by_name) < len(body):
        for name, count in Counter(body.heads.names).items():
            if count > 1:
                yield StructureFault("name", body.label, name, f"{count} ops are named {name!r}")


def _input_faults(node: Node) -> Iterator[StructureFault]:
    """Inputs that name no tensor, or one of another dtype than the op takes."""
    try:
        wanted = node.arguments
    except ModelError as error:
        yield fault_at("attr", node, str(error))
        return
    count = len(node.data_inputs)
    if wanted is not None and count != len(wanted):
        yield fault_at("inputs", node, f"it has {count} inputs, and its type takes {len(wanted)}")
    known = (wanted or [])[:count]
    for text, arg in zip_longest(node.inputs, known):
        fault = _check_input(node, text, arg)
        if fault is not None:
            yield fault


def _check_input(node: Node, text: str, wanted: FlatArg | None) -> StructureFault | None:
    body, name = node.body, names.parse(text)
    if name.op not in body.by_name and (name.control or name.op not in body.arguments):
        near = did_you_mean(name.op, [*body.by_name, *body.arguments])
        return fault_at("input", node, f"its input {text!r} names no op{near}")
    if name.control:
        return None
    given = _output_read(body, name)
    if isinstance(given, str):
        return fault_at("input", node, f"its input {text!r}: {given}")
    return _agree(node, text, given, wanted) if given and wanted else None


def _output_read(body: Body, name: names.TensorName) -> FlatArg | str | None:
    """The output that is read; why there is none; None where the op type is not known."""
    if name.op in body.arguments and name.op not in body.by_name:
        number = body.arguments[name.op]
        return FlatArg("", 0, DTYPE_NAMES.get(number), is_ref(number))
    try:
        flat = Node(body, body.by_name[name.op]).outputs
    except ModelError:
        return None  # told at that op
    if flat is None:
        return None
    place = tensor_index(flat, name.arg, name.index) if name.arg else name.index
    if place is None or place >= len(flat):
        return f"{name.op} has {len(flat)} outputs, and not this one"
    return flat[place]


def _agree(node: Node, text: str, given: FlatArg, wanted: FlatArg) -> StructureFault | None:
    if given.dtype and wanted.dtype and given.dtype != wanted.dtype:
        says = f"its input {text!r} is {given.dtype}, and it takes {wanted.dtype}"
        return fault_at("dtype", node, says)
    if wanted.is_ref and not given.is_ref:
        says = f"it writes to its input {text!r}, which is not a reference"
        return fault_at("reference", node, says)
    return None


def _output_faults(body: Body) -> Iterator[StructureFault]:
    """Outputs of a function that are read from no tensor of it, or from one of another dtype."""
    for arg in body.signature.output_arg if body.signature is not None else ():
        text = body.ret.get(arg.name)
        name = None if text is None else names.parse(text)
        if name is None or (name.op not in body.by_name and name.op not in body.arguments):
            says = (
                f"output {arg.name!r} of function {body.label} is read from {text!r}: not a tensor"
            )
            yield StructureFault("output", body.label, arg.name, says)
            continue
        given = _output_read(body, name)
        wanted = DTYPE_NAMES.get(arg.type)
        is_other = isinstance(given, FlatArg) and wanted and given.dtype not in (wanted, None)
        if isinstance(given, str) or is_other:
            why = given if isinstance(given, str) else "it is of another dtype"
            says = f"output {arg.name!r} of function {body.label} is read from {text!r}: {why}"
            yield StructureFault("output", body.label, arg.name, says)


def _cycles(body: Body) -> Iterator[StructureFault]:
    """Ops that wait for themselves; the way back of a v1 loop, by NextIteration, is none.

    What cannot be put in an order is in a cycle, or behind one.
    """
    left = set(range(len(body))).difference(ops_in_order(body))
    if not left:
        return
    import networkx

    graph: networkx.DiGraph[int] = networkx.DiGraph()
    for index in left:
        graph.add_edges_from(
            (other, index) for other in _indices_read(body, index) if other in left
        )
    for ring in networkx.strongly_connected_components(graph):
        if len(ring) > 1 or any(graph.has_edge(index, index) for index in ring):
            first = Node(body, min(ring))
            rest = ", ".join(body.heads.names[index] for index in sorted(ring)[1:4])
            yield fault_at("cycle", first, f"it waits for itself, by {rest or 'its own input'}")


def _indices_read(body: Body, index: int) -> list[int]:
    if body.heads.ops[index] in NEXTS:
        return []
    found = (body.by_name.get(names.op_of(text)) for text in body.heads.inputs[index])
    return [other for other in found if other is not None]


def function_faults(graph: Graph) -> Iterator[StructureFault]:
    """Calls of functions that are not there, op types that nobody knows, gradients that misfit."""
    for body in graph.bodies:
        for op, indices in body.by_type.items():
            if graph.library.opdef(op) is None:
                says = "its type is neither an op of TensorFlow nor a function of the library"
                yield from (fault_at("type", Node(body, index), says) for index in indices)
            else:
                yield from (fault for index in indices for fault in _calls_of(graph, body, index))
    for name, gradient in graph.library.gradients.items():
        why = _misfit(graph, name, gradient)
        if why:
            says = f"the gradient function {gradient!r} of {name!r} {why}"
            yield StructureFault("gradient_function", name, gradient, says)


def _calls_of(graph: Graph, body: Body, index: int) -> Iterator[StructureFault]:
    node = Node(body, index)
    for name in called_functions(node):
        if name and name not in graph.functions:
            yield fault_at("function", node, f"it calls function {name!r}, which the library lacks")


def _misfit(graph: Graph, name: str, gradient: str) -> str:
    if name not in graph.functions or gradient not in graph.functions:
        gone = name if name not in graph.functions else gradient
        return f"cannot be used: the library lacks {gone!r}"
    forward, backward = graph.functions[name].signature, graph.functions[gradient].signature
    if forward is None or backward is None:
        return ""
    takes = [arg.type for arg in (*forward.input_arg, *forward.output_arg)]
    given = [arg.type for arg in backward.input_arg]
    # TensorFlow calls it with x..., dy...; y are inputs of the functions that are ours.
    if given != takes:
        return f"takes {_numbers_in_words(given)}, and is called with {_numbers_in_words(takes)}"
    if [arg.type for arg in backward.output_arg] != [arg.type for arg in forward.input_arg]:
        return "does not give one gradient for each input"
    return ""


def _numbers_in_words(numbers: list[int]) -> str:
    return ", ".join(DTYPE_NAMES.get(number, str(number)) for number in numbers) or "nothing"
