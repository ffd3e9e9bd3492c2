from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpatch.errors import ModelError
from graphpatch.graph import wire
from graphpatch.graph.wire import BYTES, FIXED32, FIXED64, VARINT, Field, Source, Span
from tests import graphs

# A field of each wire type: number 1 a number, 2 bytes, 3 and 4 fixed, 200 bytes.
EACH = b"\x08\x96\x01" + b"\x12\x03abc" + b"\x1d1234" + b"\x2112345678" + b"\xc2\x0c\x00"


@given(st.integers(0, 2**64 - 1))
def test_a_number_is_read_as_it_was_encoded(number: int) -> None:
    raw = wire.varint(number)
    assert wire.read_varint(b"??" + raw + b"??", 2) == (number, 2 + len(raw))


def test_fields_lie_one_behind_the_other() -> None:
    assert list(wire.fields(EACH + b"??", 0, len(EACH))) == [
        Field(1, VARINT, 0, 1, 3),
        Field(2, BYTES, 3, 5, 8),
        Field(3, FIXED32, 8, 9, 13),
        Field(4, FIXED64, 13, 14, 22),
        Field(200, BYTES, 22, 25, 25),
    ]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x00\x00", r"byte 0 starts no field \(tag 0\)"),
        (b"\x08\x01\x07\x01", "byte 2 starts no field"),
        (b"\x0b\x0c", "byte 0 starts no field"),
        (b"\x0e\x00\x00\x00\x00", "byte 0 starts no field"),
        (b"\xff" * 12, "more than 64 bits"),
        (b"\x0a" + wire.varint(2**63) + b"abc", "truncated"),
    ],
)
def test_what_is_no_message_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(ModelError, match=f"not a protobuf: .*{reason}|{reason}"):
        list(wire.fields(raw, 0, len(raw)))


@pytest.mark.parametrize("number", [1, 15, 16, 4_000])
@pytest.mark.parametrize("padding", [0, 1, 3])
def test_another_value_stands_under_the_tag_and_the_padding_of_its_field(
    number: int, padding: int
) -> None:
    def padded(value: bytes) -> bytes:
        length = bytearray(wire.varint(len(value)))
        if padding:
            length[-1] |= 0x80
            length += b"\x80" * (padding - 1) + b"\0"
        return wire.varint(number << 3 | BYTES) + bytes(length) + value

    source = Source(b"??" + padded(b"abc"))
    for value in (b"", b"x" * 200):
        pieces = wire.reframed(source, 2, [value])
        assert graphs.joined(pieces) == padded(value)
        assert next(wire.fields(padded(value), 0, len(padded(value)))).number == number


def test_splicing_puts_pieces_in_place_and_leaves_the_rest() -> None:
    source = Source(b"0123456789")
    pieces = wire.splice(source, 1, 9, [(1, 1, [b"<"]), (3, 5, [b"a", b"b"]), (8, 9, [])])
    assert pieces == [b"<12ab567"]
    assert wire.splice(source, 0, 10, []) == [Span(source, 0, 10)]
    assert wire.splice(source, 4, 4, []) == []


def test_splicing_reads_what_is_short_alone() -> None:
    source, most = Source(bytes(3 * wire.SHORT)), wire.SHORT
    pieces = wire.splice(source, 0, 3 * most, [(most, most, [b"<"])])
    assert pieces == [Span(source, 0, most), b"<", Span(source, most, 3 * most)]


def test_a_file_of_which_all_is_read_is_still_asked_whether_it_changed() -> None:
    source = Source(b"0123456789", descriptor=0)
    pieces = wire.splice(source, 0, 10, [(5, 5, [b"<"])])
    assert pieces == [b"01234<56789", Span(source, 10, 10)]


def test_a_small_file_is_read_and_a_large_one_mapped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(ModelError, match="file is empty"):
        wire.map_file(path)
    path.write_bytes(EACH)
    small = wire.map_file(path)
    os.truncate(path, wire.SMALL + 1)
    assert small.data == EACH
    source = wire.map_file(path)
    assert isinstance(source.data, mmap.mmap)
    assert source.data[: len(EACH)] == EACH
    assert source.descriptor >= 0
    assert wire.read_span(Span(source, 3, 8)) == EACH[3:8]
