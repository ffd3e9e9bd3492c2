"""surrogate_gradient, without TensorFlow: what is put where, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import graphpatch
from graphpatch.differentiation import flow
from graphpatch.errors import GraphpatchError, PatchError, RulesError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.functions import FUNCTIONS, Function
from graphpatch.gradients.lowering import formula_nodes
from graphpatch.graph import provenance
from graphpatch.names import op_of
from graphpatch.patches.surrogate import gradient_flows
from graphpatch.rules import rules_from
from tests import graphs
from tests.graphs import function, node, v1_loop
from tests.patches.one_op import applied

X = node("x", "Placeholder")
ONE = (X, node("s", "Sign", "x"), node("y", "Identity", "s"))


def surrogate_rule(formula: Any = "tanh(4 * x)", match: Any = None, **keys: Any) -> dict[str, Any]:
    options = {key: keys.pop(key) for key in ("on", "at") if key in keys}
    patch = {"surrogate_gradient": formula, **options}
    return {"match": match or {"op": "Sign"}, "patch": patch, **keys}


def test_the_formula_stands_beside_the_op_which_makes_room() -> None:
    result = applied(surrogate_rule(), *ONE)
    main = result.model.graphs[0].main
    assert {one.name: (one.op, one.inputs) for one in main} == {
        "x": ("Placeholder", ()),
        "s/forward": ("Sign", ("x",)),
        "s/surrogate/Const": ("Const", ()),
        "s/surrogate/Mul": ("Mul", ("s/surrogate/Const", "x")),
        "s/surrogate/Tanh": ("Tanh", ("s/surrogate/Mul",)),
        "s/stop": ("StopGradient", ("s/forward",)),
        "s/same": ("Equal", ("s/stop", "s/stop")),
        "s/true": ("OnesLike", ("s/same",)),
        "s": ("Select", ("s/true", "s/stop", "s/surrogate/Tanh")),
        "y": ("Identity", ("s",)),
    }
    key = main.node("s").attr("_gradient_op_type")
    assert key is not None
    assert key.s == b"AddN"
    assert result.report["rules"][0]["emit"] == "construction"
    assert result.report["consumer"] == {"session": [], "tape": []}
    assert provenance.shadow(main.node("s/forward")) == "rule 1"


def test_a_formula_of_unknown_shape_is_repeated_to_that_of_the_op() -> None:
    main = applied(surrogate_rule(formula="sum(x)"), *ONE).model.graphs[0].main
    assert main.node("s").inputs[2] == "s/repeat/BroadcastTo"
    assert main.node("s/repeat/Shape").inputs == ("s/stop",)
    add = (X, node("v", "Placeholder"), node("a", "AddV2", "x", "v"))
    for formula, repeated in (("x0 * x1", False), ("x0", True)):
        found = applied(surrogate_rule(formula=formula, match={"op": "AddV2"}), *add).model.graphs[
            0
        ]
        assert ("a/repeat/BroadcastTo" in found.main.by_name) == repeated


def test_constants_wait_in_the_loop_that_the_op_decides_for() -> None:
    loop = v1_loop("x", node("s", "Sign", "merge"), decides="s", gives="switch:1")
    main = applied(surrogate_rule(), X, *loop).model.graphs[0].main
    assert main.node("s/surrogate/in").inputs == ("merge",)
    assert main.node("s/surrogate/Const").inputs == ("^s/surrogate/in",)


def test_a_match_as_one_op() -> None:
    nodes = (X, node("g", "Sigmoid", "x"), node("m", "Mul", "g", "x"))
    keys = {"formula": "relu(x)", "match": {"pattern": "x:_ -> g:Sigmoid -> m:Mul; x -> m"}}
    main = applied(surrogate_rule(on="match", **keys), *nodes).model.graphs[0].main
    assert main.node("m/surrogate/Relu").inputs == ("x",)
    assert main.node("m/forward").inputs == ("g", "x")
    assert provenance.shadow(main.node("g"))


def test_in_a_function_that_is_differentiated_as_a_whole() -> None:
    inner = function("f", ["a"], [node("s", "Sign", "a")], {"out": "s:y:0"})
    result = applied(surrogate_rule(), X, node("call", "f", "x"), functions=[inner])
    body = result.model.graphs[0].functions["f"]
    assert body.node("s").op.startswith("graphpatch_formula_")
    assert body.node("s").inputs == ("s/surrogate/Tanh:y:0", "s/stop:output:0")
    assert result.report["rules"][0]["emit"] == "function"


def test_what_carries_the_gradient_is_chosen_by_emit() -> None:
    for emit, travels in (("auto", "construction"), ("attr", "construction"), ("function",) * 2):
        result = applied(surrogate_rule(emit=emit), *ONE)
        assert result.report["rules"][0]["emit"] == travels


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("dy * x", "dy0 is not an input: a surrogate is a formula of x0, x1, ..."),
        ("y", "override_gradient takes one of y and dy"),
        ("3", "nothing flows back through '3'; stop_gradient says that"),
        ("x + (x > 0)", "takes numbers, and this is a condition"),
        ("round(x) + floor(x)", "nothing flows back through"),
        ("sign(x) * stop(x)", "nothing flows back through"),
        ("where(x > 0, 1, 2)", "nothing flows back through"),
        ("broadcast_like(1, x)", "nothing flows back through"),
        ("tanh(", "column 6"),
        ("tahn(x)", "nearest: tanh"),
        ("x3", "Sign 's' has no x3; its only input is x0"),
        (["x"], "surrogate_gradient"),
    ],
)
def test_formulas_that_are_refused(formula: Any, said: str) -> None:
    with pytest.raises(GraphpatchError) as error:
        applied(surrogate_rule(formula=formula), *ONE)
    assert said in str(error.value)


CAST = node("c", "Cast", "x", SrcT="float32", DstT="int32")
REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("an integer", (X, CAST), {"match": {"op": "Cast"}}, "is int32, which carries no gradient"),
    (
        "several outputs",
        (X, node("u", "Unpack", "x", num=2)),
        {"match": {"op": "Unpack"}},
        "has 2 outputs; surrogate_gradient needs one",
    ),
    ("a placeholder", (X,), {"match": {"name": "x"}}, "its value comes from outside"),
    (
        "the border of a loop",
        (X, node("e", "Enter", "x", frame_name="f")),
        {"match": {"op": "Enter"}},
        "leads into or out of a loop or branch",
    ),
    (
        "an input that is no float",
        (X, CAST, node("g", "GatherV2", "x", "c", "c", Tparams="float32", Tindices="int32",
                       Taxis="int32")),
        {"match": {"op": "GatherV2"}, "formula": "x1 * 2"},
        "formulas compute in",
    ),
    ("at", ONE, {"at": "inputs"}, "patch.at does not go with surrogate_gradient"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "keys", "said"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED]
)
def test_ops_that_are_refused(nodes: Any, keys: Any, said: str) -> None:
    with pytest.raises(GraphpatchError) as error:
        applied(surrogate_rule(**keys), *nodes)
    assert said in str(error.value)


def test_functions_know_fewer_gradients() -> None:
    inner = function("f", ["a"], [node("s", "Sign", "a")], {"out": "s:y:0"})
    call = (X, node("call", "f", "x"))
    with pytest.raises(PatchError, match=r"no gradient of SelectV2, of which the formula is made"):
        applied(surrogate_rule(formula="clip(x, -1, 1)"), *call, functions=[inner])
    with pytest.raises(PatchError, match=r"there a function carries it"):
        applied(surrogate_rule(emit="attr"), *call, functions=[inner])


def test_not_twice_on_one_op() -> None:
    model = applied(surrogate_rule(), *ONE).model
    with pytest.raises(PatchError, match="no gradient reaches Sign 's/forward' any more"):
        graphpatch.apply([surrogate_rule("x", {"op": "Sign"}, name="again")], model)


def test_the_same_file_on_every_run() -> None:
    once, again = (applied(surrogate_rule(), *ONE).model.graphs[0] for _ in range(2))
    assert graphs.written(once) == graphs.written(again)


def test_on_goes_with_it() -> None:
    patch = {"backward_as": {}, "on": "match"}
    with pytest.raises(RulesError, match="does not go with backward_as"):
        rules_from([{"match": {"pattern": "a:Relu -> b:Relu"}, "patch": patch}])


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
WITH_MORE = {
    *(
        "forward",
        "own",
        "quantile",
        "normal_like",
        "uniform_like",
        "split",
        "concat",
        "gather",
        "transpose",
    ),
    *("conv2d", "conv2d_transpose", "depthwise_conv2d", "depthwise_conv2d_transpose", "avg_pool"),
    *("avg_pool_transpose", "max_pool", "max_pool_transpose", "bias_add", "matmul", "transpose"),
}
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
    body = graphs.graph_of(X, *made.nodes).main
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
