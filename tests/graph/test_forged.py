"""Records that nobody of us wrote: said, and nothing is done by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphpatch import apply, load
from graphpatch.analysis.applied import missing_rules
from graphpatch.analysis.diff import diff
from graphpatch.analysis.revert import revert
from graphpatch.errors import GraphpatchError, ModelError
from graphpatch.protos import GraphDef, NodeDef
from graphpatch.rules import rules_from
from tests import graphs
from tests.graphs import node

RULES: list[dict[str, Any]] = [
    {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
]
MODEL = {"version": "0.3", "rules": [{"name": "a", "id": "b", "rule": {}}]}
RECORD = json.dumps({"rules": [0], "model": MODEL}).encode()


def raw(**changes: Any) -> bytes:
    """The Relu, or what a record says that it was."""
    made = NodeDef(name="y", op="Relu", input=["x"])
    for key, value in changes.items():
        if key == "inputs":
            made.input[:] = value
        elif key in ("name", "op", "device"):
            setattr(made, key, value)
        else:
            made.attr[key].s = value
    return made.SerializeToString(deterministic=True)


def told(**fields: Any) -> bytes:
    return json.dumps({"rules": [0], "model": {**MODEL, **fields}}).encode()


FORGED: dict[str, list[bytes]] = {
    "no JSON": [b"\xff\xfe", raw()],
    "no strings": [],
    "nested": [b"[" * 100_000, raw()],
    "deep": [b'{"rules":' * 50_000, raw()],
    "a number": [b'{"rules":[NaN]}', raw()],
    "a rule beyond all": [b'{"rules":[%d]}' % 10**30, raw()],
    "an unknown key": [b'{"more":1}', raw()],
    "no record of the model": [b'{"rules":[0]}', raw()],
    "a rule without a name": [told(rules=[{"id": "b", "rule": {}}]), raw()],
    "size": [told(size="\0"), raw()],
    "another hash": [told(hash="xxh3:0"), raw()],
    "fingerprint": [told(fingerprint="x"), raw()],
    "returns of no function": [told(returns={"f": {"y": "x"}}), raw()],
    "no NodeDef": [RECORD, b"\xff"],
    "an empty node": [RECORD, b"\x1a\x01x"],
    "several parts": [RECORD, raw(), raw()],
    "another op type": [RECORD, raw(op="ReadFile")],
    "another attr": [RECORD, raw(T=b"x")],
    "a file": [RECORD, raw(filename=b"/etc/passwd")],
    "an input that is not there": [RECORD, raw(inputs=["not there"])],
    "a control input first": [RECORD, raw(inputs=["^x", "x"])],
    "the name of another op": [RECORD, raw(name="x")],
    "an added op that is read": [RECORD],
}


def forged(tmp_path: Path, texts: list[bytes]) -> Path:
    relu = node("y", "Relu", "x")
    relu.attr["_graphpatch"].list.s.extend(texts)
    graph = graphs.graphdef(node("x", "Placeholder"), relu, node("z", "Relu", "y"))
    path = tmp_path / "forged.pb"
    path.write_bytes(graph.SerializeToString(deterministic=True))
    return path


SAID = {
    "another op type": "said to have been of op type ReadFile, which the function in its",
    "no strings": "one that graphpatch wrote: it is not a list of string",
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_record_is_a_message(tmp_path: Path, name: str) -> None:
    path = forged(tmp_path, FORGED[name])
    with pytest.raises(GraphpatchError, match=SAID.get(name)) as caught:
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


def test_records_of_older_versions_are_refused_in_one_line(tmp_path: Path) -> None:
    old = {"rule": "a", "id": "b", "did": "renamed", "was": "z"}
    path = forged(tmp_path, [json.dumps(old).encode()])
    with pytest.raises(ModelError, match=r"patched by graphpatch 0\.1 or 0\.2.*use that version"):
        load(path)


def test_an_op_that_reads_files_is_told_of_when_it_comes_back(tmp_path: Path) -> None:
    """Where the function in its place runs it, as a rule leaves it; the edit is made by hand."""
    graph = graphs.graphdef(node("x", "Placeholder", dtype="string"), node("y", "f", "x"))
    body = graphs.function("f", ["a"], [node("op", "ReadFile", "a")], {"b": "op:contents:0"})
    for arg in (*body.signature.input_arg, *body.signature.output_arg):
        arg.type = 7
    body.signature.description = "_graphpatch: carries a gradient"
    graph.library.function.append(body)
    graph.node[1].attr["_graphpatch"].list.s.extend([RECORD, raw(op="ReadFile")])
    path = tmp_path / "m.pb"
    path.write_bytes(graph.SerializeToString(deterministic=True))
    notes = revert(load(path)).report["notes"]
    assert any("ReadFile 'y' touches files" in note for note in notes)


def test_all_that_rules_write_is_read_again(model_file: Path, tmp_path: Path) -> None:
    rules = [
        *RULES,
        {"match": {"op": "Round"}, "patch": {"surrogate_gradient": "tanh(x)"}, "name": "r"},
    ]
    apply(rules, model_file).model.save(tmp_path / "out.pb")
    message = GraphDef.FromString((tmp_path / "out.pb").read_bytes())
    written = [one.attr["_graphpatch"].list.s for one in message.node if "_graphpatch" in one.attr]
    assert sum("model" in json.loads(texts[0]) for texts in written) == 1
    assert {len(texts) for texts in written} == {1, 2}
    revert(tmp_path / "out.pb").save(tmp_path / "back.pb")
    assert (tmp_path / "back.pb").read_bytes() == model_file.read_bytes()


def test_a_stop_that_no_rule_wrote() -> None:
    stopped = apply([{**RULES[0], "patch": {"stop_gradient": True}}], graphs.sample()).model
    data = graphs.joined(stopped.pieces()).replace(b'{"rules":[0],"for"', b'{"rules":[ ],"for"')
    notes = apply(RULES, GraphDef.FromString(data)).report["notes"]
    assert any("'(a rule whose record is gone)' stops what flows" in note for note in notes)
