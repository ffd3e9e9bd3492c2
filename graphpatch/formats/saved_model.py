"""TF2 SavedModels: a graph written as one, and the object graph that restores gradients."""

from __future__ import annotations

import base64
import keyword
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from graphpatch import names, opdefs
from graphpatch.errors import ModelError, OutputError, did_you_mean
from graphpatch.formats.destination import Export
from graphpatch.graph import attrs, provenance
from graphpatch.graph.attrs import DTYPE_NUMBERS, OUTPUT_SHAPES
from graphpatch.graph.functions import Part
from graphpatch.graph.graph import LIBRARY, ModelGraph, Restored, library_pieces
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import ENTERS, FED, NEXTS, PLACEHOLDER, PLACEHOLDERS, STATEFUL_CALL
from graphpatch.graph.wire import Field, Piece, Source, enclosed, fields, message, splice
from graphpatch.names import fresh
from graphpatch.protos import (
    AttrValue,
    FunctionDef,
    GraphDef,
    MetaGraphDef,
    OpDef,
    RegisteredGradient,
    SavedConcreteFunction,
    SavedObject,
    SavedObjectGraph,
    SignatureDef,
    StructuredValue,
    TensorInfo,
    TensorShapeProto,
)
from graphpatch.shown import short

# Before this version of GraphDef, a placeholder's shape () meant that it is not known.
SHAPES_ARE_MEANT = 24

# Ops with a handle that lives as long as one call: they need no value from outside.
OF_A_CALL = ("TensorArray", "Stack")
LOOP_OPS = ENTERS | NEXTS


@dataclass(frozen=True, slots=True)
class ExportedTensor:
    """A tensor that goes in or out: its name in the graph and in the signature, and what it is."""

    tensor: str
    argument: OpDef.ArgDef
    shape: TensorShapeProto

    def spec(self) -> StructuredValue:
        """Return the tensor as the object graph tells it."""
        return _spec(self.argument.name, self.argument.type, self.shape)

    def info(self, name: str) -> TensorInfo:
        """Return the tensor as a signature tells it, under its name in the main graph."""
        return TensorInfo(name=name, dtype=self.argument.type, tensor_shape=self.shape)


@dataclass(frozen=True, eq=False)
class ExportedGraph:
    """The function that a graph becomes."""

    graph: ModelGraph
    inputs: tuple[ExportedTensor, ...]
    outputs: tuple[ExportedTensor, ...]
    part: Part


def exported(graph: ModelGraph, export: Export, with_loops: bool = False) -> ExportedGraph:
    """Return the function from the inputs to the outputs; `with_loops` lets it hold v1 loops.

    Raises OutputError where a name is not that of a tensor, an output needs a placeholder that is
    no input, or the graph holds what a function cannot: variables, tables, v1 loops.
    """
    fed = [_checked_tensor(graph.main, text) for text in export.inputs]
    asked = [_checked_tensor(graph.main, text) for text in export.outputs]
    twice = [text for text in {*fed, *asked} if fed.count(text) + asked.count(text) > 1]
    if twice:
        raise OutputError(f"{twice[0]} is named twice among the inputs and outputs")
    part = Part(graph.main, {text: text for text in fed}, tuple(asked))
    _check_fed(part, with_loops)
    taken = {Node(graph.main, index).name for index in part.indices}
    inputs, outputs = _named_arguments(graph, fed, taken), _named_arguments(graph, asked, set())
    part = replace(part, arguments={tensor.tensor: tensor.argument.name for tensor in inputs})
    return ExportedGraph(graph, inputs, outputs, part)


