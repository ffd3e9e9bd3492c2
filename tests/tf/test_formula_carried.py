"""A gradient function where it is used: as the GradientDef of a function that passes y through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphpatch.gradients.formula import Formula
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.ops import DTYPE_NUMBERS, Signature
from graphpatch.gradients.program import gradient_function
from graphpatch.protos import GraphDef
from tests.tf import run_graph, tensorflow1

pytest.importorskip("tensorflow")


def placeholder(graph: GraphDef, name: str, dtype: str) -> None:
    node = graph.node.add(name=name, op="Placeholder")
    node.attr["dtype"].type = DTYPE_NUMBERS[dtype]
    node.attr["shape"].shape.unknown_rank = True


def carried(op: str, formula: Formula, dtypes: list[str], **attrs: bool) -> GraphDef:
    """An op `r` of inputs `x0`, ..., whose gradient is the formula; `z` is its square.

    An input without a gradient reaches the attach node through a StopGradient.
    """
    graph = GraphDef()
    graph.versions.producer = 27
    dtype = dtypes[0]
    inputs = [(f"x{place}", dtype) for place, dtype in enumerate(dtypes)]
    for name, kind in inputs:
        placeholder(graph, name, kind)
    forward = graph.node.add(name="r/forward", op=op, input=[name for name, _ in inputs])
    for attr, value in attrs.items():
        forward.attr[attr].b = value
    forward.attr["T"].type = DTYPE_NUMBERS[dtype]
    sources = [
        stopped(graph, name, kind, formula, place) for place, (name, kind) in enumerate(inputs)
    ]
    sources.append(stopped(graph, "r/forward", dtype))
    graph.node.add(name="r", op="attach", input=sources)
    graph.node.add(name="z", op="Square", input=["r"]).attr["T"].type = DTYPE_NUMBERS[dtype]
    add_functions(graph, formula, inputs, dtype, attrs)
    return graph


def stopped(
    graph: GraphDef, name: str, dtype: str, formula: Formula | None = None, place: int = 0
) -> str:
    if formula is not None and (formula.alike or formula.texts[place] is not None):
        return name
    node = graph.node.add(name=f"{name}/stop", op="StopGradient", input=[name])
    node.attr["T"].type = DTYPE_NUMBERS[dtype]
    return node.name


def add_functions(
    graph: GraphDef, formula: Formula, inputs: list[tuple[str, str]], dtype: str, attrs: Any
) -> None:
    attach = graph.library.function.add()
    attach.signature.name = "attach"
    for name, kind in (*inputs, ("y0", dtype)):
        attach.signature.input_arg.add(name=name, type=DTYPE_NUMBERS[kind])
    attach.signature.output_arg.add(name="out", type=DTYPE_NUMBERS[dtype])
    guard = attach.node_def.add(name="guard", op="PreventGradient", input=["y0"])
    guard.attr["T"].type = DTYPE_NUMBERS[dtype]
    guard.attr["message"].s = b"the gradient was dropped"
    attach.ret["out"] = "guard:output:0"
    op = Signature.of([kind for _, kind in inputs], [dtype], attrs)
    found = gradient_function(formula, op, "attach_grad")
    graph.library.function.append(found)
    graph.library.gradient.add(function_name="attach", gradient_func="attach_grad")


X = np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)
W = np.array([[10.0], [-1.0]], np.float32)

CASES: dict[str, tuple[GraphDef, dict[str, Any], dict[str, Any]]] = {
    "one input gets none": (
        carried("Mul", Formula.parse(["dy * x1", None]), ["float32", "float32"]),
        {"x0": np.float32(3), "x1": np.float32(10)},
        {"x0": np.float32(2 * 30 * 10)},
    ),
    "the other input gets none": (
        carried("Mul", Formula.parse([None, "dy * x0"]), ["float32", "float32"]),
        {"x0": np.float32(3), "x1": np.float32(10)},
        {"x1": np.float32(2 * 30 * 3)},
    ),
    "sums down and repeats": (
        carried("Mul", Formula.parse(["dy * x1", "5"]), ["float32", "float32"]),
        {"x0": X, "x1": W},
        {"x0": 2 * X * W * W, "x1": np.full_like(W, 5)},
    ),
    "the op's own, written out": (
        carried(
            "MatMul",
            LIBRARY["matmul"].formula(),
            ["float32"] * 2,
            transpose_a=True,
            transpose_b=False,
        ),
        {"x0": X, "x1": W},
        {"x0": W @ (2 * X.T @ W).T, "x1": X @ (2 * X.T @ W)},
    ),
    "not linear in dy": (
        carried("Neg", LIBRARY["normalize"].formula(), ["float32"]),
        {"x0": np.array([-3.0, 4.0], np.float32)},
        {"x0": np.array([0.6, -0.8], np.float32)},
    ),
}


def check(found: Any, feeds: dict[str, Any], expected: dict[str, Any]) -> None:
    got = {name.split(":")[1] for name in found if name.startswith("gradient:")}
    assert got == set(expected)
    for name, dx in expected.items():
        np.testing.assert_allclose(found[f"gradient:{name}:0"], dx, rtol=1e-6)
    np.testing.assert_array_equal(found["r:0"], found["r/forward:0"])


@pytest.mark.parametrize("name", CASES)
def test_a_session(name: str) -> None:
    graph, feeds, expected = CASES[name]
    fetches = ["r:0", "r/forward:0"]
    wrt = [f"{feed}:0" for feed in feeds]
    check(run_graph.run(graph.SerializeToString(), feeds, fetches, "z:0", wrt), feeds, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_session_of_tensorflow_1(name: str, tmp_path: Path) -> None:
    graph, feeds, expected = CASES[name]
    fetches = ["r:0", "r/forward:0", "--gradients", "z:0", *(f"{feed}:0" for feed in feeds)]
    check(tensorflow1.fetch(graph.SerializeToString(), feeds, fetches, tmp_path), feeds, expected)
