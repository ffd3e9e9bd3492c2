"""filter_gradient, without TensorFlow: what is put in line, and where; what is refused."""

from __future__ import annotations

import pytest

from graphpatch.errors import PatchError
from tests.graphs import node
from tests.patches.one_op import main_of, patched

X, W = node("x", "Placeholder"), node("w", "Placeholder")
NET = (X, W, node("m", "MatMul", "x", "w"), node("y", "Identity", "m"), node("z", "Neg", "x"))
REVERSE = {"filter_gradient": "reverse"}


def test_behind_the_op_what_is_in_line_takes_its_name() -> None:
    body = main_of(patched(REVERSE, "MatMul", *NET))
    assert body.node("m/forward").op == "MatMul"
    assert body.node("m/forward").inputs == ("x", "w")
    assert body.node("y").inputs == ("m",)


@pytest.mark.parametrize(
    ("at", "changed"), [("inputs", {0, 1}), ("input:0", {0}), ("input:1", {1})], ids=str
)
def test_before_the_op_other_readers_keep_their_gradient(at: str, changed: set[int]) -> None:
    body = main_of(patched({**REVERSE, "at": at}, "MatMul", *NET))
    reads = body.node("m").inputs
    assert {slot for slot in (0, 1) if reads[slot] != ("x", "w")[slot]} == changed
    assert body.node("m").op == "MatMul"
    assert body.node("z").inputs == ("x",)


REFUSED = {
    "TensorFlow's default gradient": ({"filter_gradient": "stock"}, "MatMul", "means nothing"),
    "an input that is not there": ({**REVERSE, "at": "input:2"}, "MatMul", "has no input 2"),
    "an op without inputs": ({**REVERSE, "at": "inputs"}, "Placeholder", "no input"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_do_nothing_is_refused(name: str) -> None:
    patch, op, says = REFUSED[name]
    with pytest.raises(PatchError, match=says):
        patched(patch, op, *NET)
