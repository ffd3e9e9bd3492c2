"""A checksum of a model's bytes, by which `revert` knows whether it gives the original back.

CRC-32 of each block: as fast as a disk, so that it costs `apply` little, and it finds every flipped
bit. It finds damage, not malice: who can change a file can change the checksum in it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from graphpatch.errors import CHANGED, ModelError
from graphpatch.graph.wire import Piece, Source, Span, piece_bytes, size

BLOCK = 1 << 25  # bytes that one CRC is of
READ = 1 << 18
THREADS = 2


def begun(source: Source) -> Callable[[], str]:
    """Begin the checksum of a whole source, beside other work; a call waits for the end."""
    whole = len(source.data)
    if source.descriptor < 0 or whole <= BLOCK:
        return lambda: checksum([Span(source, 0, whole)])
    blocks = [Span(source, at, min(at + BLOCK, whole)) for at in range(0, whole, BLOCK)]
    pool = ThreadPoolExecutor(THREADS)
    found = [pool.submit(_block, block) for block in blocks]
    pool.shutdown(wait=False)
    return lambda: _spelled(one.result() for one in found)


def checksum(pieces: Sequence[Piece]) -> str:
    """The checksum of the bytes that the pieces stand for."""
    crcs, crc, room = [], 0, BLOCK
    for data in _read(pieces):
        while data:
            part, data = data[:room], data[room:]
            crc, room = zlib.crc32(part, crc), room - len(part)
            if not room:
                crcs.append(crc)
                crc, room = 0, BLOCK
    return _spelled(crcs if room == BLOCK and size(pieces) else [*crcs, crc])


def _spelled(crcs: Sequence[int] | Iterator[int]) -> str:
    return "crc32:" + ".".join(f"{crc:08x}" for crc in crcs)


def _block(span: Span) -> int:
    crc = 0
    for data in _read([span]):
        crc = zlib.crc32(data, crc)
    return crc


def _read(pieces: Sequence[Piece]) -> Iterator[memoryview]:
    """The bytes, some at a time: of a file read and not mapped, so that no page of it is kept."""
    buffer = memoryview(bytearray(READ))
    for piece in pieces:
        if isinstance(piece, bytes) or piece.source.descriptor < 0:
            yield memoryview(piece_bytes(piece))
            continue
        at = piece.start
        while at < piece.end:
            room = buffer[: min(READ, piece.end - at)]
            if not (count := os.preadv(piece.source.descriptor, [room], at)):
                raise ModelError(CHANGED)
            yield room[:count]
            at += count
