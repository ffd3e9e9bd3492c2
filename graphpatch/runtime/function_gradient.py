"""A gradient function of a file's library, as TensorFlow takes it for registration."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

from tensorboard.compat.proto.function_pb2 import FunctionDef
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from graphpatch import names
from graphpatch.errors import ModelError
from graphpatch.graph.body import Body, Node
from graphpatch.graph.calls import calls
from graphpatch.graph.graph import Graph
from graphpatch.graph.op_types import PLACEHOLDER
from graphpatch.graph.wire import piece_bytes
from graphpatch.opdefs import tensor_index
from graphpatch.runtime.imported import spliced

if TYPE_CHECKING:
    from graphpatch.runtime.formula_in_tensorflow import GradientFunction


def function_gradient(graph: Graph, body: Body) -> GradientFunction:
    """The gradient function (op, *dy) -> [dx...] that a FunctionDef (x..., y..., dy...) defines.

    Its ops are put into the graph that asks for the gradient, so that they can be differentiated
    in their turn: y are the outputs of the op, as its inputs y are behind StopGradients. It gives
    None for an input without a gradient.
    """
    arguments = list(body.arguments)
    message = as_graph_def(body)
    message.library.function.extend(called_in_order(graph, body).values())
    graph_def = message.SerializeToString(deterministic=True)
    results = [names.parse(body.ret[arg.name]) for arg in _result_args(body)]

    def gradient(op: Any, *upstream: Any) -> list[Any]:
        import tensorflow as tf

        # An op that reads a tensor of another graph captures it; input_map does not.
        read = [
            (op.outputs[int(name[1:])] if name.startswith("y") else op.inputs[n])
            for n, name in zip(range(len(op.inputs)), arguments, strict=False)
        ]
        given = [tf.identity(tensor) for tensor in (*read, *_dense_upstream(op, upstream))]
        found = spliced(
            tf.compat.v1.GraphDef.FromString(graph_def),
            {f"{name}:0": t for name, t in zip(arguments, given, strict=True)},
            [f"{tensor.op}:{flat_index(body, tensor)}" for tensor in results],
            "graphpatch",
        )
        flowing = [arg.name.startswith("d") for arg in _result_args(body)]
        pairs = zip(found, flowing, op.inputs, strict=True)
        return [dx if flows and x.dtype.is_floating else None for dx, flows, x in pairs]

    return gradient


def as_graph_def(body: Body) -> GraphDef:
    """A function's body as a graph of its own, its arguments placeholders."""
    graph_def = GraphDef()
    graph_def.versions.producer = body.library.producer
    for name, dtype in body.arguments.items():
        node = graph_def.node.add(name=name, op=PLACEHOLDER)
        node.attr["dtype"].type = dtype
    for found in body:
        graph_def.node.append(as_main(found))
    return graph_def


def called_in_order(
    graph: Graph, body: Body, among: Container[int] | None = None
) -> dict[str, FunctionDef]:
    """The functions that ops of a body call, each behind those that it calls itself.

    `among`: the indices of those ops; all ops where it is silent.
    """
    found: dict[str, FunctionDef] = {}
    for node, name in calls(body):
        if (among is None or node.index in among) and name in graph.functions.keys() - found:
            _, part = graph.function_fields[name]
            found |= called_in_order(graph, graph.functions[name])
            found[name] = FunctionDef.FromString(graph.source.data[part.value : part.end])
    return found


def as_main(node: Node) -> NodeDef:
    """A NodeDef with its inputs spelled as the main graph spells them."""
    body = node.body
    copy = NodeDef.FromString(b"".join(piece_bytes(p) for p in body.payload(node.index)))
    copy.input[:] = [_as_main_input(body, text) for text in copy.input]
    return copy


def _as_main_input(body: Body, text: str) -> str:
    tensor = names.parse(text)
    if tensor.control or tensor.op in body.arguments:
        return text
    return str(names.TensorName(tensor.op, flat_index(body, tensor)))


def flat_index(body: Body, tensor: names.TensorName) -> int:
    """Which of all outputs of its op a tensor is."""
    if body.is_main:
        return tensor.index
    place = tensor_index(body.node(tensor.op).outputs or [], tensor.arg, tensor.index)
    if place is None:
        raise ModelError(f"{body.label} reads {tensor}, an output that is not there")
    return place


def _result_args(body: Body) -> list[Any]:
    return [] if body.signature is None else list(body.signature.output_arg)


def _dense_upstream(op: Any, upstream: tuple[Any, ...]) -> list[Any]:
    import tensorflow as tf

    pairs = zip(op.outputs, upstream, strict=True)
    return [tf.zeros_like(y) if dy is None else tf.convert_to_tensor(dy) for y, dy in pairs]
