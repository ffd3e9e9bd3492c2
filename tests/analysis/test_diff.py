"""Diff: each kind of difference, gradients in words, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from graphpatch import apply, load
from graphpatch.analysis.diff import CHANGES, Diff, diff
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body
from graphpatch.graph.wire import LARGE
from graphpatch.protos import GraphDef
from tests import graphs
from tests.graphs import const, in_memory, node

Run = Callable[..., Any]
GUIDED = {"name": "guided", "match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}


def kinds(found: Diff) -> set[str]:
    return {kind for kind in CHANGES if getattr(found, kind)}


def test_a_model_is_equal_to_itself_and_to_its_text(model_file: Path, tmp_path: Path) -> None:
    text = tmp_path / "model.pbtxt"
    text.write_text(text_format.MessageToString(graphs.sample()))
    for other in (model_file, text):
        found = diff(load(model_file), load(other))
        assert (found.ok, kinds(found)) == (True, set())


def test_a_patched_model_tells_its_gradients_in_words(model_file: Path) -> None:
    original = load(model_file)
    stop = {"name": "stop", "match": {"op": "Round"}, "patch": {"stop_gradient": True}}
    patched = apply([GUIDED, stop], original).model
    found = diff(original, patched)
    assert [(g["body"], g["op"], g["type"], g["before"], g["after"], g["rules"])
            for g in found.gradients] == [
        ("main", "relu", "Relu", "default", "guided_relu", ["guided"]),
        ("main", "round", "Round", "default", "stop_gradient", ["stop"]),
        ("f", "relu", "Relu", "default", "guided_relu", ["guided"]),
    ]  # fmt: skip
    assert repr(found).startswith("<Diff: model.pb without rules -> with 2 rules; ")
    assert {(one["op"], one["to"]) for one in found.renamed} >= {("relu", "relu/forward")}
    back = diff(patched, original).gradients[0]
    assert (back["before"], back["after"], back["rules"]) == ("guided_relu", "default", ["guided"])
    assert diff(patched, patched).ok


def test_an_override_of_nobody_we_know() -> None:
    def relu(**attrs: Any) -> GraphDef:
        return graphs.graphdef(node("x", "Placeholder"), node("relu", "Relu", "x", **attrs))

    found = diff(in_memory(relu()), in_memory(relu(_gradient_op_type=b"Mine")))
    [gradient] = found.gradients
    assert (gradient["before"], gradient["after"]) == ("default", "key Mine")


@pytest.mark.parametrize("size", [8, 3 * LARGE])
def test_weights_are_compared_by_content(size: int) -> None:
    one = graphs.graphdef(const("w", size))
    changed = graphs.graphdef(const("w", size))
    raw = bytearray(changed.node[0].attr["value"].tensor.tensor_content)
    raw[7] ^= 0x40
    changed.node[0].attr["value"].tensor.tensor_content = bytes(raw)
    [found] = diff(in_memory(one), in_memory(changed)).changed
    assert found["changes"][0].startswith(f"value: 1 of {size // 4} elements, by up to ")
    spelled = graphs.graphdef(const("w", size))
    tensor = spelled.node[0].attr["value"].tensor
    tensor.float_val.append(2.3694278e-38)  # 0x01010101
    tensor.tensor_content = b""
    assert diff(in_memory(one), in_memory(spelled)).ok


def test_ops_that_come_go_and_change() -> None:
    one = graphs.graphdef(node("x", "Placeholder"), node("a", "Relu", "x"), node("b", "Neg", "a"))
    other = graphs.graphdef(
        node("x", "Placeholder"), node("a", "Relu6", "x"), node("c", "Neg", "a"), node("d", "NoOp")
    )
    found = diff(in_memory(one), in_memory(other))
    assert kinds(found) == {"added", "removed", "changed"}
    assert [one["op"] for one in found.added] == ["c", "d"]
    assert [one["op"] for one in found.removed] == ["b"]
    assert found.changed[0]["changes"] == ["op type: Relu -> Relu6"]


def test_what_lies_around(tmp_path: Path, model_file: Path) -> None:
    meta = graphs.metagraph(graphs.sample())
    path, other = tmp_path / "a.meta", tmp_path / "b.meta"
    path.write_bytes(meta.SerializeToString())
    meta.signature_def["serve"].outputs["y"].name = "relu:0"
    other.write_bytes(meta.SerializeToString())
    assert diff(load(path), load(other)).other == ["signature_def 'serve'"]
    assert diff(load(model_file), load(path)).other == ["container: GraphDef -> MetaGraphDef"]


def test_the_command(run_cli: Run, rules_file: Callable[..., Path], model_file: Path) -> None:
    assert run_cli("apply", rules_file(GUIDED), model_file).code == 0
    patched = model_file.with_name("model.patched.pb")
    done = run_cli("diff", model_file, patched)
    assert (done.code, done.stderr) == (1, "")
    assert done.stdout.splitlines()[1] == "  Relu 'relu': default -> guided_relu, by rule 'guided'"
    assert run_cli("diff", model_file, model_file).stdout == "no difference\n"
    assert run_cli("diff", model_file, patched, "--json").json["equal"] is False


def test_ops_tells_what_each_rule_did(run_cli: Run, model_file: Path) -> None:
    match = {"op": "Relu", "body": "main"}
    named = {**GUIDED, "match": match, "patch": {"override_gradient": "Relu6"}}
    apply([named], model_file).save(model_file.with_name("out.pb"))
    [before], [after] = (
        [op for op in run_cli("ops", path, "relu", "--json").json["ops"] if op["body"] == "main"]
        for path in (model_file, model_file.with_name("out.pb"))
    )
    assert (before["gradient"], before["changed"]) == ({"state": "default"}, [])
    assert after["gradient"] == {"state": "overridden", "key": "Relu6"}
    assert after["changed"] == [{"rule": "guided", "did": "attr"}]


def listings(count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the bodies, and what rules touched, are listed for so many patched ops."""
    x, relu, listed = node("x", "Placeholder"), [node("r", "Relu", "a")], list[Any]()
    ret = {"b": "r:activations:0"}
    bodies = [graphs.function(f"f{at}", ["a"], relu, ret) for at in range(count)]
    calls, relus = ([node(f"r{at}", op, "x") for at in range(count)] for op in ("", "Relu"))
    for at, call in enumerate(calls):
        call.op = f"f{at}"
    original = load(graphs.graphdef(x, *calls, functions=bodies))
    patched = apply([GUIDED], original).model
    relus = load(graphs.graphdef(x, *relus))
    guided = apply([GUIDED], relus).model
    bodies_of, signed = vars(Graph)["bodies"].fget, Body.signed
    with monkeypatch.context() as patch:
        patch.setattr(Graph, "bodies", property(lambda one: listed.append(one) or bodies_of(one)))
        assert len(diff(original, patched).gradients) == count
        patch.setattr(Body, "signed", lambda one: listed.append(one) or signed(one))
        assert len(diff(guided, relus).gradients) == count
    return len(listed)


def test_a_body_is_not_searched_for_each_op(monkeypatch: pytest.MonkeyPatch) -> None:
    assert listings(10, monkeypatch) == listings(40, monkeypatch)
