"""What a file is, its bytes tell, not its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.message import Message
from provoking import files

from graphpatch.errors import ModelError
from graphpatch.formats import load
from graphpatch.formats.foreign import foreign_file
from graphpatch.graph import wire
from graphpatch.protos import GraphDef
from tests import graphs
from tests.graphs import const, graphdef, node

SAMPLE = graphs.sample()
META = graphs.metagraph(SAMPLE, "serve")
STRANGE = wire.encoded(77, b"?" * 40) + b"\x98\x06\x01"
LIBRARY = graphdef(functions=SAMPLE.library.function)
SAVED_AS_TEXT = f"saved_model_schema_version: 1 meta_graphs {{ {META} }}"


def raw(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def as_text(message: Message, before: str = "") -> bytes:
    return (before + text_format.MessageToString(message)).encode()


FORMATS = {
    "a GraphDef": ("m.pb", raw(SAMPLE), "GraphDef"),
    "without versions": ("m.pb", raw(GraphDef(node=SAMPLE.node)), "GraphDef"),
    "a library alone": ("m.pb", raw(LIBRARY), "GraphDef"),
    "versions alone": ("m.pb", raw(graphdef()), "GraphDef"),
    "the library first": ("m.pb", raw(LIBRARY) + raw(GraphDef(node=SAMPLE.node)), "GraphDef"),
    "fields that nobody knows": ("m.pb", STRANGE + raw(SAMPLE), "GraphDef"),
    "a large constant first": ("m.pb", raw(graphdef(const("c", 99_999))), "GraphDef"),
    "a node of many fields": (
        "m.pb",
        wire.encoded(1, STRANGE * 20 + raw(node("a", "NoOp"))),
        "GraphDef",
    ),
    "a function called as an op type of any name": (
        "m.pb",
        raw(graphdef(node("a", "^f é:0"), functions=[graphs.function("^f é:0", [], [], {})])),
        "GraphDef",
    ),
    "a name longer than what is looked at": (
        "m.pb",
        raw(graphdef(node("x" * 5_000, "NoOp"))),
        "GraphDef",
    ),
    "a text .pb": ("m.pb", as_text(SAMPLE), "GraphDef as text"),
    "a text of versions": ("m.pbtxt", as_text(graphdef()), "GraphDef as text"),
    "a text with a comment": (
        "m.pbtxt",
        as_text(SAMPLE, "# node: of a kind\n\n  # another\n"),
        "GraphDef as text",
    ),
    "a MetaGraphDef": ("m.meta", raw(META), "MetaGraphDef"),
    "without a meta_info_def": ("m.meta", wire.encoded(2, raw(SAMPLE)) + STRANGE, "MetaGraphDef"),
    "a text MetaGraphDef": ("m.meta", as_text(META), "MetaGraphDef as text"),
    "a SavedModel": ("m.pb", graphs.saved_model(META), "SavedModel"),
    "without a schema version": ("m.pb", graphs.saved_model(META)[2:], "SavedModel"),
    "a text SavedModel": ("m.pbtxt", SAVED_AS_TEXT.encode(), "SavedModel as text"),
}


@pytest.mark.parametrize(("name", "data", "kind"), FORMATS.values(), ids=FORMATS)
def test_a_file_is_what_its_bytes_say(tmp_path: Path, name: str, data: bytes, kind: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    model = load(path)
    assert model.format == kind
    assert model.path == str(path)
    assert all(len(body) == len(body.heads.ops) for graph in model.graphs for body in graph.bodies)


@pytest.mark.parametrize(
    "name", [key for key, (_, _, kind) in FORMATS.items() if "text" not in kind]
)
def test_what_is_read_is_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model"
    path.write_bytes(FORMATS[name][1])
    assert graphs.joined(load(path).pieces()) == FORMATS[name][1]


FINGERPRINT = b"\x08\xad\xdf\x8d\xf4\x09\x10\x05" + wire.encoded(7, b"1000172")
NOTHING = "not a GraphDef, a MetaGraphDef or a SavedModel"
# What provoke.py does not give it.
NO_MODEL = {
    "white space": (b" \n\n", "text, but not that of a GraphDef, a MetaGraphDef or a SavedModel"),
    "an HTML page after blanks": (b"\n  <html>", "an HTML or XML page"),
    "an HTML page with a byte order mark": (b"\xef\xbb\xbf<html>", "an HTML or XML page"),
    "Latin 1": (b"node { name: \"\xe4\" }", "neither a protobuf nor UTF-8 text (byte 14)"),
    "zeros": (bytes(100), NOTHING),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", NOTHING),
    "the fingerprint of a SavedModel": (FINGERPRINT, "the fingerprint of a SavedModel"),
    "a schema version alone": (b"\x08\x01", NOTHING),
    "another protobuf": (b"\x0a\x05hello", NOTHING),
    "a text cut short": (b'node {\n  name: "a"\n', "not a GraphDef in text form"),
    "two GraphDefs in a MetaGraphDef": (
        raw(META) + wire.encoded(2, raw(SAMPLE)),
        "a MetaGraphDef holds 2 GraphDefs; it must hold one",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "reason"), NO_MODEL.values(), ids=NO_MODEL)
@pytest.mark.parametrize("name", ["model", "model.pb", "model.pbtxt"])
def test_what_is_no_model_is_refused(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ModelError) as raised:
        load(path)
    assert str(path) in str(raised.value)
    assert reason in str(raised.value)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"is a folder without saved_model.pb or saved_model.pbtxt"
    ):
        load(tmp_path)
    (tmp_path / "model.meta").touch()
    with pytest.raises(ModelError, match=r"saved_model.pbtxt; name a model in it: model.meta$"):
        load(tmp_path)
    (tmp_path / "saved_model.cpb").touch()
    with pytest.raises(ModelError, match="a SavedModel in chunks, cannot be read yet"):
        load(tmp_path)


def test_a_named_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, raw(SAMPLE))
    os.close(write)
    model = load(f"/dev/fd/{read}")
    os.close(read)
    assert model.format == "GraphDef"
    assert model.node_count == 11


def test_a_model_that_is_not_there_names_those_beside_it(tmp_path: Path) -> None:
    for name in ("pose.pb", "pose.html", "poses.meta"):
        (tmp_path / name).touch()
    (tmp_path / "posed").mkdir()
    with pytest.raises(ModelError, match=r"nearest: pose\.pb, (posed, poses\.meta|poses\.meta, p)"):
        load(tmp_path / "pose")
    with pytest.raises(ModelError, match=r"nearest: pose\.pb$"):
        load(tmp_path / "pos.pb")


# Files of others given as a model; tests/data/messages.md has what is said of each.


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
