"""Where the table of gradients lets something flow back through a function of formulas."""

from __future__ import annotations

import pytest

from graphpatch.differentiation import flow
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.functions import FUNCTIONS, Function
from graphpatch.gradients.program import formula_nodes
from graphpatch.names import op_of
from graphpatch.patches.surrogate import gradient_flows
from tests import graphs
from tests.graphs import node


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
    made = formula_nodes(formula, [("x", "float32")], "float32", "f")
    body = graphs.graph_of(node("x", "Placeholder"), *made.nodes).main
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
    assert ("x" in seen) == (gradient_flows(expression) or one.name == "sign")
