"""Arrays that a rules file names: they lie beside it, and what cannot be read is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphpatch.errors import RulesError
from graphpatch.gradients.tensors import in_folder, packed, unpacked


def test_a_file_beside_the_rules(tmp_path: Path) -> None:
    for dtype in ("float16", "float32", ">f8", "int8", "uint64"):
        array = np.asfortranarray(np.arange(6).reshape(2, 3), dtype)
        np.save(tmp_path / "w.npy", array)
        found = unpacked(packed("w.npy", in_folder(tmp_path)))
        assert found.array().tolist() == array.tolist()
    np.save(tmp_path / "w.npy", np.float32(3))
    assert packed("w.npy", in_folder(tmp_path))["shape"] == []


@pytest.mark.parametrize("name", ["../w.npy", "/w.npy", "a/../../w.npy", "..\\w.npy", "C:\\w.npy"])
def test_a_name_stays_in_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(RulesError, match="leads out of the folder"):
        packed(name, in_folder(tmp_path))


def test_a_link_stays_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    np.save(tmp_path / "secret.npy", np.float32([1]))
    (tmp_path / "rules/w.npy").symlink_to("../secret.npy")
    (tmp_path / "rules/zero.npy").symlink_to("/dev/zero")
    for name in ("w.npy", "zero.npy"):
        with pytest.raises(RulesError, match="a link that leads out of the folder"):
            packed(name, in_folder(tmp_path / "rules"))


def cut(path: Path) -> None:
    np.save(path, np.zeros(9, np.float32))
    path.write_bytes(path.read_bytes()[:-1])


def archive(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.zeros(2))


def saved(array: Any) -> Callable[[Path], None]:
    return lambda path: np.save(path, array, allow_pickle=True)


def header(text: str) -> Callable[[Path], int]:
    raw = text.encode()
    whole = b"\x93NUMPY\x01\x00" + len(raw).to_bytes(2, "little") + raw
    return lambda path: path.write_bytes(whole)


def shaped(shape: str) -> Callable[[Path], int]:
    return header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n")


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (Path.touch, "not an .npy file"),
    "pipe": (os.mkfifo, "it is not a file"),
    "folder": (Path.mkdir, "it is not a file"),
    # There is no file, and for most of these names there can be none.
    **{"gone": (str, "No such file"), "n" * 300: (str, "too long")},
    **{"nul\0": (str, "null byte"), "\ud800": (str, "cannot read")},
    "sparse": (lambda path: (path.touch(), os.truncate(path, 1 << 40)), "at most go into a rule"),
    "pickled": (saved(np.array([{}], object)), "not an .npy file"),
    "texts": (saved(np.array(["a"])), "expected numbers, found <U1"),
    "complex": (saved(np.zeros(2, complex)), "expected numbers, found complex128"),
    "cut": (cut, "not an .npy file"),
    "archive": (archive, "not an .npy file"),
    "huge": (shaped("(1099511627776,)"), "not an .npy file"),
    "more": (shaped(f"({10**30},)"), "not an .npy file"),
    "wraps": (shaped("(4294967296, 4294967296)"), "not an .npy file"),
    "negative": (shaped("(-2, 0)"), "not an .npy file"),
    "version": (lambda path: path.write_bytes(b"\x93NUMPY\x03\x00"), "not an .npy file"),
    "deep": (header("-" * 9_000 + "1"), "not an .npy file"),
    "sum": (header("1+" * 4_000 + "1j"), "not an .npy file"),
    "brackets": (header("(" * 9_000), "not an .npy file"),
    "quote": (header('"""'), "not an .npy file"),
    "long": (header(" " * 20_000), "not an .npy file"),
}


@pytest.mark.parametrize("name", FILES, ids=lambda name: ascii(name)[:20])
def test_what_is_not_an_array(name: str, tmp_path: Path) -> None:
    make, said = FILES[name]
    make(tmp_path / f"{name}.npy")
    with pytest.raises(RulesError, match=said) as told:
        packed(f"{name}.npy", in_folder(tmp_path))
    assert len(str(told.value)) < 1_000


@pytest.mark.parametrize("shape", [5, None, "x", [None], ["1"], [-1, -1], [1.0], [True], [1] * 65])
def test_a_shape_that_is_none(shape: Any) -> None:
    with pytest.raises(RulesError, match="fills the shape"):
        unpacked({"shape": shape, "float32": "AACAPw=="})
    assert unpacked({"shape": [1], "float32": "AACAPw=="}).array() == 1
