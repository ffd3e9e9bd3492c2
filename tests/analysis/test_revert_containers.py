"""Revert in each container: what it gives back, what it says, what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from graphpatch import apply, diff, load
from graphpatch.analysis.revert import revert
from graphpatch.errors import ModelError, PatchError
from graphpatch.formats import Export, Model
from graphpatch.graph import provenance
from graphpatch.graph.graph import read_record
from graphpatch.graph.record import labels
from graphpatch.graph.wire import encoded, fields, piece_bytes, varint
from graphpatch.page.marks import marks_of_patched
from graphpatch.protos import GraphDef
from tests import graphs
from tests.graphs import node

Run = Callable[..., Any]
GUIDED = {"name": "guided", "match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
STOP = {"name": "stop", "match": {"op": "Round"}, "patch": {"stop_gradient": True}}
CLIP = {
    "name": "clip",
    "match": {"op": "Relu", "body": "main"},
    "patch": {"filter_gradient": {"clip": {"min": -1, "max": 1}}},
}


def files(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def raw(model: Any) -> bytes:
    return b"".join(map(piece_bytes, model.pieces()))


def test_a_meta_graph(tmp_path: Path) -> None:
    meta = tmp_path / "model.meta"
    meta.write_bytes(graphs.metagraph(graphs.sample()).SerializeToString(deterministic=True))
    apply([GUIDED, STOP], meta).model.save(tmp_path / "out.meta")
    revert(load(tmp_path / "out.meta")).model.save(tmp_path / "back.meta")
    assert (tmp_path / "back.meta").read_bytes() == meta.read_bytes()


def test_a_saved_model_with_its_fingerprint(tmp_path: Path) -> None:
    metas = (graphs.metagraph(graphs.sample(), tags) for tags in ("serve", "train"))
    folder = graphs.saved_model_folder(tmp_path / "saved", *metas)
    apply([GUIDED, STOP], folder).model.save(tmp_path / "out")
    assert "fingerprint.pb" not in files(tmp_path / "out")
    off = revert(load(tmp_path / "out"), "stop")
    off.model.save(tmp_path / "off")
    assert "fingerprint.pb" not in files(tmp_path / "off")
    for patched in ("out", "off"):
        revert(load(tmp_path / patched)).model.save(tmp_path / "back")
        assert files(tmp_path / "back") == files(folder)


@pytest.mark.parametrize("library", ["none", "empty", "function"])
def test_text_is_the_same_message(tmp_path: Path, library: str) -> None:
    sample = graphs.graphdef(node("x", "Placeholder"), node("relu", "Relu", "x"))
    if library == "function":
        sample = graphs.sample()
    elif library == "empty":
        sample.library.SetInParent()
    else:
        sample.ClearField("library")
    path, out, back = (tmp_path / f"{name}.pbtxt" for name in ("model", "out", "back"))
    path.write_text(text_format.MessageToString(sample))
    apply([GUIDED], path).model.save(out)
    found = revert(load(out))
    found.model.save(back)
    assert back.read_text() == path.read_text()
    assert "the text holds the same message" in found.report["notes"][0]


def odd(message: bytes) -> bytes:
    """The message with lengths a byte longer than they need to be, and values before keys."""
    out = b""
    for one in fields(message, 0, len(message)):
        value = message[one.value : one.end]
        if one.wire == 2 and len(value) < 100:
            tag = varint(one.number << 3 | 2)
            out += tag + bytes([len(value) | 0x80, 0]) + value
        else:
            out += message[one.start : one.end]
    return out


def test_what_is_encoded_as_nobody_would(tmp_path: Path) -> None:
    key, value = encoded(1, b"_gradient_op_type"), encoded(2, encoded(2, b"Elu"))
    relu = node("relu", "Relu", "x", _class=[b"loc:@x"]).SerializeToString(deterministic=True)
    twice = encoded(1, b"other") + relu + encoded(5, value + key) + encoded(5, key + value)
    nodes = [node("x", "Placeholder").SerializeToString(), odd(twice)]
    last = node("last", "Round", "relu").SerializeToString()
    data = odd(b"".join(encoded(1, one) for one in nodes)) + encoded(1, odd(last))
    path = tmp_path / "odd.pb"
    path.write_bytes(data)
    model = load(path)
    for rules in (
        [{"match": {"name": "relu"}, "patch": {"override_gradient": "default"}}],
        [{"match": {"name": "relu"}, "patch": {"override_gradient": "Relu6"}}],
        [{"match": {"name": "relu"}, "patch": {"stop_gradient": True}}],
        [{"match": {"name": "last"}, "patch": {"filter_gradient": "sign", "at": "inputs"}}],
    ):
        patched = apply(rules, model).model
        patched.save(tmp_path / "out.pb")
        assert raw(revert(load(tmp_path / "out.pb")).model) == data


def test_a_rule_that_others_build_on(model_file: Path) -> None:
    both = apply([CLIP, {**STOP, "match": {"name": "relu", "body": "main"}}], model_file)
    stop = {**STOP, "match": {"name": "relu", "body": "main"}}
    for name, rule in {"stop": CLIP, "clip": stop}.items():
        off = revert(both.model, name)
        assert (off.report["rules"], off.report["left"]) == ([name], [rule["name"]])
        assert raw(off.model) == raw(apply([rule], model_file).model)
        was = read_record(off.model.graphs[0])
        assert was is not None
        assert (was.size, len(was.rules)) == (model_file.stat().st_size, 1)
        assert raw(revert(off.model, rule["name"]).model) == model_file.read_bytes()


def test_what_others_built_on_a_rule_is_said(model_file: Path, tmp_path: Path) -> None:
    patched = GraphDef.FromString(raw(apply([GUIDED], model_file).model))
    patched.node.append(node("mine", "Identity", "relu/stop"))
    (tmp_path / "out.pb").write_bytes(patched.SerializeToString())
    with pytest.raises(ModelError, match=r"Identity 'mine' reads 'relu/stop', which a rule added"):
        revert(load(tmp_path / "out.pb"))


def test_a_file_that_something_else_wrote_since_is_refused(
    model_file: Path, tmp_path: Path
) -> None:
    patched = GraphDef.FromString(raw(apply([GUIDED], model_file).model))
    patched.node.add(name="more", op="NoOp")
    (tmp_path / "out.pb").write_bytes(patched.SerializeToString())
    with pytest.raises(ModelError, match="the original cannot be restored: the original had"):
        revert(load(tmp_path / "out.pb"))
    [note] = revert(load(tmp_path / "out.pb"), allow_changed=True).report["notes"]
    assert "this is not the original" in note


def test_a_record_without_a_checksum_is_reverted_unchecked(
    model_file: Path, tmp_path: Path
) -> None:
    patched = GraphDef.FromString(raw(apply([GUIDED], model_file).model))
    for texts in (
        one.attr["_graphpatch"].list.s for one in patched.node if "_graphpatch" in one.attr
    ):
        record = json.loads(texts[0])
        if "model" in record:
            del record["model"]["hash"]
            texts[0] = json.dumps(record).encode()
    (tmp_path / "out.pb").write_bytes(patched.SerializeToString())
    [note] = revert(load(tmp_path / "out.pb")).report["notes"]
    assert "whether it is the original cannot be checked" in note


def test_an_exported_graph_is_refused(tmp_path: Path) -> None:
    sample = graphs.graphdef(node("x", "Placeholder"), node("relu", "Relu", "x"))
    path = tmp_path / "model.pb"
    path.write_bytes(sample.SerializeToString())
    apply([GUIDED], path, export=Export(("x",), ("relu",))).model.save(tmp_path / "out")
    with pytest.raises(PatchError, match=r"holds only a part of the GraphDef"):
        revert(load(tmp_path / "out"))


def test_nothing_to_revert(model_file: Path) -> None:
    with pytest.raises(PatchError, match=r"no rule 'guide' was applied to it; nearest: guided"):
        revert(apply([GUIDED], model_file).model, "guide")


def test_the_command(
    run_cli: Run, rules_file: Callable[..., Path], model_file: Path, tmp_path: Path
) -> None:
    assert run_cli("apply", rules_file(GUIDED, STOP), model_file).code == 0
    patched, back = tmp_path / "model.patched.pb", tmp_path / "model.reverted.pb"
    done = run_cli("revert", patched, "--rule", "stop", "--dry-run", "--json")
    assert (done.code, done.stderr, back.exists()) == (0, "", False)
    assert (done.json["rules"], done.json["left"]) == (["stop"], ["guided"])
    done = run_cli("revert", patched)
    assert (done.code, done.stderr) == (0, "")
    assert back.read_bytes() == model_file.read_bytes()
    piped = run_cli("revert", "-", stdin=patched.read_bytes())
    assert (piped.code, piped.raw) == (0, model_file.read_bytes())


UNNAMED = [{key: rule[key] for key in ("match", "patch")} for rule in (GUIDED, CLIP)]


@pytest.fixture
def both() -> tuple[Model, Model]:
    """A model, and what two runs made of it, each with a rule without a name."""
    model = load(graphs.sample())
    return model, apply([UNNAMED[1]], apply([UNNAMED[0]], model).model).model


def rule_ids(model: Model) -> dict[str, str]:
    """The ids, by the patch."""
    rules = {one.id for one in model.graphs[0].library.rules}
    told = provenance.patches(model.graphs[0])
    return {next(iter(told[one])): one for one in rules}


def test_a_name_of_two_is_refused_with_what_tells_them_apart(both: tuple[Model, Model]) -> None:
    ids = rule_ids(both[1])
    with pytest.raises(PatchError) as caught:
        revert(both[1], "rule 1")
    said = str(caught.value)
    assert "'rule 1' is each of 2 rules; give the id:" in said
    assert re.search(rf"{ids['override_gradient']}  'rule 1': guided_relu at \S", said)
    assert re.search(rf"{ids['filter_gradient']}  'rule 1': filter_gradient clip\(", said)


@pytest.mark.parametrize("digits", [4, 16])
def test_an_id_takes_one_off(both: tuple[Model, Model], digits: int) -> None:
    model, patched = both
    found = revert(patched, rule_ids(patched)["filter_gradient"][:digits])
    label = f"rule 1 ({rule_ids(patched)['filter_gradient'][:8]})"
    assert found.report["rules"] == [label]
    assert raw(found.model) == raw(apply([UNNAMED[0]], model).model)
    assert raw(revert(found, "rule 1").model) == raw(model)
    found = revert(patched, rule_ids(patched)["override_gradient"])
    assert raw(found.model) == raw(apply([UNNAMED[1]], model).model)


def test_diff_and_page_show_both(both: tuple[Model, Model]) -> None:
    model, patched = both
    listed = sorted(f"rule 1 ({one[:8]})" for one in rule_ids(patched).values())
    found = [one for one in diff(model, patched).gradients if one["body"] == "main"]
    assert sorted({name for one in found for name in one["rules"]}) == listed
    assert all("guided_relu, then filter_gradient clip" in one["after"] for one in found)
    assert sorted(marks_of_patched(patched.graphs).written) == listed
    first = apply([UNNAMED[0]], model).model
    assert list(labels(first.graphs[0].library.rules).values()) == ["rule 1"]
    found = [one for one in diff(first, patched).gradients if one["body"] == "main"]
    clip = f"rule 1 ({rule_ids(patched)['filter_gradient'][:8]})"
    assert {tuple(one["rules"]) for one in found} == {(clip,)}
