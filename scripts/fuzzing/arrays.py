"""Arrays as rules and commands name them: .npy and .npz files, and what is none."""

from __future__ import annotations

import io
import zipfile
from random import Random
from typing import Any

import numpy as np

from fuzzing.mutate import changed_bytes

NAME, FEED = "w.npy", "f.npz"
Made = tuple[str, dict[str, bytes], tuple[tuple[str, str], ...]]  # a name, files, other things
ARRAYS: tuple[Any, ...] = (
    np.array([0.5], np.float32), np.float32(2), np.ones((2, 3)), np.zeros((0, 4), np.float32),
    np.arange(6).reshape(2, 3), np.array([1, np.nan, np.inf], np.float16), np.ones(3, ">f8"),
    np.array(["a", "b"]), np.array([{}], object), np.ones(2, complex), np.ones(3, bool),
    np.asfortranarray(np.ones((3, 2))), np.zeros(3, [("a", "<f4")]), np.ones(2, np.longdouble),
    np.array(["2020-01-01"], "datetime64[D]"), np.array([[[[1]]]], np.float32),
)  # fmt: skip
SHAPES = (
    "()", "(1,)", "(-1,)", "(1099511627776,)", f"({10**30},)", "(2, -2)", "(1.5,)", "(True,)",
    "(4294967296, 4294967296)", "[1]", "1", "None", "(1,) * 99", "((1,),)", f"({'1,' * 70})",
)  # fmt: skip
TYPES = ("<f4", "|O", "<U9999999", "<f16", "x", "", "<f4,<f4", "|V0", "|S0", "<M8[D]", ">i8")
HEADERS = (
    "-" * 9_000 + "1", "1+" * 4_000 + "1j", "(" * 9_000, "[" * 99 + "]" * 99, '"""', "{", "\0", "",
    "{'a': 1}", "__import__('os').system('touch ran')", " " * 11_000, "é" * 20, "1L" * 99,
)  # fmt: skip
OUTSIDE = ("../w.npy", "/etc/w.npy", "a/../../w.npy", "..\\w.npy", "C:\\w.npy", "~/w.npy",
    "file:///w.npy", "n" * 300 + ".npy", "a\0.npy", "\ud800.npy", ".npy", "./w.npy", "gone/w.npy",
    "gone.npy", "\x1b[2J.npy", "w.NPY", "w.npy/", "w.npy\n",
)  # fmt: skip


def made(rng: Random) -> Made:
    """Return the name of an array for rules, and what lies there."""
    how = rng.random()
    if how < 0.15:
        return rng.choice(OUTSIDE), {}, ()
    if how < 0.3:
        return NAME, {}, ((NAME, rng.choice(_ODD)),)
    return NAME, {NAME: _file(rng)}, ()


def fed(rng: Random) -> Made:
    """Return the name of what a model is fed with, and what lies there."""
    if rng.random() < 0.1:
        return FEED, {}, ((FEED, rng.choice(_ODD)),)
    if rng.random() < 0.2:
        return FEED, {FEED: _file(rng)}, ()
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as file:
        for _ in range(rng.choice((0, 1, 1, 2))):
            name = rng.choice(("x:0.npy", "x.npy", "x", "../x.npy", "\x1b[2J.npy", "é"))
            if name not in file.namelist():
                entry = zipfile.ZipInfo(name)  # of 1980: the same bytes at any time
                entry.compress_type = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
                file.writestr(entry, _file(rng))
    raw = held.getvalue()
    return FEED, {FEED: changed_bytes(raw, rng) if rng.random() < 0.5 else raw}, ()


_ODD = ("pipe", "folder", "/dev/zero", "/dev/null", "gone", "../../../etc/passwd", NAME, ".")


def _file(rng: Random) -> bytes:
    """Return an .npy file: whole, of another type, cut off, or with a header that nobody wrote."""
    held = io.BytesIO()
    np.save(held, rng.choice(ARRAYS), allow_pickle=True)
    raw = held.getvalue()
    how = rng.randrange(5)
    if how == 0:
        return raw
    if how == 1:
        return raw[: rng.randrange(len(raw) + 1)]
    if how == 2:
        return changed_bytes(raw, rng)
    if how == 3:
        return _headed(rng.choice(HEADERS), rng)
    shape, dtype = rng.choice(SHAPES), rng.choice(TYPES)
    return _headed(f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}\n", rng)


def _headed(text: str, rng: Random) -> bytes:
    header = text.encode()
    version = rng.choice((1, 1, 2, 3, 9))
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes((version, 0)) + length + header + rng.randbytes(rng.choice((0, 4)))
