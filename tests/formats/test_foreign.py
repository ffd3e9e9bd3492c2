"""Files of others given as a model; tests/data/messages.md has what is said of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from provoking import files

from graphpatch.errors import ModelError
from graphpatch.formats import load
from graphpatch.formats.foreign import foreign_file
from graphpatch.protos import GraphDef
from tests.graphs import node


@pytest.mark.parametrize(
    ("name", "member", "said"),
    [
        ("model.pb", "config.json", r"export\('model'\)"),  # known by its content
        ("model.keras", "notes.txt", "a zip archive; unpack it"),
    ],
)
def test_an_archive_is_what_it_holds(tmp_path: Path, name: str, member: str, said: str) -> None:
    names = (member, "metadata.json", "model.weights.h5") if member == "config.json" else (member,)
    (tmp_path / name).write_bytes(files.zipped(*names))
    with pytest.raises(ModelError, match=said):
        load(tmp_path / name)


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
