"""Files of others that are given as a model or as rules: what each is, and what to do with it.

They are known by their bytes. The parts of a checkpoint have none of their own: where nothing else
is found in such a file, its name tells.
"""

from __future__ import annotations

import contextlib
import mmap
import re
from pathlib import Path

from graphpatch.errors import ModelError, OutputError, nearest
from graphpatch.formats.destination import FILES
from graphpatch.graph.wire import BYTES, VARINT, Field, fields
from graphpatch.shown import one_line

ZIP = b"PK\x03\x04"
HDF5 = b"\x89HDF\r\n\x1a\n"
TABLE_END = bytes.fromhex("57fb808b247547db")  # of an .index file, a table of LevelDB's kind
DATA = re.compile(r"(.+)\.data-\d{5}-of-\d{5}")

# What names of files of others end in: what is written is not what such a name says.
SUFFIXES = frozenset(
    ".bz2 .ckpt .gz .h5 .hdf5 .index .json .keras .mlmodel .npy .npz .onnx .pkl .plan .pt .pth "
    ".safetensors .tar .tflite .toml .txt .xz .yaml .yml .zip".split()
)

Bytes = bytes | mmap.mmap

_EXPORT_ADVICE = (
    "write a SavedModel of it and name that folder: "
    "keras.models.load_model({name!r}).export({stem!r}); "
    "with tf_keras: tf.saved_model.save(tf_keras.models.load_model({name!r}), {stem!r})"
)
_KERAS = f"a Keras model, which holds layers and no graph; {_EXPORT_ADVICE}"
_KERAS_HDF5 = f"a Keras model in HDF5, which holds layers and no graph; {_EXPORT_ADVICE}"
_WEIGHTS = (
    "an HDF5 file without a Keras model; if it holds weights, build the model in Python, call "
    "model.load_weights({name!r}) and model.export({stem!r}), and name the folder {stem}"
)
_FINGERPRINT = "the fingerprint of a SavedModel, not its graph; give the folder that it is in"
_ONNX = (
    "an ONNX model; graphpatch patches TensorFlow graphs: patch the TensorFlow model that it was "
    "converted from"
)
_TFLITE = (
    "a TensorFlow Lite model, which has no gradients; patch the TensorFlow model that it was "
    "converted from (a .pb file, a .meta file or a SavedModel folder)"
)
_CHECKPOINT = (
    "part of a checkpoint, which holds the values of variables and no graph; "
    "name the .meta file beside it, a frozen .pb, or a SavedModel folder"
)
_TORCH = "a PyTorch model; graphpatch patches TensorFlow graphs, and cannot read it"
_PICKLE = "a Python pickle, which graphpatch does not open: it could run any code"
_PACKED = "a file compressed with {tool}; decompress it first: {command} {name}"
_ARCHIVE = "a {kind} archive; unpack it, and name a model in it"
_ARRAYS = "NumPy arrays, not a graph; name a .pb, .pbtxt or .meta file, or a SavedModel folder"

# What files are known by, in this order: where which bytes lie, what else is in it; what to say.
KNOWN: tuple[tuple[int, bytes, bytes, str], ...] = (
    (0, b"\x1f\x8b", b"", _PACKED.format(tool="gzip", command="gunzip -k", name="{name}")),
    (0, b"BZh", b"", _PACKED.format(tool="bzip2", command="bunzip2 -k", name="{name}")),
    (0, b"\xfd7zXZ\x00", b"", _PACKED.format(tool="xz", command="unxz -k", name="{name}")),
    (0, b"\x28\xb5\x2f\xfd", b"", _PACKED.format(tool="zstd", command="unzstd", name="{name}")),
    (0, b"7z\xbc\xaf\x27\x1c", b"", _ARCHIVE.format(kind="7z")),
    (0, b"\x93NUMPY", b"", _ARRAYS),
    *((0, b"\x80" + bytes([protocol]), b"", _PICKLE) for protocol in range(2, 6)),
    (0, ZIP, b"config.json", _KERAS),
    (0, ZIP, b"data.pkl", _TORCH),
    (0, ZIP, b".npy", _ARRAYS),
    (0, ZIP, b"", _ARCHIVE.format(kind="zip")),
    (0, HDF5, b"model_config", _KERAS_HDF5),
    (0, HDF5, b"", _WEIGHTS),
    (2, b"\0\0TFL3", b"", _TFLITE),
    (257, b"ustar", b"", _ARCHIVE.format(kind="tar")),
    (-8, TABLE_END, b"", _CHECKPOINT),
    (0, b"model_checkpoint_path:", b"", _CHECKPOINT),
)


