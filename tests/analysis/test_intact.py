"""`check`, `diff` and `ops` of patched files that something else changed since."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import graphpatch
from graphpatch.analysis.ops import count_model_ops
from graphpatch.errors import PatchError
from graphpatch.protos import GraphDef, NodeDef
from tests.graphs import graphdef, node, saved, v1_loop

RULE = {"name": "g", "match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
T = {"T": "float32"}


def sample() -> GraphDef:
    return graphdef(
        node("x", "Placeholder", dtype="float32"),
        node("relu", "Relu", "x", **T),
        node("y", "Mul", "relu", "x", **T),
    )


def led_past(graph: GraphDef) -> None:
    reader = next(one for one in graph.node if one.name == "y")
    reader.input[0] = "relu/forward" if len(graph.node) > 3 else "x"


def without_stops(graph: GraphDef) -> None:
    left = [one for one in graph.node if one.op != "StopGradient"]
    for one in left:
        one.input[:] = [text.replace("relu/stop", "relu/forward") for text in one.input]
    del graph.node[:]
    graph.node.extend(left)


def without(key: str, most: int = 100) -> Callable[[GraphDef], object]:
    """Take an attr off the ops that have it, at most off so many."""
    return lambda graph: [n.attr.pop(key) for n in [n for n in graph.node if key in n.attr][:most]]


def made_elu(graph: GraphDef) -> None:
    next(one for one in graph.node if one.op == "Relu").op = "Elu"


CHANGES: dict[str, tuple[str, Callable[[GraphDef], object], str]] = {
    "function: keys": (
        "function", without("_gradient_op_type"), "'relu.*' differs: attr _gradient_op_type",
    ),
    "function: library": ("function", lambda g: g.ClearField("library"), "function .* is gone"),
    "function: gradients": (
        "function", lambda g: g.library.ClearField("gradient"), "gradient function of .* is None",
    ),
    "function: readers": ("function", led_past, "'y' reads 'relu/forward'"),
    "function: elu": ("function", made_elu, "said to have been of op type Relu"),
    "function: stops": ("function", without_stops, "'relu.*' (differs|is gone)"),
    "function: first record": (
        "function", without("_graphpatch", 1), "record of its rules is gone",
    ),
    "function: records": ("function", without("_graphpatch"), "has not been applied"),
    "attr: keys": (
        "attr", without("_gradient_op_type"), "'relu' differs: attr _gradient_op_type",
    ),
    "attr: readers": ("attr", led_past, "1 inputs read what rules patched, and now 0"),
}  # fmt: skip


@pytest.mark.parametrize(("emit", "change", "why"), CHANGES.values(), ids=CHANGES)
def test_what_is_gone_is_said(
    emit: str, change: Callable[[GraphDef], object], why: str, tmp_path: Path
) -> None:
    path, rules = tmp_path / "p.pb", [{**RULE, "emit": emit}]
    patched = graphpatch.apply(rules, sample())
    patched.save(path)
    assert graphpatch.check(rules, path).ok
    assert graphpatch.check(rules, patched).ok
    graph = GraphDef.FromString(path.read_bytes())
    change(graph)
    path.write_bytes(graph.SerializeToString())
    found = graphpatch.check(rules, path)
    assert not found.ok
    assert found.missing["g"].startswith(("is not in it as it was applied: ", "has not been"))
    assert re.search(why, found.error)
    assert "patch the original again" in found.error or "records" in why or "not been" in why
    counted = count_model_ops(graphpatch.load(path))
    assert not any("by rule" in by for counts in counted.patched.values() for by in counts)
    differ = graphpatch.diff(sample(), path)
    assert not differ.ok
    assert all(one["rules"] == [] for one in differ.gradients)
    if "not been applied" not in why:
        assert any("is not as its rules left it" in text for text in differ.other)
        note = graphpatch.diagnose(path).document()["graphs"][0]["notes"][0]
        assert note["says"].startswith("not as its rules left it: ")
        assert "patch the original again" in note["says"]


def test_what_leaves_the_rules_alone_is_no_damage() -> None:
    patched = graphpatch.apply([RULE], sample()).graph_def()
    graph = GraphDef.FromString(patched.SerializeToString())
    graph.node.add(name="other", op="NoOp")
    assert graphpatch.check([RULE], graph).ok
    [diagnosed] = graphpatch.diagnose(graph).document()["graphs"]
    assert "damaged" not in {note["kind"] for note in diagnosed["notes"]}
    (one,) = graphpatch.diff(sample(), graph).gradients
    assert one["rules"] == ["g"]


X = node("x", "Placeholder")
WITHOUT_CONTEXTS = {
    "a loop without its Exit": [X, *v1_loop("x", node("s", "Relu", "switch:1"), gives="s")[:-1]],
    "a Switch of both branches": [
        *(X, node("p", "Placeholder", dtype="bool"), node("switch", "Switch", "x", "p")),
        *(node("f", "Relu", "switch"), node("t", "Tanh", "switch:1")),
        node("m", "Merge", "f", "t", N=2),
    ],
}


@pytest.mark.parametrize("nodes", WITHOUT_CONTEXTS.values(), ids=WITHOUT_CONTEXTS)
def test_what_was_only_converted_is_its_own_original(nodes: list[NodeDef], tmp_path: Path) -> None:
    original, converted = saved(tmp_path, *nodes), tmp_path / "converted.meta"
    graphpatch.load(original).save(converted)
    assert graphpatch.load(converted).node_count > len(nodes)  # what contexts need was added
    [diagnosed] = graphpatch.diagnose(converted).document()["graphs"]
    assert "damaged" not in {note["kind"] for note in diagnosed["notes"]}
    differ = graphpatch.diff(original, converted)
    assert differ.other == ["container: GraphDef -> MetaGraphDef"]
    with pytest.raises(PatchError, match="no rule was applied to it: there is nothing to revert"):
        graphpatch.revert(converted)
    graphpatch.apply([RULE], converted).save(tmp_path / "after.meta")
    graphpatch.revert(tmp_path / "after.meta").save(tmp_path / "reverted.meta")
    assert (tmp_path / "reverted.meta").read_bytes() == converted.read_bytes()
    # Patched and converted in either order, it is what its rules make of the .pb.
    graphpatch.apply([RULE], original).save(tmp_path / "at_once.meta")
    for patched in (converted, tmp_path / "after.meta", tmp_path / "at_once.meta"):
        verified = graphpatch.verify(original, patched, run=False)
        assert verified.failures == []
        [graph] = verified.document()["graphs"]
        assert graph["structure"]["says"].endswith("the same bytes")
    graphpatch.revert(tmp_path / "at_once.meta").save(tmp_path / "reverted.pb")
    assert (tmp_path / "reverted.pb").read_bytes() == original.read_bytes()
