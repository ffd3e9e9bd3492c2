"""stop_gradient, without TensorFlow: where the StopGradient stands, and what is refused."""

from __future__ import annotations

import pytest

from graphpatch.errors import PatchError
from tests.graphs import node
from tests.patches.one_op import main_of, patched

X, W = node("x", "Placeholder"), node("w", "Placeholder")
NET = (X, W, node("m", "MatMul", "x", "w"), node("y", "Identity", "m"), node("z", "Neg", "x"))
STOP = {"stop_gradient": True}


def stops(at: str) -> dict[str, tuple[str, ...]]:
    """Each StopGradient that the patch puts, with what it reads."""
    body = main_of(patched({**STOP, "at": at}, "MatMul", *NET))
    return {one.name: one.inputs for one in body if one.op == "StopGradient"}


def test_behind_the_op_it_takes_its_name() -> None:
    assert stops("outputs") == {"m": ("m/forward",)}


@pytest.mark.parametrize(
    ("at", "read"), [("inputs", ["x", "w"]), ("input:0", ["x"]), ("input:1", ["w"])], ids=str
)
def test_before_the_op_it_stops_what_flows_to_these_inputs(at: str, read: list[str]) -> None:
    assert list(stops(at).values()) == [(one,) for one in read]
    assert main_of(patched({**STOP, "at": at}, "MatMul", *NET)).node("z").inputs == ("x",)


@pytest.mark.parametrize(
    ("at", "op", "says"),
    [
        ("input:2", "MatMul", "has no input 2"),
        ("inputs", "Placeholder", "no input"),
        ("outputs", "Shape", "is int32, which carries no gradient"),
        (
            "outputs",
            "VarHandleOp",
            r"is a handle \(resource\): patch the outputs of the op that reads",
        ),
    ],
)
def test_where_nothing_flows_it_is_refused(at: str, op: str, says: str) -> None:
    with pytest.raises(PatchError, match=says):
        patched(
            {**STOP, "at": at},
            op,
            *NET,
            node("s", "Shape", "x", out_type="int32"),
            node("v", "VarHandleOp", dtype="float32", shape=[]),
        )
