"""A checksum of a model's bytes, by which `revert` knows whether it gives the original back.

XXH3 of each block: as fast as memory, so that it costs `apply` little. It finds damage, not malice:
who can change a file can change the checksum in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import xxhash

from graphpatch.errors import CHANGED, ModelError
from graphpatch.graph.wire import Piece, Source, Span, piece_bytes

HASHED_BLOCK = 1 << 25  # bytes that one hash is of
READ_AT_ONCE = 1 << 20


def of_source(source: Source) -> str:
    """Return the checksum of a whole source."""
    return checksum([Span(source, 0, len(source.data))])


def checksum(pieces: Sequence[Piece]) -> str:
    """Return the checksum of the bytes that the pieces stand for."""
    hashes, block, room = [], xxhash.xxh3_64(), HASHED_BLOCK
    for data in memory_chunks(pieces):
        while data:
            part, data = data[:room], data[room:]
            block.update(part)
            room -= len(part)
            if not room:
                hashes.append(block.hexdigest())
                block, room = xxhash.xxh3_64(), HASHED_BLOCK
    if room < HASHED_BLOCK or not hashes:
        hashes.append(block.hexdigest())
    return "xxh3:" + ".".join(hashes)


def memory_chunks(pieces: Sequence[Piece]) -> Iterator[memoryview]:
    """Yield the bytes, some at a time: those of a file are read, so that no page of it is kept.

    Raises ModelError where the file is cut short.
    """
    buffer = memoryview(bytearray(READ_AT_ONCE))
    for piece in pieces:
        if isinstance(piece, bytes) or piece.source.descriptor < 0:
            yield memoryview(piece_bytes(piece))
            continue
        at = piece.start
        while at < piece.end:
            room = buffer[: min(READ_AT_ONCE, piece.end - at)]
            if not (count := os.preadv(piece.source.descriptor, [room], at)):
                raise ModelError(CHANGED)
            yield room[:count]
            at += count
