"""Protobuf's wire format, read where it lies and written as pieces of what was there.

A message is never parsed whole: `fields` walks over its fields, `splice` puts new bytes in place of
some of them, and what lies between is a `Span` that a writer copies, some bytes at a time.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from google.protobuf.message import DecodeError, Message

from graphpatch import mapped
from graphpatch.errors import CHANGED, ModelError

SMALL = 1 << 24  # bytes up to which a file is read: it may be cut short later, and nothing is lost
SHORT = 1 << 12  # bytes up to which an unchanged part is read, and not copied from file to file
LARGE = 1 << 14  # bytes from which on a node is read field by field, and a field left in the file
MANY = 1 << 12  # pieces that are put together at once
MOST_FIELDS = 200_000  # of one message, nodes aside; the widest op that we know reads 66,000
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

M = TypeVar("M", bound=Message)


class Source(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """The bytes of a model: a mapped file, with its descriptor for copies in the kernel.

    `stamp` is the size of the file and when it was changed last, as it was opened.
    """

    data: bytes | mmap.mmap
    descriptor: int = -1
    stamp: tuple[int, int] = (0, 0)

    def __repr__(self) -> str:
        return f"Source({len(self.data):,} bytes)"


def map_file(path: Path) -> Source:
    """Return the bytes of a file: of a small one read, of a large one where they lie.

    A large file stays open as long as the source lives. A pipe, which cannot be mapped, is read.
    """
    if path.exists() and not path.is_file():
        if not path.is_fifo():  # /dev/zero has no end
            raise ModelError(
                f"{path} leads to a device or a socket; a model is a file, folder or pipe"
            )
        return Source(path.read_bytes())
    with path.open("rb") as file:
        stamp = _stamp(file.fileno())
        if stamp[0] == 0:
            raise ModelError(f"{path} is empty; copy or download the model again")
        if stamp[0] <= SMALL:
            whole = file.read()
            if len(whole) != stamp[0] or _stamp(file.fileno()) != stamp:
                raise ModelError(CHANGED)
            return Source(whole)
        for each in mapped.BEFORE_MAPPING:
            each()
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # it has no bytes any more
            raise ModelError(CHANGED) from None
        source = Source(data, os.dup(file.fileno()), stamp)
    weakref.finalize(source, os.close, source.descriptor)
    return source


def _stamp(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


def refuse_changed(sources: Iterable[Source]) -> None:
    """Raise ModelError where a file is not as it was when it was opened."""
    for source in dict.fromkeys(sources):
        if source.descriptor >= 0 and _stamp(source.descriptor) != source.stamp:
            raise ModelError(CHANGED)


class Span(NamedTuple):
    """Bytes `start` to `end` of a source."""

    source: Source
    start: int
    end: int


Piece = bytes | Span
Replacement = tuple[int, int, Sequence[Piece]]
"""What comes in place of the bytes from one place to another."""


class Field(NamedTuple):
    """One field of a message: its number and wire type, and where it lies."""

    number: int
    wire: int
    start: int
    value: int
    end: int

    def holds(self, number: int) -> bool:
        """Tell whether it is field `number`, a text or message; else it is unknown."""
        return self.number == number and self.wire == BYTES


def read_varint(data: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    """Return the number at `at`, and where the next byte lies."""
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
        if shift > 63:
            raise ModelError(f"not a protobuf: a number of more than 64 bits at byte {at}")


def varint(number: int) -> bytes:
    """Return `number`, encoded."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def fields(data: bytes | mmap.mmap, start: int, end: int) -> Iterator[Field]:
    """Yield each field of the message from `start` to `end`; ModelError where it is none."""
    at = start
    for _ in range(MOST_FIELDS):
        if at >= end:
            return
        field = field_at(data, at, end)
        yield field
        at = field.end
    if at < end:
        raise too_many_fields(start)


def too_many_fields(start: int) -> ModelError:
    """Return the error that a message has more fields than are read."""
    return ModelError(
        f"more than {MOST_FIELDS:,} fields in the message at byte {start}; graphpatch reads no more"
    )


def entry(source: Source, start: int) -> tuple[int, int]:
    """Return where the value of the length-delimited field at `start` begins and ends."""
    data = source.data
    length = data[start + 1]
    if length < 0x80:
        return start + 2, start + 2 + length
    more = data[start + 2]
    if more < 0x80:  # nearly all nodes are as short
        return start + 3, start + 3 + (length & 0x7F | more << 7)
    length, at = read_varint(data, start + 1)
    return at, at + length