def export_notes(exported_graph: ExportedGraph) -> list[str]:
    """Return what whoever exports a graph should know: what is left out, or renamed."""
    said = []
    exported_indices = set(exported_graph.part.indices)
    patched = provenance.touched(exported_graph.graph.main)
    if unneeded := [str(node) for node in patched if node.index not in exported_indices]:
        said.append(
            f"{short(unneeded, 1)}: patched, but the outputs do not need it: it is left out"
        )
    read = {str(names.parse(text)) for text in exported_graph.part.read()}
    said += [
        f"input {tensor.tensor}: no output depends on it"
        for tensor in exported_graph.inputs
        if tensor.tensor not in read
    ]
    tensors = (*exported_graph.inputs, *exported_graph.outputs)
    renamed = [tensor for tensor in tensors if tensor.tensor != tensor.argument.name]
    said += [f"{tensor.tensor} is {tensor.argument.name!r} in the signature" for tensor in renamed]
    return said


def _checked_tensor(body: Body, text: str) -> str:
    """Return one spelling of a tensor: `x` for `x:0`."""
    if not re.fullmatch(r"[^:^]+(:\d+)?", text):
        raise OutputError(f"{text!r} is not the name of a tensor: that is an op's, or op:1")
    tensor = names.parse(text)
    if tensor.op not in body.by_name:
        fed = [node.name for node in body if node.op in PLACEHOLDERS]
        near = did_you_mean(tensor.op, body.heads.names)
        listed = f"; the placeholders are: {', '.join(fed[:8])}" if fed else ""
        raise OutputError(f"there is no tensor {text}{near or listed}")
    flat = body.node(tensor.op).outputs
    if flat is None or tensor.index >= len(flat):
        count = "of an unknown op type" if flat is None else f"with {len(flat)} outputs"
        raise OutputError(f"there is no tensor {text}: {tensor.op!r} is an op {count}")
    return str(tensor)


def _check_fed(part: Part, with_loops: bool) -> None:
    unfed = [node.name for node in part.unfed()]
    if unfed:
        raise OutputError(
            f"the outputs need what is not among the inputs: placeholder {', '.join(unfed)}"
        )
    for node in (Node(part.body, index) for index in part.indices):
        if node.opdef is None:
            raise OutputError(f"{node}: an op type that neither TensorFlow nor the model defines")
        if node.op in LOOP_OPS and not with_loops:
            raise OutputError(
                f"{node} belongs to a v1 loop, through which no tape gives a gradient here; as a "
                f".pb the graph has one in a Session, and in graphpatch.keras.PatchedModel"
            )
        if _is_held(node):
            raise OutputError(
                f"{node} is a variable or table, whose value is not in the graph: freeze the graph "
                f"first, so that variables become constants"
            )


def _is_held(node: Node) -> bool:
    """Return whether an op stands for what is kept from one run to the next."""
    if node.opdef is None or not node.opdef.stateful or node.op.startswith(OF_A_CALL):
        return False
    return any(arg.is_ref or arg.dtype == "resource" for arg in node.outputs or ())


def _named_arguments(
    graph: ModelGraph, tensors: Sequence[str], taken: set[str]
) -> tuple[ExportedTensor, ...]:
    """Return each tensor under a name that Python takes as that of an argument.

    In the order of these names, as TensorFlow goes through a dict, not in that of the user.
    """
    arguments = []
    for text in tensors:
        tensor = names.parse(text)
        node = graph.main.node(tensor.op)
        word = re.sub(r"\W", "_", text)
        legal = word[:1].isalpha() and not keyword.iskeyword(word)
        name = names.fresh(word if legal else f"t_{word}", taken)
        taken.add(name)
        dtype = (node.outputs or [])[tensor.index].dtype
        if dtype is None:
            raise OutputError(f"{text}: the graph does not tell its dtype")
        argument = OpDef.ArgDef(name=name, type=DTYPE_NUMBERS[dtype])
        shape = _shape_told(graph, node, tensor.index)
        arguments.append(ExportedTensor(text, argument, shape))
    return tuple(sorted(arguments, key=lambda tensor: tensor.argument.name))


def _shape_told(graph: ModelGraph, node: Node, output: int) -> TensorShapeProto:
    """Return the shape of an output: of a placeholder, or as TensorFlow noted it."""
    noted = node.attr(OUTPUT_SHAPES)
    if noted is not None and output < len(noted.list.shape):
        noted_shape: TensorShapeProto = noted.list.shape[output]
        return noted_shape
    declared = node.attr("shape") if node.op in FED else None
    shape = TensorShapeProto(unknown_rank=True) if declared is None else declared.shape
    unclear = not shape.dim and graph.library.producer < SHAPES_ARE_MEANT
    return TensorShapeProto(unknown_rank=True) if unclear else shape


