"""What a model is fed with: an archive of arrays, or an error that says what it is instead."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphpatch.errors import ModelError
from graphpatch.runtime import values
from tests.test_shown import RAW, ran


def npz(**arrays: Any) -> bytes:
    held = io.BytesIO()
    np.savez_compressed(held, **arrays)
    return held.getvalue()


def packed(name: str, raw: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as file:
        file.writestr(name, raw)
    return held.getvalue()


def flipped(raw: bytes, at: int, to: int) -> bytes:
    return raw[:at] + bytes([to]) + raw[at + 1 :]


WHOLE = npz(x=np.float32([1, 2]))
DIRECTORY = WHOLE.rindex(b"PK\x01\x02")  # what the archive says of its only file
VOID = b"{'descr': '|V0', 'fortran_order': False, 'shape': (1099511627776,)}"
FEEDS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not an .npz file"),
    "an array alone": (b"\x93NUMPY\x01\x00", "not an .npz file"),
    "cut": (WHOLE[:-9], "not an .npz file"),
    "other bytes": (flipped(WHOLE, DIRECTORY - 9, WHOLE[DIRECTORY - 9] ^ 1), "feed.npz"),
    "encrypted": (flipped(WHOLE, DIRECTORY + 8, 1), "encrypted"),
    "another packing": (flipped(WHOLE, DIRECTORY + 10, 99), "compression method is not supported"),
    "another version": (flipped(WHOLE, DIRECTORY + 6, 128), "zip file version 12.8"),
    "no array": (packed("x.npy", b"text"), "x.npy in feed.npz is not an .npy file"),
    "brackets": (
        packed("x.npy", b"\x93NUMPY\x01\x00\x00\x10" + b"(" * 4096),
        "x.npy in feed.npz is not an .npy file",
    ),
    "objects": (npz(x=np.array([{}], object)), "is not an .npy file of numbers: Object arrays"),
    "nothing, 2**40 times": (
        packed("x.npy", b"\x93NUMPY\x01\x00\x48\x00" + VOID.ljust(71) + b"\n"),
        "x.npy in feed.npz is not an .npy file",
    ),
    "control characters": (packed("\x1b[2J.npy", b""), "is not an .npy file"),
}


@pytest.mark.parametrize("name", FEEDS)
def test_what_is_no_feed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("feed.npz").write_bytes(FEEDS[name][0])
    code, said = ran("references", "gone.pb", "--feed", "feed.npz")
    assert (code, FEEDS[name][1] in said) == (1, True), said
    assert not RAW.search(said)


def test_each_byte_may_be_another(tmp_path: Path) -> None:
    path, refused = tmp_path / "feed.npz", 0
    for at in range(len(WHOLE)):
        for to in (0, 1, 0x7F, 0x80, 0xFF):
            path.write_bytes(flipped(WHOLE, at, to))
            try:
                values.read_feed(path)
            except ModelError:
                refused += 1
    assert refused > len(WHOLE)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: None])
def test_what_is_no_file(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "feed.npz")
    with pytest.raises(ModelError, match="there is no such file"):
        values.read_feed(tmp_path / "feed.npz")


def test_an_archive_that_unpacks_to_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "feed.npz").write_bytes(npz(x=np.zeros(1 << 20)))
    monkeypatch.setattr(values, "MOST_FED", 1 << 20)
    with pytest.raises(ModelError, match="unpacks to 8,388,736 bytes; 1,048,576 at most are fed"):
        values.read_feed(tmp_path / "feed.npz")


def test_a_feed_is_what_numpy_reads(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"a": np.array(["é", "b"]), "b:1": np.array([True])}
    arrays |= {"s/c": np.asfortranarray([[1, 2]]), "d": np.complex64(1j)}
    np.savez(tmp_path / "feed.npz", **arrays)
    fed = values.read_feed(tmp_path / "feed.npz")
    assert list(fed) == ["a:0", "b:1", "s/c:0", "d:0"]
    for read, written in zip(fed.values(), arrays.values(), strict=True):
        assert (read.dtype, read.tolist()) == (written.dtype, written.tolist())
        assert read.flags.writeable
