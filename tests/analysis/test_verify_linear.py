"""What `verify` asks of a patched graph without running it grows with the graph."""

from __future__ import annotations

import time

import pytest
from tensorboard.compat.proto.graph_pb2 import GraphDef

import graphpatch
from graphpatch.analysis.soundness.path_clones import clone_faults
from graphpatch.analysis.soundness.stored_gradients import stored_gradients
from tests.graphs import graphdef, node

pytestmark = pytest.mark.slow

COUNT = 600
BACKWARD_AS = {"match": {"op": "Relu"}, "patch": {"backward_as": {"input": 0}}}
X = node("x", "Placeholder")


def many_readers() -> GraphDef:
    """An op with noise that many read, each the end of a path."""
    return graphdef(X, node("r", "Relu", "x"), *[node(f"t{k}", "Tanh", "r") for k in range(COUNT)])


def one_of_many_outputs() -> GraphDef:
    """Many ops with noise that one op reads and gives on; each output is the end of a path."""
    relus = [node(f"r{k}", "Relu", "x") for k in range(COUNT)]
    several = node("i", "IdentityN", *[one.name for one in relus], T=["float32"] * COUNT)
    return graphdef(X, *relus, several, *[node(f"t{k}", "Tanh", f"i:{k}") for k in range(COUNT)])


@pytest.mark.parametrize(
    "built", [many_readers(), one_of_many_outputs()], ids=["readers", "outputs"]
)
def test_paths_without_noise_are_compared_once(built: GraphDef) -> None:
    [patched] = graphpatch.apply([BACKWARD_AS], built).model.graphs
    before = time.process_time()
    assert not list(clone_faults(patched))
    assert len(list(stored_gradients(patched))) >= COUNT
    assert time.process_time() - before < 10
