"""JSON and plain values as typed values, described to msgspec by one thread at a time.

msgspec describes a type when it first meets it. Where two threads do that at once, for a type that
holds itself, the process ends with SIGSEGV.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_LOCK = threading.RLock()


def convert(value: Any, kind: type[T]) -> T:
    """Return what `msgspec.convert` does."""
    with _LOCK:
        return msgspec.convert(value, kind)


def decode(data: bytes, kind: type[T]) -> T:
    """Return what `msgspec.json.decode` does."""
    with _LOCK:
        described: Any = kind
        value: T = decoder(described).decode(data)
    return value


@cache
def decoder(kind: Any) -> Any:
    """Return a decoder of a type, or of a union of types, which several threads may use."""
    with _LOCK:
        return msgspec.json.Decoder(kind)
