"""Protobuf's limit: a message of 2 GB or more can be neither written nor read as one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import Message

from graphpatch.errors import ModelError
from graphpatch.graph.wire import Piece, message, piece_bytes, size

LIMIT = 2**31 - 1  # bytes

TOO_LARGE = (
    "protobuf messages are limited to 2 GB (2,147,483,647 bytes); keep the weights in variables, "
    "with a checkpoint, and not as constants of the graph"
)

# What protobuf and TensorFlow say where a message is larger, in the versions that differ.
_SAYS = re.compile(r"2 ?GB|2147483647|larger than the limit|Failed to serialize", re.IGNORECASE)

M = TypeVar("M", bound=Message)


def as_message(kind: type[M], pieces: Sequence[Piece]) -> M:
    """The pieces as one message. Raises ModelError where they are more than protobuf's 2 GB."""
    total = size(pieces)
    if total > LIMIT:
        name = kind.DESCRIPTOR.name
        raise ModelError(f"as a {name} it would have {total:,} bytes, and {TOO_LARGE}")
    return message(kind, b"".join(map(piece_bytes, pieces)))


def as_bytes(given: Message) -> bytes:
    """A message, serialized. Raises ModelError where it is more than protobuf's 2 GB."""
    try:
        return given.SerializeToString(deterministic=True)
    except Exception as error:  # ValueError or EncodeError, by the version of protobuf
        if is_too_large(error):
            raise ModelError(
                f"<{given.DESCRIPTOR.name}>: it cannot be serialized: {TOO_LARGE}"
            ) from error
        raise


def is_too_large(error: Exception) -> bool:
    """Whether protobuf or TensorFlow failed since a message is larger than 2 GB."""
    return _SAYS.search(str(error)) is not None
