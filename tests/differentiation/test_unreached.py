"""Functions that nothing calls of which TensorFlow has a gradient."""

from __future__ import annotations

import pytest

import graphpatch
from graphpatch.errors import PatchError
from graphpatch.protos import FunctionDef, NodeDef
from tests.graphs import function, graphdef, node
from tests.patches.one_op import net

INNER = function("f", ["a"], net("relu:Relu(a)"), {"b": "relu:activations:0"})


def calling(name: str, op: str, reads: str, called: str = "f") -> NodeDef:
    """A node that names a function in its attr."""
    found = node(name, op, reads, Tin=["float32"], Tout=["float32"])
    found.attr["f"].func.name = called
    return found


G = function("g", ["a"], [calling("c", "PartitionedCall", "a")], {"b": "c:output:0"})
CALL = calling("call", "PartitionedCall", "x")


def patched(*nodes: NodeDef, functions: tuple[FunctionDef, ...] = (INNER,)) -> int:
    """How many ReLUs are patched where functions are named by these nodes."""
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
    ends = net("x:Placeholder data:Placeholder(dtype=variant)")
    report = graphpatch.apply([rule], graphdef(*ends, *nodes, functions=functions)).report
    return len(report["rules"][0]["matches"])


def test_a_patch_in_the_map_of_a_dataset_is_refused() -> None:
    mapped = calling("m", "MapDataset", "data")
    message = "TensorFlow has no gradient of MapDataset 'm', by which function f"
    with pytest.raises(PatchError, match=message):
        patched(mapped)
    assert patched(mapped, CALL) == 1  # what is called beside it


def test_a_call_in_what_a_dataset_maps_does_not_count() -> None:
    """Both main and g call f, and only a dataset calls g: what is patched fires in main."""
    mapped = calling("m", "MapDataset", "data", "g")
    assert patched(mapped, CALL, functions=(INNER, G)) == 1
    with pytest.raises(PatchError, match="no gradient of MapDataset 'm', by which function f"):
        patched(mapped, functions=(INNER, G))
