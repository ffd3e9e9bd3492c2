"""Where the table of gradients lets something flow back through a function of formulas."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from graphpatch.differentiation import flow
from graphpatch.errors import PatchError
from graphpatch.gradients import interpreter
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.functions import FUNCTIONS, Function
from graphpatch.gradients.ops import Signature
from graphpatch.gradients.program import formula_ops, node_defs
from graphpatch.gradients.spec import InlineFormula, parse_gradient
from graphpatch.names import op_of
from graphpatch.patches.surrogate import gradient_flows
from tests import graphs
from tests.graphs import listed, node
from tests.patches.one_op import applied, as_one, net


def spelled(one: Function, place: int) -> str:
    """A formula in which this argument of a function is x, and the others are constants."""
    count = len(one.arguments)
    given = ["x0" if n == place else "zeros_like(stop(x0))" for n in range(count)]
    if one.name == "-x":
        return f"-{given[0]}"
    if one.name == "not":
        return f"where(not ({given[0]} > 0), 1, 0)"
    if one.name in ("and", "or"):
        given = [f"({text} > 0)" for text in given]
    infix = not one.name.isidentifier() or one.name in ("and", "or")
    called = f" {one.name} ".join(given) if infix else f"{one.name}({', '.join(given)})"
    if one.name == "where":
        called = f"where({given[0]} > 0, {given[1]}, {given[2]})"
    return f"where({called}, 1, 0)" if one.name in TRUTHS else called


TRUTHS = "< <= > >= == != and or is_finite is_nan".split()
WITH_MORE = (
    "forward own quantile normal_like uniform_like split concat gather transpose conv2d"
    " conv2d_transpose depthwise_conv2d depthwise_conv2d_transpose avg_pool avg_pool_transpose"
    " max_pool max_pool_transpose bias_add matmul".split()
)
"""Functions that take the attrs of an op, or options that have no default."""


@pytest.mark.parametrize(
    ("one", "place"),
    [
        pytest.param(one, place, id=f"{one.name} {place}")
        for one in FUNCTIONS.values()
        if one.name not in WITH_MORE
        for place in range(len(one.arguments))
    ],
)
def test_nothing_flows_where_the_table_of_gradients_says_so(one: Function, place: int) -> None:
    formula = Formula.parse(spelled(one, place))
    value = formula_ops(formula, Signature.of(["float32"], ["float32"]), "float32")
    made = node_defs([value], in_function=False)
    body = graphs.graph_of(node("x0", "Placeholder"), *made.nodes).main
    todo, seen = [body.node(op_of(made.results[0]))], set()
    while todo:
        op = todo.pop()
        seen.add(op.name)
        args = op.arguments
        assert args is not None
        todo += [
            body.node(op_of(text))
            for slot, text in enumerate(op.data_inputs)
            if flow.into(op.op, slot, len(args), args[slot].dtype) == "flows"
        ]
    [expression] = [text for text in formula.expressions if text is not None][:1]
    assert ("x0" in seen) == (gradient_flows(expression) or one.name == "sign")


# Comparisons with a threshold as one op: a surrogate of the library has its step at 0.

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
    around = f"x:Placeholder w:Placeholder {nodes} cast:Cast(g, SrcT=bool, DstT=float32)"
    return applied(
        as_one(pattern, {"override_gradient": spec}), [listed("t", threshold), *net(around)]
    )


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
