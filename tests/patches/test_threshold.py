"""Comparisons with a threshold as one op: a surrogate of the library has its step at 0."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from graphpatch.errors import PatchError
from graphpatch.gradients import interpreter
from graphpatch.gradients.spec import InlineFormula, parse_gradient
from tests.graphs import FLOAT, node
from tests.patches.one_op import applied, as_one, net

X = np.array([0.6, -0.2, 0.3])
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
def test_the_message_is_the_formula_to_write(op: str, pattern: str) -> None:
    with pytest.raises(PatchError, match="has its step at 0 of x0") as caught:
        apply(op, 0.5, pattern, SPEC)
    spec = json.loads(str(caught.value).partition("write: ")[2])
    apply(op, 0.5, pattern, spec)
    gradient = parse_gradient(spec)
    assert isinstance(gradient, InlineFormula)
    inputs = [X] if pattern == INSIDE else [X, np.array(0.5)]
    dx, *others = interpreter.gradient(gradient.formula, inputs, [X], [np.ones(3)])
    assert others in ([], [None])
    sign = 1 if op.startswith("Greater") else -1
    assert dx is not None
    np.testing.assert_allclose(dx, sign / (1 + 25 * np.abs(X - 0.5)) ** 2)


def test_a_threshold_of_0_is_where_the_step_is() -> None:
    assert apply("Greater", 0, INSIDE, SPEC).report["rules"][0]["emit"]
    assert apply("Greater", 0.5, INSIDE, "straight_through").report["rules"][0]["emit"]
