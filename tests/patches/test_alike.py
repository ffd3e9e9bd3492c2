"""Ops of one form, patched by a template: the same bytes as when each is patched by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tensorboard.compat.proto import graph_pb2, types_pb2

import graphpatch
from graphpatch.graph.body import Body
from graphpatch.graph.edit import Editor
from graphpatch.graph.template import TemplateEdit, fill
from graphpatch.graph.wire import piece_bytes
from graphpatch.patches import alike

LAYERS = 12

PATCHES: dict[str, dict[str, Any]] = {
    "function": {"override_gradient": "guided_relu"},
    "attr": {"override_gradient": "guided_relu"},
    "construction": {"override_gradient": {"scale": 0.5}},
    "registered": {"override_gradient": {"registered": "Mine"}},
    "zero": {"override_gradient": "zero"},
    "stop": {"stop_gradient": True},
    "reverse": {"filter_gradient": "reverse"},
    "clip": {"filter_gradient": {"clip": {"min": -1.0, "max": 1.0}}},
}


def relu(graph: Any, name: str, text: str, **attrs: Any) -> Any:
    made = graph.node.add(name=name, op="Relu", input=[text])
    made.attr["T"].type = types_pb2.DT_FLOAT
    for key, value in attrs.items():
        made.attr[key].CopyFrom(value)
    return made


def chain(*, shapes: bool = False, colocated: bool = False) -> Any:
    """Relus one behind the other, named so that their names have three lengths."""
    graph = graph_pb2.GraphDef()
    graph.node.add(name="in", op="Placeholder").attr["dtype"].type = types_pb2.DT_FLOAT
    last = "in"
    for place in range(LAYERS):
        made = relu(graph, f"layer_{10 ** (place % 3) + place}/relu", last)
        last = made.name
        if shapes:
            shape = made.attr["_output_shapes"].list.shape.add()
            shape.dim.add(size=-1)
            shape.dim.add(size=7 * place)
        if colocated:
            made.attr["_class"].list.s.append(f"loc:@{last}".encode())
    return graph


def output(graph: Any, patch: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    emit = "attr" if patch is PATCHES["attr"] else "auto"
    rule = {"match": {"op": ["Relu", "AddN"]}, "patch": patch, "emit": emit}
    found = graphpatch.apply([rule], graph)
    return b"".join(map(piece_bytes, found.model.pieces())), found.report


def both(graph: Any, patch: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """Patch with templates and without, which is to be the same; how many templates filled."""
    filled: list[int] = []

    def counted(editor: Editor, body: Body, edits: Sequence[TemplateEdit]) -> bool:
        done = fill(editor, body, edits)
        filled.append(len(edits) if done else 0)
        return done

    with monkeypatch.context() as patched:
        patched.setattr(alike, "fill", counted)
        by_template = output(graph, patch)
        patched.setattr(alike, "fill", lambda *args: False)
        assert by_template == output(graph, patch)
    reverted = graphpatch.revert(graph_pb2.GraphDef.FromString(by_template[0])).model
    assert graph_pb2.GraphDef.FromString(b"".join(map(piece_bytes, reverted.pieces()))) == graph
    return sum(filled)


@pytest.mark.parametrize("shapes", [False, True])
@pytest.mark.parametrize("colocated", [False, True])
@pytest.mark.parametrize("patch", PATCHES)
def test_the_same_bytes(
    patch: str, shapes: bool, colocated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = chain(shapes=shapes, colocated=colocated)
    assert both(graph, PATCHES[patch], monkeypatch) == LAYERS


@pytest.mark.parametrize(
    "name",
    ["layer/relu%(0)s", "a\\b", "r", "réseau/relu", "\u07ca/relu", "layer/relu/stop", "100%"],
)
@pytest.mark.parametrize("patch", PATCHES)
def test_odd_names(patch: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain()
    relu(graph, name, graph.node[-1].name)
    relu(graph, "after", name)
    both(graph, PATCHES[patch], monkeypatch)


@pytest.mark.parametrize("patch", PATCHES)
def test_names_that_are_taken(patch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain()
    for suffix in ("forward", "stop", "guard", "true"):
        relu(graph, f"{graph.node[2].name}/{suffix}", "in:0")
    relu(graph, "waits", "in").input.append(f"^{graph.node[2].name}")
    both(graph, PATCHES[patch], monkeypatch)


@pytest.mark.parametrize("patch", ["registered", "stop", "reverse"])
def test_ops_with_more_inputs_than_there_are_stand_ins(
    patch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = chain()
    for count in (2, 22, 23, 24, 25, 26, 27, 40, 70):
        for place in range(count):
            relu(graph, f"read_{count}_{place}", "in")
        for place in range(2):
            made = graph.node.add(name=f"sum_{count}_{place}", op="AddN")
            made.input.extend(f"read_{count}_{one}" for one in range(count))
            made.attr["N"].i = count
            made.attr["T"].type = types_pb2.DT_FLOAT
    both(graph, PATCHES[patch], monkeypatch)


def test_a_name_that_a_patch_takes_from_the_next_op(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_pb2.GraphDef()
    graph.node.add(name="in", op="Placeholder").attr["dtype"].type = types_pb2.DT_FLOAT
    for name in ("a/relu", "b/relu", "a/relu/forward", "a/relu/forward/forward"):
        relu(graph, name, "in")
    relu(graph, "twice", "a/relu").input.append("^a/relu")
    assert both(graph, PATCHES["function"], monkeypatch) == 3


def test_a_later_rule_edits_what_was_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain()
    rules = [
        {"match": {"op": "Relu"}, "patch": {"override_gradient": {"scale": 0.5}}},
        {"match": {"name": "layer_1*/relu"}, "patch": {"stop_gradient": True}},
    ]
    by_template = graphpatch.apply(rules, graph)
    monkeypatch.setattr(alike, "fill", lambda *args: False)
    alone = graphpatch.apply(rules, graph)
    assert by_template.graph_def() == alone.graph_def()
    assert by_template.report == alone.report


def test_ops_on_which_a_patch_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain()
    for place in range(3):
        made = relu(graph, f"whole_{place}", "in")
        made.attr["T"].type = types_pb2.DT_INT32
    both(graph, PATCHES["registered"], monkeypatch)
    both(graph, {"override_gradient": {"scale": 0.5}}, monkeypatch)


def test_a_rule_with_letters_of_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = {"override_gradient": {"registered": "\u07c0........../relu"}}
    both(chain(), patch, monkeypatch)
