"""The object graph of a TF2 SavedModel: what tf.saved_model.load makes Python objects of."""

from __future__ import annotations

import bisect
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from tensorboard.compat.proto.function_pb2 import RegisteredGradient
from tensorboard.compat.proto.op_def_pb2 import OpDef
from tensorboard.compat.proto.saved_object_graph_pb2 import (
    SavedConcreteFunction,
    SavedObject,
    SavedObjectGraph,
)
from tensorboard.compat.proto.struct_pb2 import StructuredValue, TensorSpecProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

from graphpatch.formats.container import OBJECT_GRAPH
from graphpatch.formats.model import Model
from graphpatch.graph.graph import LIBRARY, Restored
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.graph.wire import (
    Field,
    Piece,
    Replacement,
    Source,
    encoded,
    fields,
    message,
    reframed,
    splice,
)

REGISTERED = 3  # the field of FunctionDefLibrary


def held_gradients(model: Model) -> list[dict[str, frozenset[int]]]:
    """Of each graph: by key, the input slots into which the gradient flows. A GraphDef has none."""
    return [_held_by_key(graph) for graph in model.graphs]


def _held_by_key(graph: ModelGraph) -> dict[str, frozenset[int]]:
    if not graph.around.is_object_based:
        return {}
    results = _restored_results(graph)
    found = {key: results[name] for key, name in _registered_gradients(graph) if name in results}
    return found | {one.key: _flowing(one.results) for one in graph.restored}


def _registered_gradients(graph: ModelGraph) -> Iterator[tuple[str, str]]:
    """The keys of the file's library, each with the name of the function."""
    data = graph.source.data
    for library in (part for part in graph.others if part.holds(LIBRARY)):
        for part in fields(data, library.value, library.end):
            if part.holds(REGISTERED):
                held = message(RegisteredGradient, data[part.value : part.end])
                yield held.registered_op_type, held.gradient_func


def _restored_results(graph: ModelGraph) -> Mapping[str, frozenset[int]]:
    """By function that is restored: the places of a result that are not None."""
    meta, data = graph.around.meta, graph.source.data
    found: dict[str, frozenset[int]] = {}
    for part in fields(data, meta.value, meta.end) if meta is not None else ():
        if part.holds(OBJECT_GRAPH):
            objects = message(SavedObjectGraph, data[part.value : part.end])
            for name, function in objects.concrete_functions.items():
                found[name] = _result_given(function.output_signature)
    return found


def _result_given(output: StructuredValue) -> frozenset[int]:
    kind = output.WhichOneof("kind")
    values = getattr(output, kind).values if kind in {"list_value", "tuple_value"} else [output]
    return _flowing(["" if one.HasField("none_value") else "given" for one in values])


def _flowing(results: tuple[str, ...] | list[str]) -> frozenset[int]:
    return frozenset(slot for slot, name in enumerate(results) if name)


# Fields of SavedObjectGraph.
NODES, FUNCTIONS = 1, 2


def objects_to_add(gradients: Iterable[Restored], count: int) -> SavedObjectGraph:
    """What an object graph of `count` objects needs besides, so that these are restored.

    Protobuf merges it with the object graph that it is written behind. Each function is an object
    too, which tells how it is called: TensorFlow up to 2.12 takes the inputs of the op otherwise.
    """
    found = SavedObjectGraph()
    for gradient in gradients:
        bound = []
        for argument in gradient.captured:
            bound.append(count + len(found.nodes))
            captured = found.nodes.add().captured_tensor
            captured.name, captured.concrete_function = f"{argument}:0", gradient.of
        function = found.concrete_functions[gradient.name]
        function.CopyFrom(_called_gradient(gradient))
        function.bound_inputs.extend(bound)
        called = found.nodes.add().bare_concrete_function
        called.concrete_function_name = gradient.name
        called.argument_keywords.extend(arg.name for arg in _upstream_args(gradient))
        called.allowed_positional_arguments = len(called.argument_keywords)
    return found


