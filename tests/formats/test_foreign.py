"""Files of others given as a model: each message says what the file is and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from provoking import files

from graphpatch.errors import GraphpatchError, ModelError
from graphpatch.formats import load
from graphpatch.formats.foreign import foreign_file
from graphpatch.protos import GraphDef
from graphpatch.rules import load_rules
from tests.graphs import node

# The file, and what is said of it as a model.
SAID = {
    "model.pb.gz": "compressed with gzip; decompress it first: gunzip -k model.pb.gz",
    "net.h5": "a Keras model in HDF5",
    "weights.h5": "an HDF5 file without a Keras model; if it holds",
    "net.keras": "a Keras model, which holds layers and no graph",
    "net.tflite": "a TensorFlow Lite model",
    "net.onnx": "an ONNX model",
    "net.pt": "a PyTorch model",
    "net.pkl": "a Python pickle",
    "arrays.npy": "NumPy arrays, not a graph",
    "models.zip": "a zip archive; unpack it",
    "models.tar": "a tar archive; unpack it",
    "model.ckpt.index": "part of a checkpoint",
    "model.ckpt.data-00000-of-00001": "part of a checkpoint",
    "checkpoint": "part of a checkpoint",
    "model.ckpt": "model.ckpt is the prefix of a checkpoint",
    "rules.json": "JSON, not a model; a rules file goes before the model in apply, match and check",
    "page.pb": "an HTML or XML page; download the file itself",
    "pointer.pb": "`git lfs pull` fetches the file",
    "notes.pb": "expected a .pb, .pbtxt or .meta file, or a SavedModel folder",
    "saved": "its graph is missing: copy the whole SavedModel",
}

# As rules.
SAID_OF_RULES = {
    "model.pb": "expected a rules file, found a GraphDef; RULES come first, then MODEL",
    "model.pb.gz": "found a file compressed with gzip; RULES come first, then MODEL",
    "net.h5": "found a Keras model in HDF5, which holds layers and no graph; RULES come first",
    "model.ckpt.index": "found part of a checkpoint, which holds the values of variables",
    "random.pb": "found binary data; RULES come first, then MODEL",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("foreign")
    files.write(path)
    return path


@pytest.mark.parametrize("name", SAID)
def test_as_a_model(folder: Path, name: str) -> None:
    with pytest.raises(ModelError) as refused:
        load(folder / name)
    assert SAID[name] in str(refused.value)
    assert str(folder / name) in str(refused.value)


@pytest.mark.parametrize("name", SAID_OF_RULES)
def test_as_rules(folder: Path, name: str) -> None:
    with pytest.raises(GraphpatchError) as refused:
        load_rules(folder / name)
    assert SAID_OF_RULES[name] in str(refused.value)


def test_a_file_that_is_not_there(folder: Path) -> None:
    with pytest.raises(
        ModelError, match=r"modle\.pb: No such file or directory; nearest: model\.pb$"
    ):
        load(folder / "modle.pb")
    with pytest.raises(GraphpatchError, match=r"directory; nearest: rules\.json$"):
        load_rules(folder / "rulse.json")
    with pytest.raises(ModelError, match=r"No such file or directory$"):
        load(folder / "nowhere" / "gone.pb")


def test_beside_its_graph_a_checkpoint_names_it(tmp_path: Path) -> None:
    (tmp_path / "model.ckpt.meta").write_bytes(b"")
    with pytest.raises(ModelError, match=r"its graph is in .*model\.ckpt\.meta: name that file"):
        load(tmp_path / "model.ckpt")


@pytest.mark.parametrize("name", ["TFL3", "BZh", "config.json", "7z", "PK\x03\x04"])
def test_a_graph_is_not_taken_for_another_file(tmp_path: Path, name: str) -> None:
    model = GraphDef(node=[node(name, "NoOp"), node("ustar" * 99, "NoOp")]).SerializeToString()
    (tmp_path / "model.pb").write_bytes(model)
    assert load(tmp_path / "model.pb").node_count == 2


def test_the_head_of_a_graph_is_nobodys() -> None:
    model = GraphDef(node=[node("TFL3", "NoOp")]).SerializeToString()
    assert model[4:8] == b"TFL3"
    assert foreign_file("model.pb", model) == ""
