"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import NoReturn

import pytest
import xxhash

from graphpatch import mapped
from graphpatch.errors import ModelError, OutputError
from graphpatch.formats import before
from graphpatch.formats.before import checksum
from graphpatch.formats.output import READ_AT_ONCE, write_file, write_folder, write_pieces
from graphpatch.graph import wire
from graphpatch.graph.wire import SMALL, Piece, Source, Span, map_file
from tests.refusals import everything

DATA = os.urandom(2 * READ_AT_ONCE + 17)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A file that is mapped, as large ones are."""
    monkeypatch.setattr(wire, "SMALL", 0)
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return map_file(path)


def pieces_of(source: Source) -> tuple[list[Piece], bytes]:
    """Pieces of every size: small and large, from memory and from the file."""
    large = Span(source, 7, READ_AT_ONCE + 9)
    many = b"x" * (READ_AT_ONCE + 1)
    pieces: list[Piece] = [b"<", Span(source, 1, 5), large, many, large, b"", b">"]
    middle = DATA[7 : READ_AT_ONCE + 9]
    return pieces, b"<" + DATA[1:5] + middle + many + middle + b">"


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_pieces_are_written_one_behind_the_other(tmp_path: Path, source: Source) -> None:
    pieces, expected = pieces_of(source)
    write_file(tmp_path / "out", pieces)
    assert (tmp_path / "out").read_bytes() == expected
    assert listed(tmp_path) == ["out", "source"]


def test_pieces_go_through_a_pipe(source: Source) -> None:
    pieces, expected = pieces_of(source)
    read, write = os.pipe()
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(Path(f"/dev/fd/{read}").read_bytes()))
    reader.start()
    write_pieces(write, pieces)
    os.close(write)
    reader.join()
    os.close(read)
    assert found == [expected]


def test_progress_is_told_to_the_end(tmp_path: Path, source: Source) -> None:
    pieces, expected = pieces_of(source)
    told: list[tuple[str, int, int]] = []
    write_file(tmp_path / "out", pieces, lambda *args: told.append(args))
    assert {(what, total) for what, _, total in told} == {("writing", len(expected))}
    done = [done for _, done, _ in told]
    assert done == sorted(done)
    assert done[-1] == len(expected)


def test_the_file_has_the_rights_that_new_files_have(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_file(tmp_path / "out", [b"new"])
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/out")
    for data in (b"first", b"second"):
        write_file(tmp_path / "link", [data])
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "folder" / "out").read_bytes() == data
    assert listed(tmp_path / "folder") == ["out"]


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    write_file(Path("/dev/null"), [b"gone"])
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OutputError, match="cannot write /dev/full: No space left on device"):
        write_file(Path("/dev/full"), [b"gone"])
    assert Path("/dev/full").is_char_device()
    assert not [name for name in listed(Path("/dev")) if name.startswith((".null", ".full"))]


def test_a_named_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, [b"through"])
    reader.join()
    assert found == [b"through"]
    assert listed(tmp_path) == ["pipe"]


def full(*args: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_is_full_leaves_the_old_file(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OutputError, match="No space left on device"):
            write_file(tmp_path / "out", pieces_of(source)[0])
    assert (tmp_path / "out").read_bytes() == b"old"
    assert listed(tmp_path) == ["out", "source"]


def test_whatever_goes_wrong_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"old")

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "out", [b"new"], interrupt)
    assert (tmp_path / "out").read_bytes() == b"old"
    assert listed(tmp_path) == ["out"]


# Folders


@pytest.fixture
def original(tmp_path: Path) -> Path:
    folder = tmp_path / "original"
    (folder / "below").mkdir(parents=True)
    for name in ("message", "left", "kept", "below/message", "below/left"):
        (folder / name).write_text(name)
    (folder / "link").symlink_to(folder / "kept")
    return folder


EXPECTED = {
    "message": b"new", "kept": b"kept", "link": b"kept",
    "below/message": b"below/message", "below/left": b"below/left",
}  # fmt: skip


def test_a_folder_like_another_in_the_place_of_an_old_one(tmp_path: Path, original: Path) -> None:
    before = everything(original)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    write_folder(tmp_path / "out", {"message": [b"new"]}, original, ["left"])
    assert everything(tmp_path / "out") == EXPECTED
    assert not (tmp_path / "out" / "link").is_symlink()
    assert everything(original) == before
    assert listed(tmp_path) == ["original", "out"]


def test_a_folder_of_a_read_only_one_can_be_written_to(tmp_path: Path, original: Path) -> None:
    for path in (original / "below", original):
        path.chmod(0o555)
    write_folder(tmp_path / "out", {"message": [b"new"]}, original, ["left"])
    assert everything(tmp_path / "out") == EXPECTED
    for path in (tmp_path / "out", tmp_path / "out" / "below"):
        assert path.stat().st_mode & 0o200
    for path in (original, original / "below"):
        path.chmod(0o755)


@pytest.mark.parametrize("broken", ["copyfile", "write", "rename"])
def test_a_folder_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def not_the_new_one(path: Path, target: Path) -> Path:
        return full() if path.suffix == ".tmp" else path.replace(target)

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    what = {"copyfile": shutil, "write": os, "rename": Path}[broken]
    with monkeypatch.context() as patch:
        patch.setattr(what, broken, not_the_new_one if broken == "rename" else full)
        with pytest.raises(OutputError, match="out: No space left on device"):
            write_folder(tmp_path / "out", {"message": [b"new"]}, original, ["left"])
    assert listed(tmp_path / "out") == ["old"]
    assert listed(tmp_path) == ["original", "out"]


# The checksum of a model is one of its bytes, however they are read.


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