def field_at(data: bytes | mmap.mmap, start: int, limit: int) -> Field:
    """Return the field that starts at `start`; ModelError where none does, or it passes `limit`."""
    try:
        tag, behind_tag = read_varint(data, start)
        wire, value = tag & 7, behind_tag
        end = value + (8 if wire == FIXED64 else 4)
        if wire == BYTES:
            length, value = read_varint(data, behind_tag)
            end = value + length
        elif wire == VARINT:
            end = read_varint(data, value)[1]
    except IndexError:
        raise ModelError(f"truncated: a field that starts at byte {start} has no end") from None
    if wire not in (VARINT, FIXED64, BYTES, FIXED32) or tag < 8:
        raise ModelError(f"not a protobuf: byte {start} starts no field (tag {tag})")
    if behind_tag - start > 1 and len(varint(tag)) < behind_tag - start:
        raise ModelError(f"the tag of the field at byte {start} is longer than it needs to be")
    if end > limit:
        raise ModelError(f"truncated: the field at byte {start} should end at {end}, not {limit}")
    return Field(tag >> 3, wire, start, value, end)


def utf8(data: bytes | mmap.mmap, start: int, end: int) -> str:
    """Return the text from `start` to `end`; ModelError where it is not UTF-8."""
    try:
        return data[start:end].decode()
    except UnicodeDecodeError:
        raise ModelError(f"the text at byte {start} is not UTF-8") from None


def message(kind: type[M], data: bytes) -> M:
    """Return the bytes as a protobuf message; ModelError where they are none."""
    try:
        return kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.name
        raise ModelError(f"not a protobuf: {len(data)} bytes that should be a {name}") from None


def size(pieces: Iterable[Piece]) -> int:
    """Return how many bytes the pieces are."""
    return sum([len(p) if isinstance(p, bytes) else p.end - p.start for p in pieces])


def piece_bytes(piece: Piece) -> bytes:
    """Return the bytes that a piece stands for."""
    return piece if isinstance(piece, bytes) else piece.source.data[piece.start : piece.end]


def read_span(span: Span) -> bytes:
    """Return the bytes of a span, read and not mapped; ModelError where the file ends before."""
    if span.source.descriptor < 0:
        return bytes(span.source.data[span.start : span.end])
    whole = bytearray()
    while len(whole) < span.end - span.start:
        at = span.start + len(whole)
        data = os.pread(span.source.descriptor, span.end - at, at)
        if not data:
            raise ModelError(CHANGED)
        whole += data
    return bytes(whole)


def encoded(number: int, value: bytes) -> bytes:
    """Return a length-delimited field `number` with this value."""
    tag, length = number << 3 | BYTES, len(value)
    if length < 0x4000 and tag < 0x80:  # nearly all are: one call for them
        if length < 0x80:
            return b"%c%c%b" % (tag, length, value)
        return b"%c%c%c%b" % (tag, length & 0x7F | 0x80, length >> 7, value)
    return varint(tag) + varint(length) + value


def enclosed(number: int, pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces as field `number` of a message: its tag and length, then they."""
    if len(pieces) == 1 and isinstance(pieces[0], bytes):
        return [encoded(number, pieces[0])]
    return [varint(number << 3 | BYTES) + varint(size(pieces)), *pieces]


def reframed(source: Source, start: int, pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces in place of the value of the field at `start`, under the same tag.

    A length that was written with more bytes than it needs, as a protobuf may be, is so again:
    what is put back one day has the bytes that it had.
    """
    tag, at = read_varint(source.data, start)
    length, value = read_varint(source.data, at)
    padding = value - at - len(varint(length))
    if not padding:
        return enclosed(tag >> 3, pieces)
    padded = bytearray(varint(size(pieces)))
    padded[-1] |= 0x80
    return [varint(tag) + padded + b"\x80" * (padding - 1) + b"\0", *pieces]


def splice(
    source: Source, start: int, end: int, replacements: Iterable[Replacement]
) -> list[Piece]:
    """Return the message from `start` to `end` with replacements, which are in order, put in.

    What is short is read, and written together with what lies beside it.
    """
    out: list[Piece] = []
    run: list[bytes] = []

    def end_run() -> None:
        if joined := b"".join(run):
            out.append(joined)
        run.clear()

    at = start
    for first, last, pieces in chain(replacements, [(end, end, ())]):
        is_whole = start == at < first == end
        is_read = first < at + SHORT and not is_whole
        between = source.data[at:first] if is_read else Span(source, at, first)
        for piece in (between, *pieces):
            if isinstance(piece, bytes):
                run.append(piece)
            else:
                end_run()
                out.append(piece)
        if len(run) > MANY:
            end_run()
        at = last
    end_run()
    if source.descriptor >= 0 and out:
        out.append(Span(source, end, end))  # so that the file is asked whether it was changed
    return out
