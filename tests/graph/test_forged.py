"""Provenance that nobody of us wrote: said, and nothing is done by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.compat.proto.graph_pb2 import GraphDef

from graphpatch import apply, load
from graphpatch.analysis.applied import missing_rules
from graphpatch.analysis.diff import diff
from graphpatch.analysis.revert import revert
from graphpatch.errors import GraphpatchError, ModelError
from graphpatch.graph import edits
from graphpatch.graph.nodedef import attr_entry
from graphpatch.rules import rules_from
from tests import graphs
from tests.graphs import node

BY = {"rule": "a", "id": "b"}
RULES: list[dict[str, Any]] = [
    {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
]
OTHER_ATTR = attr_entry("T", b"\x30\x03").hex()
READ_FILE = node("y", "ReadFile", "x").SerializeToString().hex()

FORGED = [
    b"\xff\xfe",
    b"",
    b"{}",
    b"[" * 100_000,
    b'{"did":' * 50_000,
    b'{"rule":"a","id":"b","did":NaN}',
    *(
        json.dumps(entry).encode()
        for entry in (
            {"did": "attr"},
            {**BY, "did": "x"},
            {**BY, "did": ["attr"]},
            {**BY, "rule": ["a"], "did": "added"},
            {**BY, "id": {}, "did": "added"},
            {**BY, "did": "added", "more": 1},
            {**BY, "did": "added", "for": 1},
            {**BY, "did": "renamed"},
            {**BY, "did": "renamed", "was": ""},
            {**BY, "did": "renamed", "was": "z", "raw": [[-1, ""]]},
            {**BY, "did": "renamed", "was": "z", "raw": [[0, "zz"]]},
            {**BY, "did": "renamed", "was": "z", "raw": [[0, "00"]]},
            {**BY, "did": "renamed", "was": "z", "raw": [[99, ""]]},
            {**BY, "did": "renamed", "was": "x"},
            {**BY, "did": "attr", "attr": "T", "was": "3001"},
            {**BY, "did": "attr", "attr": "_x", "was": "zz"},
            {**BY, "did": "attr", "attr": "_x", "was": 1},
            {**BY, "did": "attr", "attr": "_x", "was": None, "raw": [[0, "ff"]]},
            {**BY, "did": "attr", "attr": "_x", "was": None, "raw": [[0, OTHER_ATTR]]},
            {**BY, "did": "attr", "attr": "_x", "was": None, "raw": [[0, "1a0178"]]},
            {**BY, "did": "renamed", "was": "z", "raw": [[0, OTHER_ATTR]]},
            {**BY, "did": "input", "slot": 0, "was": "x", "raw": [[1, OTHER_ATTR]]},
            {**BY, "did": "input", "slot": 99, "was": "x"},
            {**BY, "did": "input", "slot": -1, "was": "x"},
            {**BY, "did": "input", "slot": 10**30, "was": "x"},
            {**BY, "did": "input", "slot": 0, "was": "not there"},
            {**BY, "did": "input", "slot": 0, "was": "x", "raw": [[0, "0a0179"]]},
            {**BY, "did": "enclosed", "was": "Relu"},
            {**BY, "did": "enclosed", "was": "ReadFile", "node": READ_FILE},
            {**BY, "did": "enclosed", "was": "Relu", "node": READ_FILE},
            {**BY, "did": "enclosed", "was": "Relu", "node": ""},
            {**BY, "did": "returned", "output": "y", "was": "x", "turn": "1"},
            {"did": "origin", "rules": [1]},
            {"did": "origin", "rules": {"b": 1}},
            {"did": "origin", "size": "\0"},
            {"did": "origin", "hash": 5},
            {"did": "origin", "contexts": {"while_context": "x"}},
            {"did": "origin", "fingerprint": "x"},
        )
    ),
]


def forged(tmp_path: Path, *texts: bytes) -> Path:
    relu = node("y", "Relu", "x")
    relu.attr["_graphpatch"].list.s.extend(texts)
    path = tmp_path / "forged.pb"
    graph = graphs.graphdef(node("x", "Placeholder"), relu)
    path.write_bytes(graph.SerializeToString(deterministic=True))
    return path


@pytest.mark.parametrize("text", FORGED, ids=[repr(text[:60]) for text in FORGED])
def test_a_forged_edit_is_a_message(tmp_path: Path, text: bytes) -> None:
    path = forged(tmp_path, text)
    with pytest.raises(GraphpatchError) as caught:
        revert(load(path)).model.save(tmp_path / "out.pb")
    assert not (tmp_path / "out.pb").exists()
    assert len(str(caught.value)) < 5_000
    for question in (
        lambda: apply(RULES, path),
        lambda: diff(load(path), load(path)),
        lambda: missing_rules(rules_from(RULES), load(path)),
    ):
        try:
            question()
        except GraphpatchError as error:
            assert len(str(error)) < 5_000  # noqa: PT017


def test_an_attr_of_another_kind_is_a_message(tmp_path: Path) -> None:
    relu = node("y", "Relu", "x", _graphpatch="text")
    path = tmp_path / "m.pb"
    path.write_bytes(graphs.graphdef(node("x", "Placeholder"), relu).SerializeToString())
    with pytest.raises(ModelError, match="one that graphpatch wrote: it is not a list of edit"):
        revert(load(path))


def test_an_op_that_reads_files_is_told_of_when_it_comes_back(tmp_path: Path) -> None:
    """Where the function in its place runs it, as a rule leaves it; the edit is made by hand."""
    graph = graphs.graphdef(node("x", "Placeholder", dtype="string"), node("y", "f", "x"))
    body = graphs.function("f", ["a"], [node("op", "ReadFile", "a")], {"b": "op:contents:0"})
    for arg in (*body.signature.input_arg, *body.signature.output_arg):
        arg.type = 7
    body.signature.description = "_graphpatch: carries a gradient"
    graph.library.function.append(body)
    entry = {**BY, "did": "enclosed", "was": "ReadFile", "node": READ_FILE}
    graph.node[1].attr["_graphpatch"].list.s.append(json.dumps(entry).encode())
    path = tmp_path / "m.pb"
    path.write_bytes(graph.SerializeToString(deterministic=True))
    notes = revert(load(path)).report["notes"]
    assert any("ReadFile 'y' touches files" in note for note in notes)


def test_all_that_rules_write_is_read_again(model_file: Path, tmp_path: Path) -> None:
    rules = [
        *RULES,
        {"match": {"op": "Round"}, "patch": {"surrogate_gradient": "tanh(x)"}, "name": "r"},
        {"match": {"op": "Relu", "body": "main"}, "patch": {"stop_gradient": True}, "name": "s"},
    ]
    apply([rules[2], rules[1], rules[0]][1:], model_file).model.save(tmp_path / "out.pb")
    texts = [
        text
        for one in GraphDef.FromString((tmp_path / "out.pb").read_bytes()).node
        for text in one.attr["_graphpatch"].list.s
    ]
    kinds = {type(edits.read_entry(text)) for text in texts}
    assert kinds >= {edits.Origin, edits.Renamed, edits.Added}
