"""A rule for an op type against tf.Graph.gradient_override_map, on every model TensorFlow imports.

TensorFlow reaches no function body, so the rules say `"body": "main"`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch import opdefs
from graphpatch.errors import PatchError
from graphpatch.graph.provenance import PROVENANCE_ATTR as PROVENANCE
from graphpatch.patches.override import never_fires
from tests.models import catalogue

pytest.importorskip("tensorflow")

OVERRIDE = "_gradient_op_type"

# So many op types of each model are tried one after the other.
SAMPLE = 5


@pytest.mark.parametrize("name", catalogue.every_model())
def test_all_op_types_at_once(name: str, tmp_path: Path) -> None:
    path = catalogue.importable(name)
    check_as_tensorflow(path, differentiable(path), tmp_path / Path(name).name)


@pytest.mark.parametrize("name", catalogue.every_model())
def test_a_type_is_refused_only_where_no_gradient_is_asked_for(name: str) -> None:
    import tensorflow as tf
    from tensorflow.python.eager.backprop_util import IsTrainable

    path = catalogue.importable(name)
    graphs = [catalogue.imported(graph_def) for graph_def in catalogue.graph_defs(path)]
    ops = [op for graph in graphs for op in graph.get_operations()]
    for kind in catalogue.drawn(every_type(path), name, SAMPLE):
        asked = [op for op in ops if op.type == kind and op.inputs]
        outputs = [output for op in asked for output in op.outputs]
        fires = any(IsTrainable(tf.as_dtype(output.dtype)) for output in outputs)
        if fires:
            graphpatch.apply([overriding(kind)], path)
        else:
            with pytest.raises(PatchError, match="the override would never be used"):
                graphpatch.apply([overriding(kind)], path)


def check_as_tensorflow(path: Path, types: list[str], target: Path) -> None:
    """Our file, imported, against the original, imported under the map: node by node."""
    if not types:
        return
    graphpatch.apply([overriding(op) for op in types], path).model.save(target)
    ours, theirs = catalogue.graph_defs(target), catalogue.graph_defs(path)
    for our, original in zip(ours, theirs, strict=True):
        overrides = {op: f"Ours{op}" for op in types}
        expected = catalogue.imported(original, overrides).as_graph_def()
        found = catalogue.imported(our).as_graph_def()
        assert set_on(found) == set_on(expected)
        assert set_on(found).keys() >= {node.name for node in original.node if node.op in types}
        assert [unsigned(node) for node in found.node] == list(expected.node)
        assert found.library == expected.library
        # TensorFlow fills in and drops attrs on import: compare what is in the file, too.
        for node in original.node:
            if node.op in types:
                node.attr[OVERRIDE].s = overrides[node.op].encode()
        assert [unsigned(node) for node in our.node] == list(original.node)
        our.ClearField("node")
        original.ClearField("node")
        assert our == original
    target.unlink() if target.is_file() else None


def overriding(op: str) -> dict[str, Any]:
    return {
        "name": op,
        "match": {"op": op, "body": "main"},
        "patch": {"override_gradient": {"registered": f"Ours{op}"}},
    }


def every_type(path: Path) -> list[str]:
    """The op types of the main graphs for which TensorFlow registers a gradient."""
    types = {op for graph in graphpatch.load(path).graphs for op in graph.main.by_type}
    known = {op: opdefs.lookup(op) for op in types}
    return sorted(op for op, found in known.items() if found and found.gradient == "registered")


def differentiable(path: Path) -> list[str]:
    """Those of which some op is ever asked for its gradient; the others a rule refuses."""
    graphs = graphpatch.load(path).graphs
    return [
        op
        for op in every_type(path)
        if any(node.op == op and not never_fires(node) for graph in graphs for node in graph.main)
    ]


def set_on(graph_def: Any) -> dict[str, str]:
    """The override of each node that has one."""
    return {
        node.name: node.attr[OVERRIDE].s.decode()
        for node in graph_def.node
        if OVERRIDE in node.attr
    }


def unsigned(node: Any) -> Any:
    """The NodeDef without our provenance."""
    if PROVENANCE in node.attr:
        del node.attr[PROVENANCE]
    return node
