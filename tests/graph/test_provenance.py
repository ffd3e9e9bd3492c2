from __future__ import annotations

import json
from typing import Any

import pytest

from graphpatch.errors import ModelError
from graphpatch.graph import edits, provenance
from graphpatch.graph.edit import Editor
from graphpatch.graph.edits import AttrSet, Author
from graphpatch.graph.heads import LARGE
from graphpatch.graph.provenance import PROVENANCE_ATTR, entries, touched
from tests import graphs
from tests.graphs import attr, const, node

AUTHOR = Author("clip", "0123456789abcdef")


def test_an_entry_is_one_json_object() -> None:
    assert json.loads(edits.write_entry(AttrSet(*AUTHOR, "T", None))) == {
        "rule": "clip", "id": "0123456789abcdef", "did": "attr", "attr": "T", "was": None,
    }  # fmt: skip


@pytest.mark.parametrize("size", [4, 2 * LARGE])
def test_edits_are_written_down_oldest_first(size: int) -> None:
    graph = graphs.opened(graphs.graphdef(const("c", size), node("d", "NoOp")))
    body = graph.main
    assert not list(touched(body))
    assert not entries(body.node("c"))
    for rule in ("one", "two"):
        Editor(graph, Author(rule, rule)).set_attr(body.node("c"), "_a", attr(rule))
    assert [entry.rule for entry in entries(body.node("c"))] == ["one", "two"]
    assert [entry.was for entry in provenance.edits_of(body.node("c"), AttrSet)] == [
        None,
        attr("one").SerializeToString().hex(),
    ]
    assert [found.name for found in touched(body)] == ["c"]


@pytest.mark.parametrize("size", [4, 2 * LARGE])
def test_what_was_written_down_is_read_from_the_file(size: int) -> None:
    graph = graphs.opened(graphs.graphdef(const("c", size), node("d", "NoOp")))
    Editor(graph, AUTHOR).set_attr(graph.main.node("c"), "_a", attr("x"))
    again = graphs.opened(graphs.written(graph))
    assert [found.name for found in touched(again.main)] == ["c"]
    assert entries(again.main.node("c")) == entries(graph.main.node("c"))
    assert [entry.did for entry in entries(again.main.node("c"))] == ["attr"]


def test_the_attr_starts_with_an_underscore_as_tensorflow_ignores_those() -> None:
    assert PROVENANCE_ATTR.startswith("_")


@pytest.mark.parametrize(
    "value", [[b"no JSON"], [b"[]"], [b"{}"], [b'{"id": 1}'], [b'"text"'], b"no list", 3]
)
def test_what_is_no_provenance_of_ours_is_said(value: object) -> None:
    attrs: dict[str, Any] = {PROVENANCE_ATTR: value}
    body = graphs.main(node("a", "NoOp", **attrs))
    with pytest.raises(ModelError, match=r"NoOp 'a': its attr _graphpatch is not one that graphp"):
        entries(body.node("a"))


def test_a_list_without_edits_is_no_provenance() -> None:
    attrs: dict[str, Any] = {PROVENANCE_ATTR: []}
    assert not provenance.entries(graphs.main(node("a", "NoOp", **attrs)).node("a"))


RAW = ((0, "0a"),)

EDITS = [
    edits.Added("r", "i"),
    edits.Added("r", "i", clone_of="a", patched="b", copies=("s",)),
    edits.Added("r", "i", patched="b", reads=("x:0",)),
    edits.Renamed("r", "i", was="a", raw=RAW, shadowed=True),
    edits.Enclosed("r", "i", was="Relu", node="0a"),
    edits.Shadowed("r", "i"),
    edits.AttrSet("r", "i", attr="_a", was=None),
    edits.InputSet("r", "i", slot=1, was="a:1", raw=RAW),
    edits.Returned("r", "i", output="y", was="a:y:0", turn=2),
]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_read_as_it_was_written(edit: edits.Edit) -> None:
    text = edits.write_entry(edit)
    assert text.startswith(b'{"rule":"r","id":"i","did":"%b"' % edit.did.encode())
    assert edits.read_entry(text) == edit


def test_what_an_edit_need_not_tell_is_not_written() -> None:
    nothing = [text for text in AUTHOR if not text]
    edit = edits.Added("r", "i", "".join(nothing), "".join(nothing), tuple(nothing), tuple(nothing))
    assert edits.write_entry(edit) == b'{"rule":"r","id":"i","did":"added"}'
    text = b'{"rule":"r","id":"i","did":"shadowed","shadowed":true}'  # as 0.1.0 wrote it
    assert edits.write_entry(edits.Shadowed("r", "i")) == text


def test_edits_of_a_kind_are_selected_by_their_class() -> None:
    graph = graphs.opened(graphs.graphdef(const("c", 4), node("d", "Neg", "c")))
    editor, d = Editor(graph, AUTHOR), graph.main.node("d")
    editor.set_attr(d, "_a", attr("x"))
    editor.set_input(d, 0, "c:0")
    assert [edit.slot for edit in provenance.edits_of(d, edits.InputSet)] == [0]
    assert [edit.did for edit in provenance.edits_of(d, edits.Edit)] == ["attr", "input"]


def test_what_the_model_was_is_told_last() -> None:
    found = edits.Origin(container="GraphDef", size=3, hash="xxh3:", rules={"i": {"a": 1.5}})
    assert edits.write_entry(found) == (
        b'{"container":"GraphDef","size":3,"hash":"xxh3:","rules":{"i":{"a":1.5}},"did":"origin"}'
    )
    assert edits.read_entry(edits.write_entry(found)) == found


def test_an_edit_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        EDITS[0].rule = "other"  # type: ignore[misc]
