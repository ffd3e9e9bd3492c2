"""`check`, `diff` and `ops` of patched files that something else changed since."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import graphpatch
from graphpatch.analysis.ops import count_model_ops
from graphpatch.protos import GraphDef
from tests.graphs import graphdef, node

RULE = {"name": "g", "match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
T = {"T": "float32"}


def sample() -> GraphDef:
    return graphdef(
        node("x", "Placeholder", dtype="float32"),
        node("relu", "Relu", "x", **T),
        node("y", "Mul", "relu", "x", **T),
    )


def without_keys(graph: GraphDef) -> None:
    for one in graph.node:
        one.attr.pop("_gradient_op_type", None)


def led_past(graph: GraphDef) -> None:
    reader = next(one for one in graph.node if one.name == "y")
    reader.input[0] = "relu/forward" if len(graph.node) > 3 else "x"


def made_elu(graph: GraphDef) -> None:
    next(one for one in graph.node if one.op == "Relu").op = "Elu"


def without_stops(graph: GraphDef) -> None:
    left = [one for one in graph.node if one.op != "StopGradient"]
    for one in left:
        one.input[:] = [text.replace("relu/stop", "relu/forward") for text in one.input]
    del graph.node[:]
    graph.node.extend(left)


def without_records(graph: GraphDef) -> None:
    for one in graph.node:
        one.attr.pop("_graphpatch", None)


def without_the_first_record(graph: GraphDef) -> None:
    next(one for one in graph.node if "_graphpatch" in one.attr).attr.pop("_graphpatch")


CHANGES: dict[str, tuple[str, Callable[[GraphDef], object], str]] = {
    "function: keys": ("function", without_keys, "'relu.*' differs: attr _gradient_op_type"),
    "function: library": ("function", lambda g: g.ClearField("library"), "function .* is gone"),
    "function: gradients": (
        "function", lambda g: g.library.ClearField("gradient"), "gradient function of .* is None",
    ),
    "function: readers": ("function", led_past, "'y' reads 'relu/forward'"),
    "function: elu": ("function", made_elu, "said to have been of op type Relu"),
    "function: stops": ("function", without_stops, "'relu.*' (differs|is gone)"),
    "function: first record": ("function", without_the_first_record, "record of its rules is gone"),
    "function: records": ("function", without_records, "has not been applied"),
    "attr: keys": ("attr", without_keys, "'relu' differs: attr _gradient_op_type"),
    "attr: elu": ("attr", made_elu, "said to have been of op type Relu"),
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
