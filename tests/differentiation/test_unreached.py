"""Functions that nothing calls of which TensorFlow has a gradient."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphpatch
from graphpatch.errors import PatchError
from graphpatch.protos import NodeDef
from tests.graphs import function, node, saved

GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
INNER = function("f", ["a"], [node("relu", "Relu", "a", T="float32")], {"b": "relu:activations:0"})
X = node("x", "Placeholder", dtype="float32")


def called_by(op: str, name: str, *inputs: str) -> NodeDef:
    """A node that names the function f in its attr."""
    found = node(name, op, *inputs, Tin=["float32"], Tout=["float32"])
    found.attr["f"].func.name = "f"
    return found


def test_a_patch_in_the_map_of_a_dataset_is_refused(tmp_path: Path) -> None:
    data = node("data", "Placeholder", dtype="variant")
    path = saved(tmp_path, X, data, called_by("MapDataset", "map", "data"), functions=[INNER])
    message = "TensorFlow has no gradient of MapDataset 'map', by which function f"
    with pytest.raises(PatchError, match=message):
        graphpatch.apply([GUIDED], path)


def test_a_call_in_what_a_dataset_maps_does_not_count(tmp_path: Path) -> None:
    """Both main and g call f, and only a dataset calls g: what is patched fires in main."""
    call = called_by("PartitionedCall", "c", "a")
    g = function("g", ["a"], [call], {"b": "c:output:0"})
    data, mapped = (
        node("data", "Placeholder", dtype="variant"),
        called_by("MapDataset", "m", "data"),
    )
    mapped.attr["f"].func.name = "g"
    calls = [mapped, called_by("PartitionedCall", "call", "x")]
    result = graphpatch.apply([GUIDED], saved(tmp_path, X, data, *calls, functions=[INNER, g]))
    assert [len(one["matches"]) for one in result.report["rules"]] == [1]
    with pytest.raises(PatchError, match="no gradient of MapDataset 'm', by which function f"):
        graphpatch.apply([GUIDED], saved(tmp_path, X, data, mapped, functions=[INNER, g]))


def test_what_is_called_beside_it_is_patched(tmp_path: Path) -> None:
    data = node("data", "Placeholder", dtype="variant")
    calls = [called_by("MapDataset", "map", "data"), called_by("PartitionedCall", "call", "x")]
    result = graphpatch.apply([GUIDED], saved(tmp_path, X, data, *calls, functions=[INNER]))
    assert [len(one["matches"]) for one in result.report["rules"]] == [1]
