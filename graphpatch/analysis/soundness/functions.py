"""The functions of a graph: those that are called are there, and their gradients fit them."""

from __future__ import annotations

from collections.abc import Iterator

from graphpatch.analysis.soundness.fault import Fault, at
from graphpatch.dtypes import DTYPE_NAMES
from graphpatch.graph.body import Body, Node
from graphpatch.graph.calls import called_functions
from graphpatch.graph.graph import Graph


def functions(graph: Graph) -> Iterator[Fault]:
    """Calls of functions that are not there, op types that nobody knows, gradients that misfit."""
    for body in graph.bodies:
        for op, indices in body.by_type.items():
            if graph.library.opdef(op) is None:
                says = "its type is neither an op of TensorFlow nor a function of the library"
                yield from (at("type", Node(body, index), says) for index in indices)
            else:
                yield from (fault for index in indices for fault in _called(graph, body, index))
    for name, gradient in graph.library.gradients.items():
        why = _misfit(graph, name, gradient)
        if why:
            says = f"the gradient function {gradient!r} of {name!r} {why}"
            yield Fault("gradient_function", name, gradient, says)


def _called(graph: Graph, body: Body, index: int) -> Iterator[Fault]:
    node = Node(body, index)
    for name in called_functions(node):
        if name and name not in graph.functions:
            yield at("function", node, f"it calls function {name!r}, which the library lacks")


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
        return f"takes {_dtypes(given)}, and is called with {_dtypes(takes)}"
    if [arg.type for arg in backward.output_arg] != [arg.type for arg in forward.input_arg]:
        return "does not give one gradient for each input"
    return ""


def _dtypes(numbers: list[int]) -> str:
    return ", ".join(DTYPE_NAMES.get(number, str(number)) for number in numbers) or "nothing"
