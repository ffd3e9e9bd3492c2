"""What users of such graphs ask for, one test each: their graph, and what graphpatch answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.doctor.survey import survey
from graphpatch.errors import MatchError
from tests import graphs
from tests.graphs import const, node
from tests.rule_dicts import rule

Run = Callable[..., Any]

X = node("x", "Placeholder")


def write(path: Path, *nodes: Any, functions: Any = ()) -> graphpatch.Model:
    path.write_bytes(graphs.graphdef(*nodes, functions=functions).SerializeToString())
    return graphpatch.load(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pb"


def asked(model: graphpatch.Model, source: str = "x", target: str = "y") -> Any:
    [seen] = survey(model, [source], [target])
    return seen


def finding(model: graphpatch.Model) -> tuple[str, str, str]:
    """The one finding: its kind, the op, and TensorFlow's words."""
    [found] = asked(model).diagnoses[0].findings
    return found.kind, found.node.name, found.consequence


def test_1_an_override_that_would_do_nothing_is_an_error(path: Path) -> None:
    model = write(path, X, node("y", "Relu", "x"))
    with pytest.raises(MatchError, match="nearest: Relu"):
        graphpatch.apply(
            [rule(match={"op": "ReLU"}, patch={"override_gradient": "guided_relu"})], model
        )
    model = write(path, X, node("y", "Relu", "x"), const("c"),
                  node("aside", "Relu", "c", _gradient_op_type="Relu6"))  # fmt: skip
    assert ("idle_override", ["Relu aside"]) in [(n.kind, n.ops) for n in asked(model).notes]


def test_2_a_model_that_is_already_built_is_overridden(path: Path) -> None:
    model = write(path, X, node("y", "Relu", "x"))
    patched = graphpatch.apply(
        [rule(match={"op": "Relu"}, patch={"override_gradient": "guided_relu"})], model
    )
    patched.model.save(path.with_name("patched.pb"))
    assert path.read_bytes() != path.with_name("patched.pb").read_bytes()


def test_3_no_gradient_defined_names_op_key_and_rule(path: Path) -> None:
    model = write(path, X, node("y", "Relu", "x", _gradient_op_type="GuidedRelu"))
    [found] = asked(model).diagnoses[0].findings
    assert "GuidedRelu" in found.what
    assert found.consequence.startswith(
        "LookupError: No gradient defined for operation 'y' (op type: Relu)"
    )
    assert [one["patch"] for one in found.rules] == [{"override_gradient": "default"}]


@pytest.mark.parametrize(
    ("nodes", "kind", "op"),
    [
        ([node("a", "Cast", "x", SrcT="float32", DstT="int32"),
          node("y", "Cast", "a", SrcT="int32", DstT="float32")], "cast", "a"),
        ([node("y", "Round", "x")], "step", "y"),
        ([node("y", "ArgMax", "x", "c"), const("c")], "argmax", "y"),
        ([node("y", "Greater", "x", "x")], "comparison", "y"),
        ([node("y", "StopGradient", "x")], "stop_gradient", "y"),
    ],
)  # fmt: skip
def test_4_a_gradient_that_is_none_names_what_blocks(
    path: Path, nodes: list[Any], kind: str, op: str
) -> None:
    assert finding(write(path, X, *nodes))[:2] == (kind, op)


def test_4_no_path_at_all_is_told_apart(path: Path) -> None:
    [found] = asked(write(path, X, const("c"), node("y", "Tanh", "c"))).diagnoses
    assert (found.verdict, found.connected) == ("none", False)


def test_5_a_lost_control_flow_context_is_named(path: Path) -> None:
    loop = [
        node("enter", "Enter", "x", frame_name="loop"),
        node("merge", "Merge", "enter", "next", N=2),
        node("less", "Less", "merge", "merge"),
        node("cond", "LoopCond", "less"),
        node("switch", "Switch", "merge", "cond"),
        node("next", "NextIteration", "switch:1"),
        node("y", "Exit", "switch"),
    ]
    kind, op, words = finding(write(path, X, *loop))
    assert (kind, op) == ("loop", "y")
    assert words == "AttributeError: 'NoneType' object has no attribute 'outer_context'"


def test_6_inputs_are_modified_by_emitting_a_new_graph(path: Path) -> None:
    model = write(path, X, node("a", "Exp", "x"), node("y", "Tanh", "a"))
    before = path.read_bytes()
    patch = {"stop_gradient": True, "at": "inputs"}
    target = path.with_name("patched.pb")
    graphpatch.apply([rule(match={"name": "y"}, patch=patch)], model).model.save(target)
    assert path.read_bytes() == before
    [found] = asked(graphpatch.load(target)).diagnoses
    assert [one.kind for one in found.findings] == ["our_rule"]


