"""The messages of TensorFlow's control_flow.proto, which tensorboard does not carry."""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "graphpatch.control_flow"
TEXT, INT, BOOL, MESSAGE = 9, 5, 8, 11
ONE, MANY = 1, 3

# Of each message its fields: number, name, type, one or many, the message it holds.
PROTO_FIELDS: dict[str, list[tuple[int, str, int, int, str]]] = {
    "ExternalValue": [(1, "key", TEXT, ONE, ""), (2, "value", TEXT, ONE, "")],
    "ValuesDef": [
        (1, "values", TEXT, MANY, ""),
        # A map, as it lies on the wire: its order stays as it was.
        (2, "external_values", MESSAGE, MANY, "ExternalValue"),
    ],
    "ControlFlowContextDef": [
        (1, "cond_ctxt", MESSAGE, ONE, "CondContextDef"),
        (2, "while_ctxt", MESSAGE, ONE, "WhileContextDef"),
    ],
    "CondContextDef": [
        (1, "context_name", TEXT, ONE, ""),
        (2, "pred_name", TEXT, ONE, ""),
        (3, "pivot_name", TEXT, ONE, ""),
        (4, "branch", INT, ONE, ""),
        (5, "values_def", MESSAGE, ONE, "ValuesDef"),
        (6, "nested_contexts", MESSAGE, MANY, "ControlFlowContextDef"),
    ],
    "WhileContextDef": [
        (1, "context_name", TEXT, ONE, ""),
        (2, "parallel_iterations", INT, ONE, ""),
        (3, "back_prop", BOOL, ONE, ""),
        (4, "swap_memory", BOOL, ONE, ""),
        (5, "pivot_name", TEXT, ONE, ""),
        (6, "pivot_for_pred_name", TEXT, ONE, ""),
        (7, "pivot_for_body_name", TEXT, ONE, ""),
        (8, "loop_exit_names", TEXT, MANY, ""),
        (9, "values_def", MESSAGE, ONE, "ValuesDef"),
        (10, "loop_enter_names", TEXT, MANY, ""),
        (11, "maximum_iterations_name", TEXT, ONE, ""),
        (12, "nested_contexts", MESSAGE, MANY, "ControlFlowContextDef"),
    ],
}


@functools.cache
def message_class(name: str) -> Any:
    """The class of one of these messages."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


@functools.cache
def _pool() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="graphpatch/control_flow.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in PROTO_FIELDS.items():
        message = file.message_type.add(name=name)
        for number, field, kind, label, held in fields:
            type_name = f".{PACKAGE}.{held}" if held else None
            message.field.add(
                name=field, number=number, type=kind, label=label, type_name=type_name
            )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool
