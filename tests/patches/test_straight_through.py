"""straight_through, without TensorFlow: which gradient the op counts with, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from graphpatch.errors import PatchError
from tests.graphs import const, node
from tests.patches.one_op import main_of, patched

X, W = node("x", "Placeholder"), node("w", "Placeholder")
INT = node("i", "Placeholder", dtype="int32")
THROUGH = {"straight_through": True}


def test_an_op_with_one_input_has_the_gradient_of_the_identity() -> None:
    body = main_of(patched(THROUGH, "Round", X, node("r", "Round", "x"), node("y", "Neg", "r")))
    found = body.node("r").attr("_gradient_op_type")
    assert found is not None
    assert found.s == b"Identity"
    assert body.node("r").op == "Round"
    assert body.node("y").inputs == ("r",)


def test_of_several_inputs_the_one_that_is_named_counts() -> None:
    nodes = (X, W, node("m", "Maximum", "x", "w"), node("y", "Neg", "m"))
    for slot, read in ((0, "x"), (1, "w")):
        body = main_of(patched({"straight_through": {"input": slot}}, "Maximum", *nodes))
        joined = body.node("m")
        assert joined.op == "Select"
        behind = {one.name for one in body if read in one.inputs}
        assert joined.inputs[2] == read or joined.inputs[2].split("/")[0] == "m"
        assert behind - {"m/forward"}


REFUSED: dict[str, tuple[Any, str, list[Any], str]] = {
    "an input that is not there": (
        {"straight_through": {"input": 1}}, "Round", [node("r", "Round", "x")], "has no x1",
    ),
    "another dtype": (
        THROUGH, "Cast", [node("c", "Cast", "x", SrcT="float32", DstT="float64")], "another dtype",
    ),
    "no float": (
        THROUGH, "Sign", [INT, node("s", "Sign", "i", T="int32")], "is int32",
    ),
    "another shape": (
        THROUGH, "Reshape", [const("k"), node("r", "Reshape", "x", "k")], "keep the shape",
    ),
    "several outputs": (
        THROUGH, "Split",
        [INT, node("s", "Split", "i", "x", num_split=2)], "2 outputs; straight_through needs one",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_identity_is_refused(name: str) -> None:
    patch, op, nodes, says = REFUSED[name]
    with pytest.raises(PatchError, match=says):
        patched(patch, op, X, *nodes)
