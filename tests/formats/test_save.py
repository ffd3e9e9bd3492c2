"""Models in and out: what is kept, what is converted, what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.message import Message

from graphpatch import apply
from graphpatch.errors import GraphpatchError, OutputError
from graphpatch.fleet.work import content
from graphpatch.formats import default_output, load
from graphpatch.formats.output import regular_files
from graphpatch.graph import wire
from graphpatch.protos import MetaGraphDef
from graphpatch.runtime.graph_run import checkpoint
from tests import graphs
from tests.refusals import everything

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
        "m.pb", BINARY + wire.encoded(1, b"\x0a\x01z\x12\x04NoOp" + STRANGE), "out.pbtxt",
        "does not know, which text"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "data", "out", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(tmp_path: Path, name: str, data: bytes, out: str, reason: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(OutputError, match=reason):
        load(tmp_path / name).save(tmp_path / out)
    assert [one.name for one in tmp_path.iterdir()] == [name]


DEFAULTS = {
    **{"m.pb": "m.patched.pb", "m": "m.patched", "m.1.pb": "m.1.patched.pb"},
    **{"saved": "saved.patched", "saved/saved_model.pb": "saved.patched"},
    "v1.2": "v1.2.patched",  # a folder
}


@pytest.mark.parametrize(("name", "out"), DEFAULTS.items())
def test_where_the_patched_model_goes(tmp_path: Path, name: str, out: str) -> None:
    first = name.partition("/")[0]
    if first in ("saved", "v1.2"):
        graphs.saved_model_folder(tmp_path / first, META)
    else:
        (tmp_path / name).write_bytes(BINARY)
    model = load(tmp_path / name)
    assert default_output(model.path, bool(model.file)) == str(tmp_path / out)


def test_from_a_pipe_it_goes_to_a_pipe() -> None:
    assert default_output("-", is_folder=False) == "-"


# SavedModel folders: variables, assets and all else go with the graph.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return graphs.saved_model_folder(tmp_path / "saved", META, graphs.metagraph(SAMPLE, "train"))


@pytest.mark.parametrize("given", ["", "saved_model.pb", "."])
def test_a_folder_goes_to_a_folder(folder: Path, given: str) -> None:
    model = graphs.patched_model(folder / given)
    assert (model.format, model.file) == ("SavedModel", "saved_model.pb")
    assert [graph.around.tags for graph in model.graphs] == ["serve,gpu", "train"]
    before = everything(folder)
    model.save(folder.parent / "out")
    found = everything(folder.parent / "out")
    again = load(folder.parent / "out")
    for graph in again.graphs:
        assert graph.main.node("relu").attr("_a") == graphs.attr("x")
    found["saved_model.pb"] = before["saved_model.pb"]
    assert found == {name: data for name, data in before.items() if name != "fingerprint.pb"}
    assert everything(folder) == before
    assert sorted(one.name for one in folder.parent.iterdir()) == ["out", "saved"]


def test_a_text_saved_model_stays_text(folder: Path) -> None:
    text = f"saved_model_schema_version: 1\nmeta_graphs {{ {META} }}\n"
    (folder / "saved_model.pb").unlink()
    (folder / "saved_model.pbtxt").write_text(text)
    model = graphs.patched_model(folder)
    assert (model.format, model.file) == ("SavedModel as text", "saved_model.pbtxt")
    model.save(folder.parent / "out")
    found = everything(folder.parent / "out")
    assert found["saved_model.pbtxt"].startswith(b"saved_model_schema_version: 1\n")
    assert load(folder.parent / "out").graphs[0].main.node("relu").attr("_a") == graphs.attr("x")


@pytest.mark.parametrize("out", ["out.pb", "out.pbtxt", "out.meta", "saved/saved_model.pb"])
def test_a_folder_is_not_written_as_a_file(folder: Path, out: str) -> None:
    before = everything(folder)
    with pytest.raises(OutputError, match=r"is a folder|lies in a model's folder"):
        graphs.patched_model(folder).save(folder.parent / out)
    assert everything(folder) == before
    assert sorted(one.name for one in folder.parent.iterdir()) == ["saved"]


@pytest.mark.parametrize("given", [".", "saved_model.pb", "../saved", "assets/.."])
def test_where_a_folder_goes_that_is_named_from_within(
    folder: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    model = graphs.patched_model(given)
    out = default_output(model.path, is_folder=True)
    assert Path(out).resolve() == folder.parent / "saved.patched"
    model.save(out)
    assert load(out).graphs[0].main.node("relu").attr("_a") == graphs.attr("x")


# Links, pipes and devices in the folder of a SavedModel.


RULES = [{"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}]


@pytest.fixture
def saved(folder: Path, tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/one").write_bytes(b"secret")
    return folder


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("../secret", "leads out of the model's folder"),
        ("../../secret", "leads out of the model's folder"),
        ("/dev/zero", "leads out of the model's folder"),
        ("../../secrets", "leads out of the model's folder"),
        ("nothing", "which is not there"),
        ("..", "a link to a folder that holds it"),
        (".", "a link to a folder that holds it"),
    ],
)
def test_a_link_that_leads_out(saved: Path, tmp_path: Path, target: str, said: str) -> None:
    (saved / "assets/link").symlink_to(target)
    if target == "../secret":
        (saved / "secret").symlink_to(tmp_path / "secret")
    with pytest.raises(GraphpatchError, match=said):
        apply(RULES, saved).model.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for read in (content, lambda path: checkpoint(load(path))):  # before TensorFlow reads it
        with pytest.raises(GraphpatchError, match=said):
            read(saved)


def test_a_link_within_the_folder_is_a_file_of_it(saved: Path, tmp_path: Path) -> None:
    (saved / "assets/words").write_bytes(b"words")
    (saved / "assets/link").symlink_to("words")
    (saved / "more").symlink_to("assets")
    apply(RULES, saved).model.save(tmp_path / "out")
    for name in ("assets/link", "more/words", "more/link"):
        assert (tmp_path / "out" / name).read_bytes() == b"words"
        assert not (tmp_path / "out" / name).is_symlink()


def test_a_pipe_is_refused(saved: Path, tmp_path: Path) -> None:
    os.mkfifo(saved / "pipe")
    with pytest.raises(GraphpatchError, match="a pipe, a socket or a device"):
        apply(RULES, saved).model.save(tmp_path / "out")
    with pytest.raises(GraphpatchError, match="a pipe, a socket or a device"):
        list(regular_files(saved))


def test_a_fingerprint_that_is_a_link_is_not_taken_in(saved: Path, tmp_path: Path) -> None:
    (saved / "fingerprint.pb").unlink(missing_ok=True)
    (saved / "fingerprint.pb").symlink_to(tmp_path / "secret")
    with pytest.raises(GraphpatchError, match="leads out"):
        apply(RULES, saved).model.save(tmp_path / "out")
    raw = b"".join(map(bytes, (load(saved).source.data[:], b"")))
    assert b"secret".hex().encode() not in raw
