"""The files of a user who tries things: models, what is not a model, and right rules."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from graphpatch.protos import GraphDef

GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}

GRAPH = """
node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } } }
node {
  name: "w" op: "Const" attr { key: "dtype" value { type: DT_FLOAT } }
  attr { key: "value" value { tensor {
    dtype: DT_FLOAT tensor_shape { dim { size: 2 } dim { size: 2 } } float_val: [1, 2, 3, 4] } } }
}
node { name: "dense/MatMul" op: "MatMul" input: "x" input: "w"
  attr { key: "T" value { type: DT_FLOAT } } }
node { name: "half" op: "Const" attr { key: "dtype" value { type: DT_FLOAT } }
  attr { key: "value" value { tensor {
    dtype: DT_FLOAT tensor_shape { dim { size: 2 } } float_val: [0.5, 0.5] } } } }
node { name: "dense/BiasAdd" op: "BiasAdd" input: "dense/MatMul" input: "half"
  attr { key: "T" value { type: DT_FLOAT } } attr { key: "data_format" value { s: "NHWC" } } }
node { name: "dense/Relu" op: "Relu" input: "dense/BiasAdd"
  attr { key: "T" value { type: DT_FLOAT } } }
node { name: "round" op: "Round" input: "dense/Relu" attr { key: "T" value { type: DT_FLOAT } } }
node { name: "out/Relu" op: "Relu" input: "round" attr { key: "T" value { type: DT_FLOAT } } }
node { name: "out" op: "Identity" input: "out/Relu" attr { key: "T" value { type: DT_FLOAT } } }
versions { producer: 1882 }
"""


def rules(*some: Any) -> str:
    """Return the text of a rules file."""
    return json.dumps({"version": 1, "rules": some})


def write(folder: Path) -> None:
    """Write all of them into a folder."""
    graph = text_format.Parse(GRAPH, GraphDef())
    model = graph.SerializeToString(deterministic=True)
    for name, data in {
        "model.pb": model,
        "other.pb": model,
        "cut.pb": model[:-9],
        "empty.pb": b"",
        "model.pb.gz": gzip.compress(model),
        "notes.pb": b"Remember to freeze the graph.\n",
        "pointer.pb": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "page.pb": b"<!DOCTYPE html><html><body>Not found</body></html>",
        "random.pb": bytes(range(256)),
        "typo.pbtxt": b'node { name: "a" op: "NoOp" }\nnode { nmae: "b" op: "NoOp" }\n',
        "net.h5": b"\x89HDF\r\n\x1a\n" + bytes(24) + b"model_config" + bytes(9),
        "weights.h5": b"\x89HDF\r\n\x1a\n" + bytes(64),
        "net.keras": zipped("metadata.json", "config.json", "model.weights.h5"),
        "models.zip": zipped("model.pb"),
        "models.tar": tarred("model.pb", model),
        "net.tflite": b"\x1c\x00\x00\x00TFL3" + bytes(64),
        "net.onnx": b"\x08\x08\x12\x07pytorch\x1a\x031.9:\x08\x12\x06main_1",
        "net.pt": zipped("archive/data.pkl", "archive/version"),
        "net.pkl": b"\x80\x04\x95" + bytes(40),
        "arrays.npy": b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}",
        "model.ckpt.index": bytes(200) + b"\x57\xfb\x80\x8b\x24\x75\x47\xdb",
        "model.ckpt.data-00000-of-00001": bytes(96),
        "checkpoint": b'model_checkpoint_path: "model.ckpt"\n',
        "saved/variables/variables.index": bytes(8),
        "pile/a.txt": b"a",
        "pile/b.pb": model,
        "rules.json": rules(GUIDED).encode(),
        "typo.json": rules({**GUIDED, "match": {"op": "Rleu"}}).encode(),
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def zipped(*names: str) -> bytes:
    """Return a zip file with files of these names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, "{}")
    return buffer.getvalue()


def tarred(name: str, data: bytes) -> bytes:
    """Return a tar file with one file in it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
