"""The messages that models consist of: TensorFlow's, in a pool of their own.

So they never clash with the classes that TensorFlow registers, and need no TensorFlow.
`scripts/make_protos.py` writes their descriptors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

POOL: Any = DescriptorPool()
_FILES = Path(__file__).parent / "data" / "protos.bin"
for _file in FileDescriptorSet.FromString(_FILES.read_bytes()).file:
    POOL.AddSerializedFile(_file.SerializeToString())


def __getattr__(name: str) -> Any:
    """Return the class of a message: `from graphpatch.protos import GraphDef`."""
    try:
        return GetMessageClass(POOL.FindMessageTypeByName(f"tensorflow.{name}"))
    except KeyError:
        raise AttributeError(f"TensorFlow has no message {name!r}") from None