def is_text(head: bytes) -> bool:
    """Return whether a file that starts so is text. Binary ones have control characters."""
    if head[:1] == b"\n" and head[1:2] > b"\x7f":
        return False  # the size of a NodeDef, whose name may be longer than `head`
    return not any(byte < 32 and byte not in b"\t\n\r" for byte in head)


def peek(data: Bytes, start: int, end: int, most: int = 256) -> dict[tuple[int, int], Field]:
    """Return the first of each kind among a message's first fields, as far as it is a message."""
    parts: dict[tuple[int, int], Field] = {}
    with contextlib.suppress(ModelError):  # of a file cut short, the rest says what it was
        for _, part in zip(range(most), fields(data, start, end), strict=False):
            parts.setdefault((part.number, part.wire), part)
    return parts


def foreign_file(name: str, data: Bytes) -> str:
    """Return what a file is that TensorFlow did not write, and what to do; or nothing."""
    for at, start, inside, says in KNOWN:
        if data[at : at + len(start) or None] == start and data.find(inside) >= 0:
            return _filled_in(says, name)
    present = peek(data, 0, len(data))
    if data[:1] == b"\x08" and (7, BYTES) in present:  # an ONNX model's graph, or an id
        return _FINGERPRINT if (2, VARINT) in present else _ONNX
    return ""


def told_by_name(name: str) -> str:
    """Return the same of a file in which nothing was recognised, by its name."""
    if name.endswith(".onnx"):
        return _ONNX
    if name.endswith(".tflite"):
        return _TFLITE
    return _CHECKPOINT if DATA.fullmatch(name) or name.endswith(".index") else ""


def refuse_suffix(output: str, model: str = "") -> None:
    """Raise OutputError for an output whose name is that of a file of another kind.

    A `model` may have such a name itself: then its output may have it too.
    """
    suffix = Path(output).suffix.lower()
    if suffix in SUFFIXES and suffix != Path(model).suffix.lower() and not output.endswith("/"):
        raise OutputError(
            f"cannot write {output}: graphpatch writes .pb, .pbtxt and .meta files and SavedModel "
            f"folders, not {suffix}; name the output {Path(output).with_suffix('.pb')}"
        )


def not_there(path: Path) -> str:
    """Return what to say of a path that is not there: a checkpoint's prefix, or a typo."""
    meta = Path(f"{path}.meta")
    if meta.is_file():
        return f"{path} is the prefix of a checkpoint; its graph is in {meta}: name that file"
    if Path(f"{path}.index").is_file():
        return (
            f"{path} is the prefix of a checkpoint, which holds the values of variables and no "
            f"graph; name a .meta file, a frozen .pb, or a SavedModel folder"
        )
    return f"cannot read {path}: No such file or directory{_nearest(path)}"


def _nearest(path: Path) -> str:
    """Return a clause with the models beside a path whose names without ending are nearest."""
    by_stem: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for entry in path.parent.iterdir():
            is_model = entry.suffix in FILES or entry.is_dir()
            if entry.suffix == path.suffix or (is_model and not path.suffix):
                by_stem[entry.stem] = entry.name
    names = [one_line(by_stem[stem]) for stem in nearest(path.stem, by_stem)]
    return f"; nearest: {', '.join(names)}" if names else ""


def _filled_in(says: str, name: str) -> str:
    stem = name.rpartition(".")[0] or f"{name}_saved_model"
    return says.format(name=name, stem=stem)
