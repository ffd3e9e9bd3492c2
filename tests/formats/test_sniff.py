"""What a file is, its bytes tell, not its name."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from provoking import files

from graphpatch.errors import ModelError, OutputError
from graphpatch.formats import load, text
from graphpatch.formats.foreign import foreign_file, is_text
from graphpatch.formats.model import GRAPH, META, SAVED, Container
from graphpatch.graph import wire
from graphpatch.protos import GraphDef, MetaGraphDef
from tests import graphs
from tests.graphs import const, graphdef, node

SAMPLE = graphs.sample()
WHOLE = graphs.metagraph(SAMPLE, "serve")
STRANGE = wire.encoded(77, b"?" * 40) + b"\x98\x06\x01"
LIBRARY = graphdef(functions=SAMPLE.library.function)
ODD = graphs.function("^f é:0", [], [], {})
SAVED_AS_TEXT = f"saved_model_schema_version: 1 meta_graphs {{ {WHOLE} }}"


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
    "a node of many fields":
        ("m.pb", wire.encoded(1, STRANGE * 20 + raw(node("a", "NoOp"))), "GraphDef"),
    "a function called as an op type of any name":
        ("m.pb", raw(graphdef(node("a", "^f é:0"), functions=[ODD])), "GraphDef"),
    "a name longer than what is looked at":
        ("m.pb", raw(graphdef(node("x" * 5_000, "NoOp"))), "GraphDef"),
    # Not taken for what other files begin with.
    **{f"a name as {name!r}": ("m.pb", raw(graphdef(node(name, "NoOp"))), "GraphDef")
       for name in ("TFL3", "BZh", "config.json", "7z", "PK\x03\x04", "ustar" * 99)},
    "a text .pb": ("m.pb", as_text(SAMPLE), "GraphDef as text"),
    "a text of versions": ("m.pbtxt", as_text(graphdef()), "GraphDef as text"),
    "a text with a comment":
        ("m.pbtxt", as_text(SAMPLE, "# node: of a kind\n\n  # another\n"), "GraphDef as text"),
    "a MetaGraphDef": ("m.meta", raw(WHOLE), "MetaGraphDef"),
    "without a meta_info_def": ("m.meta", wire.encoded(2, raw(SAMPLE)) + STRANGE, "MetaGraphDef"),
    "a text MetaGraphDef": ("m.meta", as_text(WHOLE), "MetaGraphDef as text"),
    "a SavedModel": ("m.pb", graphs.saved_model(WHOLE) + STRANGE, "SavedModel"),
    "without a schema version": ("m.pb", graphs.saved_model(WHOLE)[2:], "SavedModel"),
    "a text SavedModel": ("m.pbtxt", SAVED_AS_TEXT.encode(), "SavedModel as text"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "data", "kind"), FORMATS.values(), ids=FORMATS)
def test_a_file_is_what_its_bytes_say(tmp_path: Path, name: str, data: bytes, kind: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    model = load(path)
    assert model.format == kind
    assert model.path == str(path)
    assert all(len(body) == len(body.heads.ops) for graph in model.graphs for body in graph.bodies)
    if "text" not in kind:  # what is read is written
        model.save(tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == data


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
        raw(WHOLE) + wire.encoded(2, raw(SAMPLE)),
        "a MetaGraphDef holds 2 GraphDefs; it must hold one",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "reason"), NO_MODEL.values(), ids=NO_MODEL)
@pytest.mark.parametrize("name", ["model", "model.pb", "model.pbtxt"])
def test_what_is_no_model_is_refused(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ModelError) as raised:
        load(tmp_path / name)
    assert str(tmp_path / name) in str(raised.value)
    assert reason in str(raised.value)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"a folder without saved_model.pb or saved_model.pbtxt"):
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


def test_the_head_of_a_graph_is_nobodys() -> None:
    model = GraphDef(node=[node("TFL3", "NoOp")]).SerializeToString()
    assert model[4:8] == b"TFL3"
    assert foreign_file("model.pb", model) == ""


# The text form.


@pytest.mark.parametrize("head", [b"node {", b"# \xc3\xa4\r\n\tnode", b"", b" \n"])
def test_text(head: bytes) -> None:
    assert is_text(head)
    assert not any(map(is_text, (SAMPLE.SerializeToString(), b"\x00", b"node\x01", b"\x1b[0m")))


def test_it_is_always_the_same_bytes() -> None:
    """Maps come in the order of their keys, whatever the order in the text."""
    one = b'node { name: "n" attr { key: "a" value { i: 1 } } attr { key: "b" value { i: 2 } } }'
    other = b'node { name: "n" attr { key: "b" value { i: 2 } } attr { key: "a" value { i: 1 } } }'
    assert text.parse_text(one) == text.parse_text(other)


@given(st.floats(width=32), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=50))
def test_values_come_through_unchanged(number: float, integer: int, raw: bytes) -> None:
    message = graphdef(node("n", "NoOp", f=number, i=integer, s=raw))
    tensor = message.node[0].attr["value"].tensor
    tensor.float_val.append(number)
    tensor.double_val.append(number / 3)
    tensor.tensor_content = raw
    found = text.unparse([message.SerializeToString()], GRAPH)
    again = GraphDef.FromString(text.parse_text(found)[0])
    if math.isnan(number):
        assert math.isnan(again.node[0].attr["f"].f)
    else:
        assert again == message


def test_fields_that_older_tensorflows_do_not_know_are_found() -> None:
    graph = graphdef(node("n", "NoOp", i=1))
    assert text.newer_fields(text.unparse([graph.SerializeToString()], GRAPH)) == []
    function = graph.library.function.add()
    function.node_def.add(name="debug_info {", op="NoOp").experimental_type.type_id = 1
    function.arg_attr[0].attr["a"].i = 1
    graph.library.registered_gradients.add(gradient_func="f")
    newer = ["experimental_type", "registered_gradients"]
    for message, container in ((graph, GRAPH), (MetaGraphDef(graph_def=graph), META)):
        written = text.unparse([message.SerializeToString()], container)
        assert text.newer_fields(written) == newer


@pytest.mark.parametrize("kind", [GRAPH, META, SAVED])
def test_every_message_comes_through(kind: Container) -> None:
    """An Any in it unread."""
    meta = graphs.metagraph(SAMPLE, "serve")
    every = {GRAPH: SAMPLE.SerializeToString(), META: meta.SerializeToString()}
    raw = {**every, SAVED: graphs.saved_model(meta, graphs.metagraph(SAMPLE, "b"))}[kind]
    found = text.unparse([raw], kind)
    data, container = text.parse_text(found)
    assert container is kind
    assert text.unparse([data], kind) == found
    if kind is SAVED:
        assert found.startswith(b"saved_model_schema_version: 1\nmeta_graphs {\n")
    else:
        like = SAMPLE if kind is GRAPH else meta
        assert type(like).FromString(data) == like


ERRORS = {
    "an unknown field": (b'node {\n  nmae: "a"\n}', "line 2, column 3: .* has no field nmae"),
    "no closing brace": (b'node {\n  name: "a"\n', "(line 2, column 9|line 3, column 1):"),
    "a number for a text": (b"node { name: 3 }", "line 1, column 14:"),
    "a text for a number": (b'version: "x"', "line 1, column 10:"),
    "another message": (b'layer { name: "a" }', "text, but not that of a GraphDef"),
}


@pytest.mark.parametrize(("data", "reason"), ERRORS.values(), ids=ERRORS)
def test_errors_say_line_and_column(data: bytes, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        text.parse_text(data)


@pytest.mark.parametrize("where", ["nowhere", "graph", "node", "attr"])
def test_what_text_cannot_hold_is_refused(where: str) -> None:
    strange = wire.encoded(77, b"?")
    nodedef = wire.encoded(1, b"a") + wire.encoded(2, b"NoOp")
    value = wire.encoded(1, b"T") + wire.encoded(2, b"\x30\x01" + strange * (where == "attr"))
    nodedef += wire.encoded(5, value) + strange * (where == "node")
    raw = wire.encoded(1, nodedef) + strange * (where == "graph")
    if where == "nowhere":
        assert text.unparse([raw], GRAPH).startswith(b'node {\n  name: "a"\n')
        return
    with pytest.raises(OutputError, match="the GraphDef holds fields that graphpatch does not"):
        text.unparse([raw], GRAPH)


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(ModelError, match="should be a GraphDef"):
        text.unparse([wire.encoded(1, b"\x0a\x02\xff\xff")], GRAPH)
