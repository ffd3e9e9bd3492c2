"""tensor("NAME") in a formula, without TensorFlow: who reads it, and that it is undone."""

from __future__ import annotations

from typing import Any

import pytest

import graphpatch
from tests.graphs import graphdef, in_memory, joined
from tests.patches.one_op import main_of, net

NET = "x:Placeholder k:Placeholder r:Relu(x) y:Neg(r) s:Placeholder(dtype=int64)"


def override(text: str) -> Any:
    return {"override_gradient": {"formula": text}}


CARRIED = {
    "construction": override("dy * tensor('k')"),
    "function": override("sign(dy) * tensor('k:0')"),
    "an integer": override("dy * cast_like(tensor('s'), dy)"),
    "the op's own gradient": override("own(dy) * tensor('k')"),
    "an input of the op": override("dy * tensor('x')"),
    "a surrogate": {"surrogate_gradient": "tanh(tensor('k') * x)"},
    "a filter behind": {"filter_gradient": {"formula": "dy * tensor('k')"}},
    "a filter before": {"filter_gradient": {"formula": "dy * tensor('k')"}, "at": "inputs"},
}


@pytest.mark.parametrize("name", CARRIED)
def test_the_tensor_is_read_and_the_patch_undone_byte_for_byte(name: str) -> None:
    raw = graphdef(*net(NET)).SerializeToString()
    result = graphpatch.apply([{"match": {"op": "Relu"}, "patch": CARRIED[name]}], in_memory(raw))
    readers = [op.name for op in main_of(result) if {"k", "s"} & set(op.inputs)]
    assert readers or name == "an input of the op"
    assert joined(graphpatch.revert(result).model.pieces()) == raw
