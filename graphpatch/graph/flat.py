"""Many NodeDefs as one message: their names, op types and inputs as three lists.

A protobuf message that is written twice is read as one, with all that repeats behind each other. So
a run of nodes is read as one `Graph` with one node, of which names and op types repeat as inputs
do, attrs parsed and not kept. Protobuf then makes no object for each node.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from tensorboard.compat.proto.node_def_pb2 import NodeDef

BETWEEN = b"\n\x06\n\x00\x12\x00\x1a\x00"
"""A node with an empty name, op type and input: it ends the lists of the node before."""


class Columns(NamedTuple):
    """What nodes have, one after the other."""

    names: list[str]
    ops: list[str]
    inputs: list[tuple[str, ...]]


def node_columns(nodes: Sequence[bytes]) -> Columns | None:
    """Of nodes, each as a field of a GraphDef; raises DecodeError where they do not parse.

    None where a name, op type or input is empty, or a node has several names or op types: such
    nodes have to be read one by one.
    """
    flat = _message_class().FromString(BETWEEN.join([*nodes, b""])).node
    names, ops, inputs = flat.name[:], flat.op[:], flat.input[:]
    ends = [""] * len(nodes)
    if names[1::2] != ends or ops[1::2] != ends or inputs.count("") != len(nodes):
        return None
    if "" in (names := names[::2]) or "" in (ops := ops[::2]):
        return None
    return Columns(names, ops, _lists(inputs))


def _lists(texts: Sequence[str]) -> list[tuple[str, ...]]:
    """Texts that lie one behind the other, each list of them ended by an empty one."""
    found: list[tuple[str, ...]] = []
    some: list[str] = []
    for text in texts:
        if text:
            some.append(text)
        else:
            found.append(tuple(some))
            some = []
    return found


@functools.cache
def _message_class() -> Any:
    """The class of a message with one node, whose name and op type repeat."""
    node = DescriptorProto()
    NodeDef.DESCRIPTOR.CopyToProto(node)
    for field in node.field:
        if field.name in ("name", "op"):
            field.label = FieldDescriptorProto.LABEL_REPEATED
        if field.type_name.startswith(f".{NodeDef.DESCRIPTOR.full_name}."):
            field.type_name = f".graphpatch.NodeDef.{field.type_name.rpartition('.')[2]}"
    needs = [NodeDef.DESCRIPTOR.file, *NodeDef.DESCRIPTOR.file.dependencies]
    file = FileDescriptorProto(name="graphpatch/flat.proto", package="graphpatch", syntax="proto3")
    file.dependency.extend(one.name for one in needs)
    file.message_type.append(node)
    file.message_type.add(name="Graph").field.add(
        name="node",
        number=1,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        type_name=".graphpatch.NodeDef",
    )
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("graphpatch.Graph"))
