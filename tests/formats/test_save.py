"""Models in and out: what is kept, what is converted, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.message import Message

from graphpatch.errors import OutputError
from graphpatch.formats import default_output, load
from graphpatch.graph import wire
from graphpatch.protos import MetaGraphDef
from tests import graphs

SAMPLE = graphs.sample()
META = graphs.metagraph(SAMPLE, "serve", "gpu")
STRANGE = wire.encoded(77, b"?" * 40) + b"\x98\x06\x01"


def as_text(message: Message) -> bytes:
    return text_format.MessageToString(message).encode()


def read(data: bytes, like: Message) -> tuple[Message, bool]:
    """What was written without what `patched_model` did, which must be there; if it is text."""
    is_text = data[:1].isalpha()
    found = text_format.Parse(data.decode(), type(like)()) if is_text else like.FromString(data)
    graph = found.graph_def if isinstance(found, MetaGraphDef) else found
    [relu] = [node for node in graph.node if node.name == "relu"]
    assert relu.attr.pop("_a").s == b"x"
    assert relu.attr.pop("_graphpatch").list.s
    return found, is_text


BINARY, TEXT = SAMPLE.SerializeToString(deterministic=True), as_text(SAMPLE)
META_BINARY, META_TEXT = META.SerializeToString(deterministic=True), as_text(META)
BARE = MetaGraphDef(meta_info_def=MetaGraphDef.MetaInfoDef(), graph_def=SAMPLE)

# From which file to which, whether the result is text, and what must be in it.
CONVERSIONS: dict[str, tuple[str, bytes, str, bool, Message]] = {
    "a .pb": ("m.pb", BINARY, "out.pb", False, SAMPLE),
    "a .pbtxt": ("m.pbtxt", TEXT, "out.pbtxt", True, SAMPLE),
    "a .meta": ("m.meta", META_BINARY, "out.meta", False, META),
    "a text .meta": ("m.meta", META_TEXT, "out.meta", True, META),
    ".pb to .pbtxt": ("m.pb", BINARY, "out.pbtxt", True, SAMPLE),
    ".pbtxt to .pb": ("m.pbtxt", TEXT, "out.pb", False, SAMPLE),
    ".pb to .meta": ("m.pb", BINARY, "out.meta", False, BARE),
    ".pbtxt to .meta": ("m.pbtxt", TEXT, "out.meta", False, BARE),
    ".meta to .pbtxt": ("m.meta", META_BINARY, "out.pbtxt", True, META),
    "text to .meta": ("m.pbtxt", META_TEXT, "out.meta", False, META),
    # A file whose name says something else stays what it is under such a name.
    "a text .pb": ("m.pb", TEXT, "out.pb", True, SAMPLE),
    "a binary .pbtxt": ("m.pbtxt", BINARY, "out.pbtxt", False, SAMPLE),
    "a MetaGraphDef .pb": ("m.pb", META_BINARY, "out.pb", False, META),
    "a GraphDef .meta": ("m.meta", BINARY, "out.meta", False, SAMPLE),
}


@pytest.mark.parametrize("case", CONVERSIONS)
def test_a_model_is_written_as_its_name_says(tmp_path: Path, case: str) -> None:
    name, data, out, is_text, expected = CONVERSIONS[case]
    (tmp_path / name).write_bytes(data)
    graphs.patched_model(tmp_path / name).save(tmp_path / out)
    assert read((tmp_path / out).read_bytes(), expected) == (expected, is_text)
    assert (tmp_path / name).read_bytes() == data
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted({name, out})


SAVED = graphs.saved_model(META, META)


@pytest.mark.parametrize(
    "data", [STRANGE + BINARY + STRANGE, STRANGE + META_BINARY + STRANGE, SAVED + STRANGE]
)
def test_what_nobody_touched_is_the_same_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m").write_bytes(data)
    load(tmp_path / "m").save(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == data


@pytest.mark.parametrize("data", [META_BINARY, SAVED])
def test_around_a_patched_graph_all_bytes_stay(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m").write_bytes(STRANGE + data + STRANGE)
    graphs.patched_model(tmp_path / "m").save(tmp_path / "out")
    found = (tmp_path / "out").read_bytes()
    assert found.startswith(STRANGE)
    assert found.endswith(STRANGE)
    around = META_BINARY.replace(wire.encoded(2, BINARY), b"|").split(b"|")
    for part in around:
        assert found.count(part) == data.count(part) > 0


REFUSED = {
    "a MetaGraphDef as .pb": ("m.meta", META_BINARY, "out.pb", "collections of a MetaGraphDef"),
    "a text MetaGraphDef as .pb": ("m.pbtxt", META_TEXT, "out.pb", "collections of a MetaGraphDef"),
    "unknown fields as text": ("m.pb", BINARY + STRANGE, "out.pbtxt", "does not know, which text"),
    "unknown fields of a node": (
        "m.pb",
        BINARY + wire.encoded(1, graphs.node("z", "NoOp").SerializeToString() + STRANGE),
        "out.pbtxt",
        "does not know, which text",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "data", "out", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(tmp_path: Path, name: str, data: bytes, out: str, reason: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(OutputError, match=reason):
        load(tmp_path / name).save(tmp_path / out)
    assert [one.name for one in tmp_path.iterdir()] == [name]


DEFAULTS = {
    "m.pb": "m.patched.pb",
    "m": "m.patched",
    "m.1.pb": "m.1.patched.pb",
    "saved": "saved.patched",
    "saved/saved_model.pb": "saved.patched",
    "v1.2": "v1.2.patched",
}


@pytest.mark.parametrize(("name", "out"), DEFAULTS.items())
def test_where_the_patched_model_goes(tmp_path: Path, name: str, out: str) -> None:
    path = tmp_path / name
    if name.partition("/")[0] in ("saved", "v1.2"):
        graphs.saved_model_folder(tmp_path / name.partition("/")[0], META)
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(BINARY)
    model = load(path)
    assert default_output(model.path, bool(model.file)) == str(tmp_path / out)


def test_from_a_pipe_it_goes_to_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(BINARY)
    model = load(tmp_path / "m")
    model.path = "-"
    assert default_output(model.path, bool(model.file)) == "-"
