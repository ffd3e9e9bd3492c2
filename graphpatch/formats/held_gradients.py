"""Which gradients a TF2 SavedModel holds that tf.saved_model.load registers, by their keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tensorboard.compat.proto.function_pb2 import RegisteredGradient
from tensorboard.compat.proto.saved_object_graph_pb2 import SavedObjectGraph
from tensorboard.compat.proto.struct_pb2 import StructuredValue

from graphpatch.formats.container import OBJECT_GRAPH
from graphpatch.formats.model import Model
from graphpatch.graph.graph import LIBRARY, Graph
from graphpatch.graph.wire import fields, message

REGISTERED = 3  # the field of FunctionDefLibrary


def held_gradients(model: Model) -> list[dict[str, frozenset[int]]]:
    """Of each graph: by key, the input slots into which the gradient flows. A GraphDef has none."""
    return [_held(graph) for graph in model.graphs]


def _held(graph: Graph) -> dict[str, frozenset[int]]:
    if not graph.around.is_object_based:
        return {}
    results = _results(graph)
    found = {key: results[name] for key, name in _registered(graph) if name in results}
    return found | {one.key: _flowing(one.results) for one in graph.restored}


def _registered(graph: Graph) -> Iterator[tuple[str, str]]:
    """The keys of the file's library, each with the name of the function."""
    data = graph.source.data
    for library in (part for part in graph.others if part.holds(LIBRARY)):
        for part in fields(data, library.value, library.end):
            if part.holds(REGISTERED):
                held = message(RegisteredGradient, data[part.value : part.end])
                yield held.registered_op_type, held.gradient_func


def _results(graph: Graph) -> Mapping[str, frozenset[int]]:
    """By function that is restored: the places of a result that are not None."""
    meta, data = graph.around.meta, graph.source.data
    found: dict[str, frozenset[int]] = {}
    for part in fields(data, meta.value, meta.end) if meta is not None else ():
        if part.holds(OBJECT_GRAPH):
            objects = message(SavedObjectGraph, data[part.value : part.end])
            for name, function in objects.concrete_functions.items():
                found[name] = _given(function.output_signature)
    return found


def _given(output: StructuredValue) -> frozenset[int]:
    kind = output.WhichOneof("kind")
    values = getattr(output, kind).values if kind in {"list_value", "tuple_value"} else [output]
    return _flowing(["" if one.HasField("none_value") else "given" for one in values])


def _flowing(results: tuple[str, ...] | list[str]) -> frozenset[int]:
    return frozenset(slot for slot, name in enumerate(results) if name)
