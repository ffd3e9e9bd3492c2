"""Comparisons with a threshold as one op: a surrogate of the library has its step at 0."""

from __future__ import annotations

from typing import Any

import pytest

from graphpatch.errors import PatchError
from tests.graphs import FLOAT, node
from tests.patches.one_op import applied, as_one, net

SPEC = {"fast_sigmoid_surrogate": {"slope": 25}}
INSIDE, OUTSIDE = "x:_ -> g:{op}:0 -> Cast; t:Const -> g:1", "x:_ -> {op}:0 -> Cast"


def apply(op: str, threshold: float, pattern: str, spec: Any) -> Any:
    t = node("t", "Const", dtype="float32")
    t.attr["value"].tensor.dtype = FLOAT
    t.attr["value"].tensor.float_val.append(threshold)
    nodes = net(f"x:Placeholder g:{op}(x,t) cast:Cast(g, SrcT=bool, DstT=float32)")
    return applied(as_one(pattern.format(op=op), {"override_gradient": spec}), [t, *nodes])


@pytest.mark.parametrize("op", ["Greater", "GreaterEqual", "Less", "LessEqual"])
@pytest.mark.parametrize("pattern", [INSIDE, OUTSIDE])
def test_a_step_elsewhere_needs_a_formula_of_the_difference(op: str, pattern: str) -> None:
    with pytest.raises(PatchError, match=r"has its step at 0 of x0.*a formula of the difference"):
        apply(op, 0.5, pattern, SPEC)
    if op.startswith("Less"):  # which steps down
        with pytest.raises(PatchError, match="has its step at 0 of x0"):
            apply(op, 0, pattern, SPEC)
    formula = "dy / square(1 + 25 * abs(x - 0.5))"
    apply(op, 0.5, pattern, {"formula": formula if pattern == INSIDE else [formula, None]})


def test_a_threshold_of_0_is_where_the_step_is() -> None:
    assert apply("Greater", 0, INSIDE, SPEC).report["rules"][0]["emit"]
    assert apply("Greater", 0.5, INSIDE, "straight_through").report["rules"][0]["emit"]
