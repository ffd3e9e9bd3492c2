"""The paths of a gradient: the tensors through which it flows from a loss back to others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import networkx as nx

from graphpatch import names
from graphpatch.differentiation import flow
from graphpatch.errors import CutError, ModelError, did_you_mean
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.walk import readers_of, tensor_named, upstream
from graphpatch.names import TensorName
from graphpatch.table import short

START = "^"  # before all tensors that the gradient is asked at; no tensor is named so


@dataclass(frozen=True, eq=False)
class GradientPaths:
    """The tensors between `wrt` and `loss` over differentiable edges, written `op:0`.

    An edge leads from a tensor that an op reads to one that it gives; `START` comes before all of
    `wrt`.
    """

    body: Body
    loss: str
    wrt: tuple[str, ...]
    graph: nx.DiGraph[str] = field(repr=False)


def find_tensor(graph: Graph, text: str) -> str:
    """The tensor of the main graph that is meant, as `op:0`; CutError where there is none."""
    tensor = tensor_named(graph.main, text)
    if tensor is not None:
        return tensor.full
    op = names.parse(text)
    index = graph.main.by_name.get(op.op)
    if index is not None and not op.control:
        count = len(Node(graph.main, index).outputs or ())
        raise CutError(f"there is no tensor {text!r}: {op.op!r} has {count} outputs")
    inside = [label for label, body in graph.functions.items() if op.op in body.by_name]
    if inside:
        raise CutError(
            f"{text!r} is a tensor of function {inside[0]}; a gradient is taken in parts at "
            f"tensors of the main graph"
        )
    near = did_you_mean(op.op, graph.main.heads.names)
    raise CutError(f"there is no tensor {text!r} in the main graph{near}")


def gradient_paths(graph: Graph, loss: str, wrt: Sequence[str]) -> GradientPaths:
    """Return the paths from `loss` back to `wrt`.

    Raises CutError for one of `wrt` from which the loss does not depend, or to which nothing
    flows back, and says where it ends.
    """
    body = graph.main
    before = upstream(body, [names.parse(loss)])
    edges: nx.DiGraph[str] = nx.DiGraph()
    for tensor in wrt:
        _refuse_unconnected(body, tensor, loss, before)
        edges.add_edge(START, tensor)
    waiting = list(wrt)
    visited = set(wrt)
    while waiting:
        tensor = waiting.pop()
        for _, onward in _tensors_onward(body, tensor, before):
            edges.add_edge(tensor, onward)
            if onward not in visited:
                visited.add(onward)
                waiting.append(onward)
    ending = nx.ancestors(edges, loss) | {loss} if loss in edges else set()
    for tensor in wrt:
        if tensor not in ending:
            raise CutError(_blocked(body, tensor, loss, before, edges))
    return GradientPaths(body, loss, tuple(wrt), edges.subgraph(ending).copy())


def _refuse_unconnected(body: Body, tensor: str, loss: str, before: bytearray) -> None:
    if not before[body.by_name[names.op_of(tensor)]]:
        raise CutError(f"{tensor} is not upstream of {loss}: the loss is not computed from it")
    if not _is_asked(body, tensor):
        raise CutError(f"{tensor} is {_dtype_in_words(body, tensor)}, which carries no gradient")


def _tensors_onward(body: Body, tensor: str, before: bytearray) -> Iterator[tuple[Node, str]]:
    """Yield the tensors to which a differentiable edge leads, with the op that it leads through."""
    for index, slot in readers_of(body, _name(tensor)):
        node = Node(body, index)
        if before[index] and not flow.is_none(node, slot):
            for output in _differentiable_outputs(node):
                yield node, f"{node.name}:{output}"


def _differentiable_outputs(node: Node) -> list[int]:
    try:
        flat = node.outputs
    except ModelError:
        flat = None
    if flat is None:
        uses = node.body.readers.get(node.name, ())
        read = [names.parse(node.body.heads.inputs[index][slot]) for index, slot in uses]
        return sorted({tensor.index for tensor in read if not tensor.control})
    return [place for place, arg in enumerate(flat) if flow.is_asked_for(arg)]


def _is_asked(body: Body, tensor: str) -> bool:
    name = _name(tensor)
    return name.index in _differentiable_outputs(body.node(name.op))


def _dtype_in_words(body: Body, tensor: str) -> str:
    name = _name(tensor)
    flat = body.node(name.op).outputs or []
    return (flat[name.index].dtype if name.index < len(flat) else None) or "of an unknown dtype"


def _name(tensor: str) -> TensorName:
    return names.parse(tensor)


def _blocked(body: Body, tensor: str, loss: str, before: bytearray, edges: nx.DiGraph[str]) -> str:
    """Return why no gradient comes from the loss to a tensor: the ops at which it ends."""
    reached = nx.descendants(edges, tensor) | {tensor}
    ops = [
        str(Node(body, index))
        for reached_tensor in sorted(reached)
        for index, slot in readers_of(body, _name(reached_tensor))
        if before[index] and not list(_outputs_after(Node(body, index), slot))
    ]
    blocking = list(dict.fromkeys(ops))
    where = short(blocking)
    return f"no gradient flows from {loss} back to {tensor}: none passes {where}"


def _outputs_after(node: Node, slot: int) -> list[int]:
    return [] if flow.is_none(node, slot) else _differentiable_outputs(node)
