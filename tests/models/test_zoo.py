"""Every real model goes through `ops` and `apply`, what TensorFlow refuses included."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis import ops
from graphpatch.errors import PatchError
from graphpatch.graph.check import foreign
from graphpatch.graph.node import Node
from graphpatch.graph.provenance import PROVENANCE_ATTR as PROVENANCE
from graphpatch.patches.inline import why_idle
from graphpatch.patches.target import Target
from tests.models import catalogue

pytest.importorskip("tensorflow")

# What TensorFlow's importer finds out by work that we don't do: allowed values of attrs, cycles,
# and shapes, which it infers for the whole graph.
NOT_FORETOLD = {
    "musicnn_MTT_vgg/model.meta": "_output_shapes attribute inconsistent",
    "zoo/NVIDIA+tensorflow__costs_graph_properties_testdata_function_error.pbtxt": "in a cycle",
    "zoo/NVIDIA+tensorflow__tests_debuginfo_v1_1.0_224_frozen.wrong_attr.line.part.pbtxt": (
        "not in the list of allowed values"
    ),
    "zoo/graphcore+tensorflow__tests_debuginfo_v1_1.0_224_frozen.wrong_attr.stack.part.pbtxt": (
        "not in the list of allowed values"
    ),
    "zoo/graphcore+tensorflow__tests_end2end_conv_2d_nchw.pbtxt": "not a multiple",
}
FORETOLD = 9


@pytest.mark.parametrize("name", catalogue.every_model())
def test_ops_says_what_the_file_holds(name: str) -> None:
    path = catalogue.models()[name]
    model = graphpatch.load(path)
    described = [ops.op_document(node) for node in ops.all_ops(model)]
    held = [node for graph_def in catalogue.graph_defs(path) for node in every_node(graph_def)]
    assert [(op["name"], op["type"], op["inputs"]) for op in described] == [
        (node.name, node.op, list(node.input)) for node in held
    ]
    assert [sorted(op["attrs"]) for op in described] == [sorted(node.attr) for node in held]
    assert sum(ops.count_types(model).values()) == len(held)
    json.dumps(described)


@pytest.mark.parametrize("name", catalogue.every_model())
def test_apply_stops_gradients_and_leaves_the_rest_alone(name: str, tmp_path: Path) -> None:
    path, target = catalogue.models()[name], tmp_path / Path(name).name
    model = graphpatch.load(path)
    found = first_patched(model)
    if found is None:
        pytest.skip("no op of it gives a float tensor that another one reads")
    _, result = found
    result.model.save(target)
    notes = result.report["notes"]
    assert all(note in notes for graph in model.graphs for note in foreign(graph))
    before = {key: one for one in catalogue.graph_defs(path) for key, one in by_name(one)}
    after = {key: one for one in catalogue.graph_defs(target) for key, one in by_name(one)}
    touched = {key for key, one in after.items() if PROVENANCE in one.attr}
    assert touched
    assert before.keys() <= after.keys()
    assert {key: one for key, one in after.items() if key not in touched} == {
        key: one for key, one in before.items() if key not in touched
    }


@pytest.mark.parametrize("name", catalogue.every_model())
def test_what_tensorflow_refuses_is_foretold(name: str) -> None:
    path = catalogue.models()[name]
    reason = catalogue.refusal(path)
    told = is_foretold(path)
    assert not told or reason, "a note, and yet it is imported"
    assert bool(reason and not told) == (name in NOT_FORETOLD)
    assert NOT_FORETOLD.get(name, "") in reason


def test_as_many_are_foretold() -> None:
    if not catalogue.models():
        pytest.skip(f"no real models in {catalogue.folder()}")
    assert sum(map(is_foretold, catalogue.models().values())) == FORETOLD
    assert NOT_FORETOLD.keys() <= catalogue.models().keys()


def is_foretold(path: Path) -> bool:
    """Whether a note says that TensorFlow refuses a model."""
    return any(True for graph in graphpatch.load(path).graphs for _ in foreign(graph))


def every_node(graph_def: Any) -> list[Any]:
    functions = [node for function in graph_def.library.function for node in function.node_def]
    return [*graph_def.node, *functions]


def by_name(graph_def: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    """Each NodeDef by its body's name and its own."""
    yield from ((("main", node.name), node) for node in graph_def.node)
    for function in graph_def.library.function:
        label = function.signature.name
        yield from (((label, node.name), node) for node in function.node_def)


def first_patched(model: graphpatch.Model) -> tuple[Node, graphpatch.Result] | None:
    """The first op of any body whose gradient can be stopped, with the patched model."""
    for node in ops.all_ops(model):
        rule = {
            "match": {"name": node.name, "body": node.body.label},
            "patch": {"stop_gradient": True},
        }
        try:
            if not why_idle(Target.of(node), "outputs"):
                return node, graphpatch.apply([rule], model)
        except PatchError:
            continue
    return None