def test_7_the_report_says_what_the_consumer_needs(path: Path) -> None:
    model = write(path, X, node("y", "Relu", "x"))
    report = graphpatch.apply(
        [
            {
                **rule(match={"op": "Relu"}, patch={"override_gradient": "guided_relu"}),
                "emit": "attr",
            }
        ],
        model,
    ).report
    assert report["consumer"]["session"]
    assert report["consumer"]["tape"]


def test_8_activations_that_no_rule_covers_are_listed(path: Path) -> None:
    model = write(
        path,
        X,
        node("a", "Relu", "x"),
        node("b", "Relu6", "a"),
        node("c", "LeakyRelu", "b"),
        node("s", "Sigmoid", "c"),
        node("y", "Mul", "c", "s"),
    )
    patched = graphpatch.apply(
        [rule(match={"op": "Relu"}, patch={"override_gradient": "guided_relu"})], model
    )
    target = path.with_name("patched.pb")
    patched.model.save(target)
    told = {note.kind: list(note.ops) for note in asked(graphpatch.load(target)).notes}
    assert told["activations"] == ["Relu6 b", "LeakyRelu c"]
    assert told["activation_patterns"] == ["Mul y"]


def test_9_a_group_of_ops_gets_one_gradient(path: Path) -> None:
    model = write(path, X, node("s", "Sigmoid", "x"), node("y", "Mul", "x", "s"))
    patch = {"override_gradient": {"formula": "dy"}, "on": "match"}
    result = graphpatch.apply([rule(match={"pattern": "@swish"}, patch=patch)], model)
    matches = result.report["rules"][0]["matches"]
    assert [one["op"] for one in matches] == ["s", "y"]
    assert matches[-1]["captures"] == {"sigmoid": "s", "mul": "y"}
    assert result.report["rules"][0]["emit"] == "function"


def test_10_one_use_of_a_shared_tensor_is_stopped(path: Path) -> None:
    model = write(
        path, X, node("a", "Exp", "x"), node("b", "Tanh", "a"), node("y", "Add", "a", "b")
    )
    patch = {"stop_gradient": True, "at": "input:0"}
    patched = graphpatch.apply([rule(match={"name": "b"}, patch=patch)], model).model
    target = path.with_name("patched.pb")
    patched.save(target)
    assert asked(graphpatch.load(target)).diagnoses[0].verdict == "flows"
    assert asked(graphpatch.load(target), target="b").diagnoses[0].verdict == "none"


def test_11_ops_are_addressed_one_by_one(path: Path) -> None:
    model = write(path, X, node("a", "Relu", "x"), node("y", "Relu", "a"))
    result = graphpatch.apply(
        [rule(match={"name": "y"}, patch={"override_gradient": "guided_relu"})], model
    )
    [done] = result.report["rules"]
    assert [one["op"] for one in done["matches"]] == ["y"]


def test_12_signatures_assets_and_collections_are_kept(tmp_path: Path) -> None:
    meta = graphs.metagraph(graphs.sample(), "serve")
    folder = graphs.saved_model_folder(tmp_path / "saved", meta)
    target = tmp_path / "patched"
    patch = rule(match={"name": "relu", "body": "main"}, patch={"stop_gradient": True})
    graphpatch.apply([patch], folder).model.save(target)
    assert (target / "assets" / "words.txt").read_bytes() == b"one\ntwo\n"
    raw = (target / "saved_model.pb").read_bytes()
    assert all(text in raw for text in (b"losses", b"serve", b"words:0"))


def test_13_what_changed_in_a_gradient_is_said_in_words(run_cli: Run, path: Path) -> None:
    model = write(path, X, node("y", "Relu", "x"))
    named = {"name": "guided", **rule(match={"op": "Relu"}, patch={"override_gradient": "Relu6"})}
    target = path.with_name("patched.pb")
    graphpatch.apply([named], model).model.save(target)
    [before] = run_cli("ops", path, "y", "--json").json["ops"]
    [after] = run_cli("ops", target, "y", "--json").json["ops"]
    assert (before["gradient"], before["changed"]) == ({"state": "default"}, [])
    assert after["gradient"] == {"state": "overridden", "key": "Relu6"}
    assert [one["rule"] for one in after["changed"]] == ["guided"]
    assert json.dumps(after)