REGISTERED = 3  # the field of FunctionDefLibrary


class HeldGradient(NamedTuple):
    """A gradient that a file holds: the input slots into which it flows, and those of zeros."""

    slots: frozenset[int]
    zeros: frozenset[int]


def held_gradients(graph: ModelGraph) -> dict[str, HeldGradient]:
    """Return the gradients that the file of a graph holds, by key. A GraphDef has none."""
    if not graph.around.is_object_based:
        return {}
    from graphpatch.formats.model import meta_around

    gradients, data = dict[str, HeldGradient](), graph.source.data
    flowing: dict[str, list[bool]] = {}  # by function that is restored: which results are not None
    for name, function in meta_around(graph).object_graph_def.concrete_functions.items():
        output = function.output_signature
        kind = output.WhichOneof("kind")
        is_several = kind in {"list_value", "tuple_value"}
        values = getattr(output, kind).values if is_several else [output]
        flowing[name] = [not value.HasField("none_value") for value in values]
    for library in (part for part in graph.others if part.holds(LIBRARY)):
        for part in fields(data, library.value, library.end):
            if part.holds(REGISTERED):
                registered = message(RegisteredGradient, data[part.value : part.end])
                body = graph.functions.get(registered.gradient_func)
                args = body.signature.output_arg if body is not None and body.signature else ()
                results = [body.ret[arg.name] for arg in args] if body is not None else []
                types = {} if body is None else {node.name: node.op for node in body}
                if registered.gradient_func in flowing:
                    flows = flowing[registered.gradient_func]
                    gradients[registered.registered_op_type] = _held(flows, results, types)
    for gradient in graph.restored:
        results = [gradient.function.ret[name] for name in gradient.results if name]
        types = {node.name: node.op for node in gradient.function.node_def}
        gradients[gradient.key] = _held(map(bool, gradient.results), results, types)
    return gradients


def _held(flows: Iterable[bool], results: Sequence[str], types: Mapping[str, str]) -> HeldGradient:
    """Return a gradient of which these inputs get one of the results, computed by ops of types."""
    slots = [slot for slot, flag in enumerate(flows) if flag]
    zeros = (
        slot
        for slot, text in zip(slots, results, strict=False)
        if types.get(names.op_of(text)) == "ZerosLike"
    )
    return HeldGradient(frozenset(slots), frozenset(zeros))


UNKNOWN = TensorShapeProto(unknown_rank=True)

# Fields of SavedObjectGraph.
NODES, FUNCTIONS = 1, 2


def objects_to_add(gradients: Iterable[Restored], count: int) -> SavedObjectGraph:
    """Return what an object graph of `count` objects needs besides, so that these are restored.

    Protobuf merges it with the object graph that it is written behind. Each function is an object
    too, which tells how it is called: TensorFlow up to 2.12 takes the inputs of the op otherwise.
    """
    objects = SavedObjectGraph()
    for gradient in gradients:
        signature = gradient.function.signature
        upstream = signature.input_arg[: len(signature.input_arg) - len(gradient.captured)]
        types = {arg.name: arg.type for arg in signature.output_arg}
        first = count + len(objects.nodes)
        for argument in gradient.captured:
            captured = {"name": f"{argument}:0", "concrete_function": gradient.of}
            objects.nodes.add(captured_tensor=captured)
        called = {
            "concrete_function_name": gradient.name,
            "argument_keywords": [arg.name for arg in upstream],
            "allowed_positional_arguments": len(upstream),
        }
        objects.nodes.add(bare_concrete_function=called)
        results = [
            _spec(name, types[name], UNKNOWN) if name else StructuredValue(none_value={})
            for name in gradient.results
        ]
        positional = [_spec(arg.name, arg.type, UNKNOWN) for arg in upstream]
        objects.concrete_functions[gradient.name].CopyFrom(
            SavedConcreteFunction(
                canonicalized_input_signature=_arguments(positional, {}),
                output_signature={"list_value": {"values": results}},
                bound_inputs=range(first, first + len(gradient.captured)),
            )
        )
    return objects


