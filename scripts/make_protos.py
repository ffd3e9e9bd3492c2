"""Write graphpatch/data/protos.bin: the descriptors of the messages that models consist of.

Usage: make_protos.py. Reads them from the TensorFlow that is installed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read by TensorFlow when it is imported

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

OUTPUT = Path(__file__).parent.parent / "graphpatch" / "data" / "protos.bin"


def descriptors() -> FileDescriptorSet:
    """Return the .proto files of models and of event files, each after those that it imports."""
    from tensorflow.core.protobuf import (
        control_flow_pb2,
        meta_graph_pb2,
        saved_model_pb2,
        saved_object_graph_pb2,
    )
    from tensorflow.core.util import event_pb2

    files: dict[str, FileDescriptorProto] = {}

    def add(descriptor: Any) -> None:
        if descriptor.name not in files:
            for needed in descriptor.dependencies:
                add(needed)
            files[descriptor.name] = FileDescriptorProto()
            descriptor.CopyToProto(files[descriptor.name])

    models = (meta_graph_pb2, saved_model_pb2, saved_object_graph_pb2)
    for module in (*models, control_flow_pb2, event_pb2):
        add(module.DESCRIPTOR)
    for message in files[control_flow_pb2.DESCRIPTOR.name].message_type:
        for entry in message.nested_type:  # maps, whose order is to stay as it is in a file
            entry.options.Clear()
    return FileDescriptorSet(file=list(files.values()))


def main() -> None:
    data = descriptors().SerializeToString(deterministic=True)
    OUTPUT.write_bytes(data)
    print(f"{OUTPUT}: {len(data):,} bytes")


if __name__ == "__main__":
    main()
