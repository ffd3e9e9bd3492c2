"""Every real model goes through `ops` and `apply`, what TensorFlow refuses included."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis import ops
from graphpatch.graph.check import foreign
from tests.models import catalogue

tf = pytest.importorskip("tensorflow")

from tests.tf.test_inferred_shapes import contradicts, inferred, ours  # noqa: E402

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


LEAST = 0.78  # of the shapes that TensorFlow knows


def without_shapes(graph_def: Any) -> Any:
    for node in graph_def.node:
        for key in ("_output_shapes", "_class"):
            node.attr.pop(key, None)
    return graph_def


def test_shapes_are_those_that_tensorflow_infers() -> None:
    """Without those in the file none is another, or more than TensorFlow says; few are missing."""
    found, wrong = Counter[str](), {}
    for name, path in catalogue.models().items():
        for graph_def in catalogue.graph_defs(path) if path.is_file() else ():
            try:
                right = inferred(without_shapes(graph_def))
            except (ValueError, tf.errors.OpError):  # not one that TensorFlow imports
                continue
            found["models"] += 1
            mine = ours(graph_def)
            known = [one for one, shape in right.items() if shape is not None]
            found["known"] += len(known)
            found["equal"] += sum(right[one] == mine[one] for one in known)
            wrong |= {
                (name, one): (right[one], mine[one])
                for one in right
                if contradicts(right[one], mine[one])
            }
    if not found["models"]:
        pytest.skip("no models are there")
    assert wrong == {}
    assert found["equal"] >= LEAST * found["known"], dict(found)