def _spec(name: str, dtype: int, shape: TensorShapeProto) -> StructuredValue:
    """Return a tensor of this name, dtype and shape."""
    return StructuredValue(tensor_spec_value={"name": name, "dtype": dtype, "shape": shape})


def _arguments(
    positional: Sequence[StructuredValue], by_name: Mapping[str, StructuredValue]
) -> StructuredValue:
    """Return the arguments of a function: ((...), {...})."""
    values = [{"tuple_value": {"values": positional}}, {"dict_value": {"fields": by_name}}]
    return StructuredValue(tuple_value={"values": values})


def without_functions(
    source: Source, objects: Field, functions: Container[str]
) -> tuple[list[Piece], int]:
    """Return the object graph without what restores these functions, and its number of objects.

    It is what `objects_to_add` gave, and lies behind all others: else ModelError is raised.
    """
    parts = list(fields(source.data, objects.value, objects.end))
    nodes = [part for part in parts if part.holds(NODES)]
    out, own = list[Field](), set[int]()
    for part in parts:
        if part.holds(FUNCTIONS):
            entry = message(SavedObjectGraph, source.data[part.start : part.end])
            ((name, function),) = entry.concrete_functions.items()
            if name in functions:
                out.append(part)
                own.update(function.bound_inputs)
    for at, part in enumerate(nodes):
        node = message(SavedObject, source.data[part.value : part.end])
        if node.bare_concrete_function.concrete_function_name in functions:
            own.add(at)
    count = len(nodes) - len(own)
    if own != set(range(count, len(nodes))):
        raise ModelError("its objects were changed since rules were applied; patch the original")
    out += nodes[count:]
    gone = sorted((part.start, part.end, ()) for part in out)
    return splice(source, objects.value, objects.end, gone), count


SIGNATURE = "serving_default"
SCHEMA_VERSION = b"\x08\x01"
FOR_A_TAPE = (
    b"gradients of this SavedModel are for a tape, after tf.saved_model.load; for a Session, "
    b"write the patched graph as a .pb"
)

# What TensorFlow writes as the checkpoint of an object without variables: the loader wants one.
CHECKPOINT = {
    "variables/variables.data-00000-of-00001": base64.b64decode("BGJR65YKAioA"),
    "variables/variables.index": base64.b64decode(
        "AAAGCAEaAggBABwLX0NIRUNLUE9JTlRBQkxFX09CSkVDVF9HUkFQSAgHEgAoCTXfEgTfAAAAAAEAAAAAr65uogAA"
        "AAABAAAAAMDyobAAAQJgADsAAAAAAQAAAABE9sFJQAhNDgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
        "AAAAAFf7gIskdUfb"
    ),
}


def saved_model_pieces(exported_graph: ExportedGraph) -> list[Piece]:
    """Return the SavedModel message; large constants stay spans of the graph's own file."""
    graph, inputs, outputs = exported_graph.graph, exported_graph.inputs, exported_graph.outputs
    name = fresh("forward", graph.library.signatures)
    signature = {
        "method_name": "tensorflow/serving/predict",
        "inputs": {
            tensor.argument.name: tensor.info(f"{SIGNATURE}_{tensor.argument.name}:0")
            for tensor in inputs
        },
        "outputs": {
            tensor.argument.name: tensor.info(f"{STATEFUL_CALL}_{place}:0")
            for place, tensor in enumerate(outputs)
        },
    }
    objects = object_graph(exported_graph, name)
    objects.MergeFrom(objects_to_add(graph.restored, len(objects.nodes)))
    meta = MetaGraphDef(
        meta_info_def={"tags": ["serve"], "tensorflow_version": opdefs.table().tensorflow[0]},
        signature_def={SIGNATURE: SignatureDef(**signature)},
        object_graph_def=objects,
    )
    function = enclosed(1, _function_def(exported_graph, name))
    main = _main(exported_graph, name).SerializeToString(deterministic=True)
    graph_def = [main, *library_pieces(graph), *enclosed(2, function)]
    rest = meta.SerializeToString(deterministic=True)
    return [SCHEMA_VERSION, *enclosed(2, [*enclosed(2, graph_def), rest])]


