"""The checksum of a model is one of its bytes, however they are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import xxhash

from graphpatch import mapped
from graphpatch.errors import ModelError
from graphpatch.formats import before
from graphpatch.formats.before import checksum
from graphpatch.formats.output import READ_AT_ONCE
from graphpatch.graph.wire import SMALL, Span, map_file

SIZE = SMALL + 3 * READ_AT_ONCE + 5  # neither pages nor reads end where it does


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some.bytes"
    path.write_bytes(os.urandom(SIZE))
    return path


def test_a_file_is_read_piece_by_piece(file: Path) -> None:
    source, data = map_file(file), file.read_bytes()
    assert checksum([Span(source, 0, SIZE)]) == "xxh3:" + xxhash.xxh3_64(data).hexdigest()
    parts = [data[:7], Span(source, 7, 5000), Span(source, 5000, SIZE)]
    assert checksum(parts) == checksum([Span(source, 0, SIZE)])


def test_blocks_are_counted_in_turn(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(before, "HASHED_BLOCK", SIZE // 3)
    source, data = map_file(file), file.read_bytes()
    blocks = [data[at : at + SIZE // 3] for at in range(0, SIZE, SIZE // 3)]
    expected = "xxh3:" + ".".join(xxhash.xxh3_64(block).hexdigest() for block in blocks)
    assert checksum([Span(source, 0, SIZE)]) == checksum([data]) == expected


def test_a_file_that_is_cut_short(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A test before this one may have run the command in this process.
    monkeypatch.setattr(mapped, "BEFORE_MAPPING", [])
    source = map_file(file)
    os.truncate(file, 4096)
    with pytest.raises(ModelError, match="changed"):
        checksum([Span(source, 0, SIZE)])
