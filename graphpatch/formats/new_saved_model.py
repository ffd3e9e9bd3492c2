"""The files of a new TF2 SavedModel that holds one function and no variables."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef, TensorInfo
from tensorboard.compat.proto.op_def_pb2 import OpDef
from tensorboard.compat.proto.saved_object_graph_pb2 import SavedObjectGraph
from tensorboard.compat.proto.struct_pb2 import StructuredValue

from graphpatch import opdefs
from graphpatch.formats.export import ExportedGraph, ExportedTensor
from graphpatch.formats.object_graph import arguments_spec, dict_value, objects_to_add, tensor_spec
from graphpatch.graph import attrs
from graphpatch.graph.emit import library_pieces
from graphpatch.graph.op_types import PLACEHOLDER, STATEFUL_CALL
from graphpatch.graph.wire import Piece, enclosed, encoded
from graphpatch.names import fresh

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


def saved_model_pieces(found: ExportedGraph) -> list[Piece]:
    """The SavedModel message; large constants stay spans of the graph's own file."""
    graph = found.graph
    name = fresh("forward", graph.library.signatures)
    meta = MetaGraphDef()
    meta.meta_info_def.tags.append("serve")
    meta.meta_info_def.tensorflow_version = opdefs.table().tensorflow[0]
    meta.signature_def[SIGNATURE].method_name = "tensorflow/serving/predict"
    for tensor in found.inputs:
        info = meta.signature_def[SIGNATURE].inputs[tensor.argument.name]
        info.CopyFrom(_info(f"{SIGNATURE}_{tensor.argument.name}:0", tensor))
    for place, tensor in enumerate(found.outputs):
        info = meta.signature_def[SIGNATURE].outputs[tensor.argument.name]
        info.CopyFrom(_info(f"{STATEFUL_CALL}_{place}:0", tensor))
    objects = object_graph(found, name)
    objects.MergeFrom(objects_to_add(graph.restored, len(objects.nodes)))
    meta.object_graph_def.CopyFrom(objects)
    library = [*library_pieces(graph), *enclosed(2, enclosed(1, _function_def(found, name)))]
    graph_def = [_main(found, name).SerializeToString(deterministic=True), *library]
    rest = meta.SerializeToString(deterministic=True)
    return [SCHEMA_VERSION, *enclosed(2, [*enclosed(2, graph_def), rest])]


def object_graph(found: ExportedGraph, name: str) -> SavedObjectGraph:
    """A root that can be called, with the function as its signature too."""
    objects = SavedObjectGraph()
    root, signatures, function = (objects.nodes.add() for _ in range(3))
    for node, identifier in ((root, "_generic_user_object"), (signatures, "signature_map")):
        node.user_object.identifier = identifier
        node.user_object.version.producer = node.user_object.version.min_consumer = 1
    root.children.add(node_id=1, local_name="signatures")
    root.children.add(node_id=2, local_name="__call__")
    signatures.children.add(node_id=2, local_name=SIGNATURE)
    words = [one.argument.name for one in found.inputs]
    function.bare_concrete_function.concrete_function_name = name
    function.bare_concrete_function.argument_keywords.extend(words)
    # Several go by name: their order here is not the one that the user gave.
    function.bare_concrete_function.allowed_positional_arguments = int(len(words) == 1)
    concrete = objects.concrete_functions[name]
    concrete.canonicalized_input_signature.CopyFrom(arguments_spec([], _specs(found.inputs)))
    concrete.output_signature.CopyFrom(dict_value(_specs(found.outputs)))
    return objects


def _specs(tensors: Iterable[ExportedTensor]) -> dict[str, StructuredValue]:
    return {one.argument.name: tensor_spec(one.argument, one.shape) for one in tensors}


def _info(name: str, tensor: ExportedTensor) -> TensorInfo:
    return TensorInfo(name=name, dtype=tensor.argument.type, tensor_shape=tensor.shape)


def _main(found: ExportedGraph, name: str) -> GraphDef:
    """The main graph, for a Session: placeholders, a call of the function, and its outputs.

    They refuse gradients: those of the function are for a tape, and a Session would optimise the
    function first, and take them out.
    """
    main = GraphDef()
    main.versions.producer = found.graph.library.producer
    call = main.node.add(name=STATEFUL_CALL, op=STATEFUL_CALL)
    call.attr["f"].CopyFrom(attrs.function(name))
    for key, tensors in (("Tin", found.inputs), ("Tout", found.outputs)):
        call.attr[key].list.type.extend(one.argument.type for one in tensors)
    for tensor in found.inputs:
        fed = main.node.add(name=f"{SIGNATURE}_{tensor.argument.name}", op=PLACEHOLDER)
        fed.attr["dtype"].type = tensor.argument.type
        fed.attr["shape"].shape.CopyFrom(tensor.shape)
        call.input.append(fed.name)
    for place, tensor in enumerate(found.outputs):
        given = main.node.add(name=f"{STATEFUL_CALL}_{place}", op="PreventGradient")
        given.input.append(f"{STATEFUL_CALL}:{place}")
        given.attr["T"].type = tensor.argument.type
        given.attr["message"].s = FOR_A_TAPE
    return main


def _function_def(found: ExportedGraph, name: str) -> list[Piece]:
    """The FunctionDef."""
    signature = OpDef(name=name, is_stateful=True)
    signature.input_arg.extend(one.argument for one in found.inputs)
    signature.output_arg.extend(one.argument for one in found.outputs)
    out: list[Piece] = [encoded(1, signature.SerializeToString(deterministic=True))]
    for payload in found.part.payloads():
        out += enclosed(3, payload)
    for one in found.outputs:
        returned = found.part.spelled(one.tensor)
        out.append(
            encoded(4, encoded(1, one.argument.name.encode()) + encoded(2, returned.encode()))
        )
    shapes = AttrValue(list=AttrValue.ListValue(shape=[one.shape for one in found.inputs]))
    value = encoded(2, shapes.SerializeToString(deterministic=True))
    return [*out, encoded(5, encoded(1, b"_input_shapes") + value)]