def object_graph(exported_graph: ExportedGraph, name: str) -> SavedObjectGraph:
    """Return a root that can be called, with the function as its signature too."""
    inputs, outputs = (
        {tensor.argument.name: tensor.spec() for tensor in tensors}
        for tensors in (exported_graph.inputs, exported_graph.outputs)
    )
    version = {"producer": 1, "min_consumer": 1}
    root = {
        "user_object": {"identifier": "_generic_user_object", "version": version},
        "children": [
            {"node_id": 1, "local_name": "signatures"},
            {"node_id": 2, "local_name": "__call__"},
        ],
    }
    signatures = {
        "user_object": {"identifier": "signature_map", "version": version},
        "children": [{"node_id": 2, "local_name": SIGNATURE}],
    }
    # Several go by name: their order here is not the one that the user gave.
    function = {
        "concrete_function_name": name,
        "argument_keywords": list(inputs),
        "allowed_positional_arguments": int(len(inputs) == 1),
    }
    concrete = SavedConcreteFunction(
        canonicalized_input_signature=_arguments([], inputs),
        output_signature={"dict_value": {"fields": outputs}},
    )
    return SavedObjectGraph(
        nodes=[root, signatures, {"bare_concrete_function": function}],
        concrete_functions={name: concrete},
    )


def _main(exported_graph: ExportedGraph, name: str) -> GraphDef:
    """Return the main graph, for a Session: placeholders, a call of the function, and its outputs.

    They refuse gradients: those of the function are for a tape, and a Session would optimise the
    function first, and take them out.
    """
    main = GraphDef()
    main.versions.producer = exported_graph.graph.library.producer
    call = main.node.add(name=STATEFUL_CALL, op=STATEFUL_CALL)
    call.attr["f"].CopyFrom(attrs.function(name))
    for key, tensors in (("Tin", exported_graph.inputs), ("Tout", exported_graph.outputs)):
        call.attr[key].list.type.extend(tensor.argument.type for tensor in tensors)
    for tensor in exported_graph.inputs:
        fed = main.node.add(name=f"{SIGNATURE}_{tensor.argument.name}", op=PLACEHOLDER)
        fed.attr["dtype"].type = tensor.argument.type
        fed.attr["shape"].shape.CopyFrom(tensor.shape)
        call.input.append(fed.name)
    for place, tensor in enumerate(exported_graph.outputs):
        reads = [f"{STATEFUL_CALL}:{place}"]
        guard = main.node.add(name=f"{STATEFUL_CALL}_{place}", op="PreventGradient", input=reads)
        guard.attr["T"].type = tensor.argument.type
        guard.attr["message"].s = FOR_A_TAPE
    return main


def _function_def(exported_graph: ExportedGraph, name: str) -> list[Piece]:
    """Return the FunctionDef."""
    part, inputs, outputs = exported_graph.part, exported_graph.inputs, exported_graph.outputs
    shapes = AttrValue(list={"shape": [tensor.shape for tensor in inputs]})
    signature = OpDef(
        name=name,
        is_stateful=True,
        input_arg=[tensor.argument for tensor in inputs],
        output_arg=[tensor.argument for tensor in outputs],
    )
    returned = {tensor.argument.name: part.spelled(tensor.tensor) for tensor in outputs}
    rest = FunctionDef(ret=returned, attr={"_input_shapes": shapes})
    return [
        FunctionDef(signature=signature).SerializeToString(deterministic=True),
        *(piece for payload in part.payloads() for piece in enclosed(3, payload.pieces)),
        rest.SerializeToString(deterministic=True),
    ]