def without_functions(
    source: Source, objects: Field, functions: Container[str]
) -> tuple[list[Piece], int]:
    """The object graph without what restores these functions, and how many objects it has then.

    What `objects_to_add` gave for others stays, its objects numbered anew.
    """
    parts = list(fields(source.data, objects.value, objects.end))
    nodes = [part for part in parts if part.holds(NODES)]
    concrete = {part: _concrete(source, part) for part in parts if part.holds(FUNCTIONS)}
    cut = {part for part, (name, _) in concrete.items() if name in functions}
    gone = {bound for part in cut for bound in concrete[part][1].bound_inputs}
    gone |= {at for at, part in enumerate(nodes) if _function_name(source, part) in functions}
    lost = sorted(gone)
    out = [Replacement(part.start, part.end, []) for part in cut]
    out += [Replacement(nodes[at].start, nodes[at].end, []) for at in lost if at < len(nodes)]
    for part, (name, function) in concrete.items():
        bound = [at - bisect.bisect(lost, at) for at in function.bound_inputs]
        if part not in cut and bound != list(function.bound_inputs):
            function.bound_inputs[:] = bound
            value = encoded(2, function.SerializeToString(deterministic=True))
            pieces = reframed(source, part.start, [encoded(1, name.encode()), value])
            out.append(Replacement(part.start, part.end, pieces))
    return splice(source, objects.value, objects.end, sorted(out)), len(nodes) - len(lost)


def _concrete(source: Source, part: Field) -> tuple[str, SavedConcreteFunction]:
    """The name of a function that is restored, and what is told of it."""
    entry = message(SavedObjectGraph, source.data[part.start : part.end]).concrete_functions
    ((name, function),) = entry.items()
    return name, function


def _function_name(source: Source, part: Field) -> str:
    """The function that an object is; empty where it is something else."""
    node = message(SavedObject, source.data[part.value : part.end])
    name: str = node.bare_concrete_function.concrete_function_name
    return name


def _upstream_args(gradient: Restored) -> Sequence[OpDef.ArgDef]:
    """The arguments that are not captured: the upstream gradients."""
    args: Sequence[OpDef.ArgDef] = gradient.function.signature.input_arg
    return args[: len(args) - len(gradient.captured)]


def _called_gradient(gradient: Restored) -> SavedConcreteFunction:
    """The function as it is called: with the upstream gradients, for a list of gradients."""
    signature = gradient.function.signature
    given = [_argument_spec(arg.name, arg.type) for arg in _upstream_args(gradient)]
    types = {arg.name: arg.type for arg in signature.output_arg}
    results = [
        _argument_spec(name, types[name]) if name else _none_spec() for name in gradient.results
    ]
    return SavedConcreteFunction(
        canonicalized_input_signature=arguments_spec(given, {}),
        output_signature=_list_spec(results),
    )


def arguments_spec(
    positional: Sequence[StructuredValue], by_name: Mapping[str, StructuredValue]
) -> StructuredValue:
    """The arguments of a function: ((...), {...})."""
    found = StructuredValue()
    found.tuple_value.values.add().tuple_value.values.extend(positional)
    found.tuple_value.values[0].tuple_value.SetInParent()
    found.tuple_value.values.append(dict_value(by_name))
    return found


def dict_value(values: Mapping[str, StructuredValue]) -> StructuredValue:
    """A dict."""
    found = StructuredValue()
    found.dict_value.SetInParent()
    for name, value in values.items():
        found.dict_value.fields[name].CopyFrom(value)
    return found


def tensor_spec(argument: OpDef.ArgDef, shape: TensorShapeProto) -> StructuredValue:
    """A tensor of this name, dtype and shape."""
    value = TensorSpecProto(name=argument.name, dtype=argument.type, shape=shape)
    return StructuredValue(tensor_spec_value=value)


def _argument_spec(name: str, dtype: int) -> StructuredValue:
    return tensor_spec(OpDef.ArgDef(name=name, type=dtype), TensorShapeProto(unknown_rank=True))


def _list_spec(values: Sequence[StructuredValue]) -> StructuredValue:
    found = StructuredValue()
    found.list_value.values.extend(values)
    return found


def _none_spec() -> StructuredValue:
    found = StructuredValue()
    found.none_value.SetInParent()
    return found
