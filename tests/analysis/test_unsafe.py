"""Ops that do more than compute are found wherever they would run, and nowhere else."""

from __future__ import annotations

import re
from typing import Any

import pytest

from graphpatch import opdefs
from graphpatch.analysis.unsafe import BY_ATTR, UNSAFE, apart_from_savers, refuse_unsafe, unsafe_ops
from graphpatch.errors import UnsafeError
from graphpatch.graph.graph import Graph
from tests import graphs
from tests.graphs import graph_of, node

# What names of inputs and attrs tell, of ops that touch nothing all the same.
NAMES = re.compile(r"file|path|url|address|directory|host$|servers|descriptor_source")
HARMLESS = {
    "CTCBeamSearchDecoder",  # top_paths counts
    "ConfigureAndInitializeGlobalTPU",  # use_tfrt_host_runtime
    "TensorSliceDataset",  # is_files says what strings are
}


def test_no_op_that_names_files_is_forgotten() -> None:
    assert [op for op in (*UNSAFE, *BY_ATTR) if opdefs.lookup(op) is None] == []
    for op in filter(None, map(opdefs.lookup, opdefs.op_types())):
        words = [*(arg.name for arg in op.inputs), *(attr.name for attr in op.attrs)]
        named = [word for word in words if NAMES.search(word)]
        if named and not op.name.startswith("_"):
            assert op.name in UNSAFE.keys() | BY_ATTR | HARMLESS, named


def unsafe_in(graph: Graph, *fetched: str) -> list[tuple[str, str]]:
    return [(one.body.label, one.name) for one in unsafe_ops(graph, fetched or None)]


TEXT = node("text", "Placeholder", dtype="string")
X, Y = node("x", "Placeholder"), node("y", "Relu", "x")
SAVE = node("save", "SaveV2", "text", "text", "text", "y", dtypes=["float32"])
WRITE = node("write", "SaveV2", "text", "text", "text", dtypes=[])
OPS: dict[str, tuple[list[Any], list[str], list[str]]] = {
    "nothing is named": ([X, Y, TEXT, SAVE], [], ["save"]),
    "it is not fetched": ([X, Y, TEXT, SAVE], ["y:0"], []),
    "by a control input": ([TEXT, WRITE, X, node("y", "Relu", "x", "^write")], ["y:0"], ["write"]),
    "an import may run it": ([X, TEXT, node("read", "ReadFile", "text")], ["x:0"], ["read"]),
    "stderr": ([TEXT, node("print", "PrintV2", "text", output_stream="stderr")], [], []),
    "stderr by default": ([TEXT, node("print", "PrintV2", "text")], [], []),
    "a file by an attr": (
        [TEXT, node("print", "PrintV2", "text", output_stream="file:///tmp/x")], [], ["print"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OPS)
def test_what_does_more_than_compute(case: str) -> None:
    nodes, fetched, expected = OPS[case]
    assert unsafe_in(graph_of(*nodes), *fetched) == [("main", name) for name in expected]


def test_called_functions_and_their_gradients_count() -> None:
    call = graphs.function("f", ["a"], [node("r", "Relu", "a")], {"b": "r:activations:0"})
    spy = node("py", "PyFunc", "a", token="t", Tin=["float32"], Tout=["float32"])
    gradient = graphs.function("g", ["a", "db"], [spy], {"da": "py:output:0"})
    message = graphs.graphdef(
        node("x", "Placeholder"), node("y", "f", "x"), functions=[call, gradient]
    )
    assert unsafe_in(graphs.opened(message), "y:0") == []
    message.library.gradient.add(function_name="f", gradient_func="g")
    assert unsafe_in(graphs.opened(message), "y:0") == [("g", "py")]


def test_the_refusal_names_the_op_and_the_way_out() -> None:
    name = node("name", "Placeholder", dtype="string")
    graph = graph_of(name, node("read", "ReadFile", "name"))
    with pytest.raises(UnsafeError, match=r"ReadFile 'read' touches files; .*--allow-unsafe-ops"):
        refuse_unsafe(graph, allow=False)
    refuse_unsafe(graph, allow=True)


def test_what_a_saver_gives_is_told_apart() -> None:
    text = node("prefix", "Placeholder", dtype="string")
    restore = node("restore", "RestoreV2", "prefix", "prefix", "prefix", dtypes=["float32"])
    graph = graph_of(
        text, restore, node("r", "Relu", "restore"), node("x", "Exp", "y"), node("y", "Placeholder")
    )
    assert apart_from_savers(graph, ["x:0", "r:0"]) == (["x:0"], ["r:0"])
