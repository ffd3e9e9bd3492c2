"""Files of others that are given as a model or as rules: what each is, and what to do with it.

They are known by their bytes. The parts of a checkpoint have none of their own: where nothing else
is found in such a file, its name tells.
"""

from __future__ import annotations

import contextlib
import mmap
import re
from collections.abc import Callable
from pathlib import Path

from graphpatch.errors import ModelError, OutputError, nearest
from graphpatch.graph.wire import BYTES, VARINT, fields
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

# What a file starts with, and what to say then.
FIRST_BYTES: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b", _PACKED.format(tool="gzip", command="gunzip -k", name="{name}")),
    (b"BZh", _PACKED.format(tool="bzip2", command="bunzip2 -k", name="{name}")),
    (b"\xfd7zXZ\x00", _PACKED.format(tool="xz", command="unxz -k", name="{name}")),
    (b"\x28\xb5\x2f\xfd", _PACKED.format(tool="zstd", command="unzstd", name="{name}")),
    (b"7z\xbc\xaf\x27\x1c", _ARCHIVE.format(kind="7z")),
    (b"\x93NUMPY", _ARRAYS),
    *((b"\x80" + bytes([protocol]), _PICKLE) for protocol in range(2, 6)),
)

# What else a file is known by, in this order.
TESTS: tuple[tuple[Callable[[Bytes], bool], str], ...] = (
    (lambda data: data[:4] == ZIP and data.find(b"config.json") >= 0, _KERAS),
    (lambda data: data[:4] == ZIP and data.find(b"data.pkl") >= 0, _TORCH),
    (lambda data: data[:4] == ZIP and data.find(b".npy") >= 0, _ARRAYS),
    (lambda data: data[:4] == ZIP, _ARCHIVE.format(kind="zip")),
    (lambda data: data[:8] == HDF5 and data.find(b"model_config") >= 0, _KERAS_HDF5),
    (lambda data: data[:8] == HDF5, _WEIGHTS),
    (lambda data: data[2:8] == b"\0\0TFL3", _TFLITE),
    (lambda data: data[257:262] == b"ustar", _ARCHIVE.format(kind="tar")),
    (lambda data: data[-8:] == TABLE_END, _CHECKPOINT),
    (lambda data: data[:22] == b"model_checkpoint_path:", _CHECKPOINT),
    (lambda data: _is_onnx(data), _ONNX),
    (lambda data: _is_fingerprint(data), _FINGERPRINT),
)


def _is_onnx(data: Bytes) -> bool:
    """Return a protobuf of an ONNX model: its IR version comes first, and its graph is field 7."""
    fields_present = _first_fields(data)
    return (
        data[:1] == b"\x08" and (7, BYTES) in fields_present and (2, VARINT) not in fields_present
    )


def _is_fingerprint(data: Bytes) -> bool:
    """Return a FingerprintDef: hashes in fields 1 to 5, and an id in field 7."""
    fields_present = _first_fields(data)
    return {(1, VARINT), (2, VARINT), (7, BYTES)} <= fields_present and data[:1] == b"\x08"


def _first_fields(data: Bytes) -> set[tuple[int, int]]:
    """Return the numbers and wire types of a message's first fields, as far as it is one."""
    first_fields: set[tuple[int, int]] = set()
    with contextlib.suppress(ModelError):
        for _, part in zip(range(32), fields(data, 0, len(data)), strict=False):
            first_fields.add((part.number, part.wire))
    return first_fields


def foreign_file(name: str, data: Bytes) -> str:
    """What a file is that TensorFlow did not write, and what to do; nothing for any other file."""
    for start, says in FIRST_BYTES:
        if data[: len(start)] == start:
            return _filled_in(says, name)
    return next((_filled_in(says, name) for test, says in TESTS if test(data)), "")


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
    """What to say of a path that is not there: it may be the prefix of a checkpoint, or a typo."""
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
    """The files beside a path whose names without ending are nearest; a clause, or nothing."""
    by_stem: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for entry in path.parent.iterdir():
            if entry.suffix == path.suffix:
                by_stem[entry.stem] = entry.name
    names = [one_line(by_stem[stem]) for stem in nearest(path.stem, by_stem)]
    return f"; nearest: {', '.join(names)}" if names else ""


def _filled_in(says: str, name: str) -> str:
    stem = name.rpartition(".")[0] or f"{name}_saved_model"
    return says.format(name=name, stem=stem)
