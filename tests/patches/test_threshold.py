"""Comparisons with a threshold as one op: a surrogate of the library has its step at 0."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from graphpatch.errors import PatchError
from graphpatch.gradients import interpreter
from graphpatch.gradients.spec import InlineFormula, parse_gradient
from tests.graphs import FLOAT, node
from tests.patches.one_op import applied, as_one, net

SPEC = {"fast_sigmoid_surrogate": {"slope": 25}}
BIASED = "b:BiasAdd(x,w) g:Greater(b,t)"
# The comparison, the pattern that the user writes, and which of x0 and x1 of the message is x.
ELSEWHERE = [
    ("g:Greater(x,t)", "x:_ -> Greater:0 -> Cast", 0),
    ("g:GreaterEqual(x,t)", "x:_ -> g:GreaterEqual:0 -> Cast; t:Const -> g:1", 0),
    ("g:Less(x,t)", "x:_ -> Less:0 -> Cast", 1),
    ("g:LessEqual(x,t)", "x:_ -> g:LessEqual:0 -> Cast; t:Const -> g:1", 1),
    ("g:Less(t,x)", "x:_ -> Less:1 -> Cast", 0),
    ("g:Greater(t,x)", "x:_ -> g:Greater:1 -> Cast; t:Const -> g:0", 1),
    ("g:Greater(x,w)", "x:_ -> Greater:0 -> Cast", 0),
    (BIASED, "x:_ -> BiasAdd:0 -> g:Greater:0 -> Cast; t:Const -> g:1", 0),
]


def apply(nodes: str, pattern: str, spec: Any, threshold: float = 0.5) -> Any:
    t = node("t", "Const", dtype="float32")
    t.attr["value"].tensor.dtype = FLOAT
    t.attr["value"].tensor.float_val.append(threshold)
    around = f"x:Placeholder w:Placeholder {nodes} cast:Cast(g, SrcT=bool, DstT=float32)"
    return applied(as_one(pattern, {"override_gradient": spec}), [t, *net(around)])


@pytest.mark.parametrize(("nodes", "pattern", "place"), ELSEWHERE)
def test_the_message_is_the_rule_to_write(nodes: str, pattern: str, place: int) -> None:
    with pytest.raises(PatchError, match="has its step at 0 of x0") as caught:
        apply(nodes, pattern, SPEC)
    found = re.search(r"with (x:_ -> \w+:\d), and write: (.*), where null", str(caught.value))
    assert found is not None
    begins, spec = found[1], json.loads(found[2])
    gradient = parse_gradient(spec)
    assert isinstance(gradient, InlineFormula)
    x, t = np.array([0.6, -0.2, 0.3]), np.array(0.5)
    inputs = [t, x] if place else [x, t]
    dx = interpreter.gradient(gradient.formula, inputs, [x], [np.ones(3)])[place]
    expected = 1 / (1 + 25 * np.abs(x - t)) ** 2
    np.testing.assert_allclose(np.asarray(dx), -expected if place else expected)
    matches = apply(nodes, f"{begins} -> Cast", spec).report["rules"][0]["matches"]
    assert matches[-1]["inputs"][f"x{place}"] == ("b" if nodes == BIASED else "x")
    spec["formula"][1 - place] = None
    apply(nodes, f"{begins} -> Cast", spec)


def test_a_threshold_of_0_is_where_the_step_is() -> None:
    inside = "x:_ -> g:Greater:0 -> Cast; t:Const -> g:1"
    assert apply("g:Greater(x,t)", inside, SPEC, 0).report["rules"][0]["emit"]
    assert apply("g:Greater(x,t)", inside, "straight_through").report["rules"][0]["emit"]
    with pytest.raises(PatchError, match="has its step at 0 of x0"):  # it steps down
        apply("g:Less(x,t)", inside.replace("Greater", "Less"), SPEC, 0)
    # Where a function of x meets its threshold is not known here.
    half = inside.replace("x:_", "x:_ -> Sigmoid")
    assert apply("s:Sigmoid(x) g:Greater(s,t)", half, SPEC).report["rules"][0]["emit"]
