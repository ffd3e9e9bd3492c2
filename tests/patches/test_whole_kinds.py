"""`"on": "match"` of kinds beside override and surrogate: where they are put, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import graphpatch
from graphpatch.errors import PatchError
from tests.graphs import const, graphdef, node
from tests.patches.one_op import main_of, patched_match

SWISH = "x:_ -> sigmoid:Sigmoid -> mul:Mul; x -> mul"
X = node("x", "Placeholder")
W = node("w", "Placeholder")
ONE = (X, node("s", "Sigmoid", "x"), node("m", "Mul", "s", "x"), node("y", "Identity", "m"))
NET = (X, W, node("c", "MatMul", "x", "w"), node("r", "Relu", "c"), node("y", "Identity", "r"))
DENSE = "x:_ -> m:MatMul:0 -> r:Relu; w:_ -> m:1"


def as_one(patch: Any, *nodes: Any, pattern: str = SWISH) -> graphpatch.Result:
    return patched_match(pattern, patch, *(nodes or ONE))


def test_a_filter_behind_takes_the_name_of_the_last() -> None:
    body = main_of(as_one({"filter_gradient": {"scale": 2}}))
    assert body.node("s").inputs == ("x",)
    assert body.node("m/forward").op == "Mul"
    assert body.node("m").name == "m"


def test_before_the_match_one_op_serves_all_who_read_a_tensor() -> None:
    """Only those of the match: who else reads x gets another gradient."""
    body = main_of(as_one({"stop_gradient": True, "at": "inputs"}, *ONE, node("z", "Neg", "x")))
    assert body.node("s").inputs == ("m/stop_0",)
    assert body.node("m").inputs == ("s", "m/stop_0")
    assert body.node("m/stop_0").inputs == ("x",)
    assert body.node("z").inputs == ("x",)


def test_one_input_of_several() -> None:
    found = as_one({"stop_gradient": True, "at": "input:1"}, *NET, pattern=DENSE)
    assert main_of(found).node("c").inputs == ("x", "r/stop_1")


def test_straight_through_a_shape_that_is_kept_needs_no_repeat() -> None:
    round_ = (X, node("a", "Neg", "x"), node("b", "Round", "a"), node("y", "Tanh", "b"))
    found = as_one({"straight_through": True}, *round_, pattern="x:_ -> Neg -> Round")
    assert {"b/repeat/BroadcastTo"}.isdisjoint(one.name for one in main_of(found))
    assert not [note for note in found.report["notes"] if "not known to have the shape" in note]


def test_straight_through_a_shape_that_is_not_known_is_compared_in_each_run() -> None:
    nodes = (X, node("a", "Reshape", "x", "k"), const("k"), node("b", "Round", "a"))
    pattern = "x:_ -> a:Reshape:0; k:Const -> a -> Round"
    found = as_one({"straight_through": {"input": "x"}}, *nodes, pattern=pattern)
    assert main_of(found).node("b").inputs[2] == "b/repeat/BroadcastTo"
    assert any(
        "is not known to have the shape of x0 of its match" in note
        for note in found.report["notes"]
    )


def test_captures_are_told_once() -> None:
    [entry] = as_one({"straight_through": True}).report["rules"]
    assert [sorted(one.keys() - {"body", "op", "type"}) for one in entry["matches"]] == [
        [],
        ["captures", "inputs", "tensors"],
    ]


def shaped(*sizes: int) -> Any:
    from tests.match.test_keys import sized

    return sized(*sizes)


REFUSED: dict[str, tuple[Any, tuple[Any, ...], str, str]] = {
    "another shape": (
        {"straight_through": True},
        (
            node("x", "Placeholder", shape=shaped(2, 3)),
            node("w", "Placeholder", shape=shaped(3, 4)),
            *NET[2:],
        ),
        DENSE,
        "does not have the shape of x0, so it cannot count as the identity of it; the match",
    ),
    "no such input": (
        {"straight_through": {"input": 2}},
        NET,
        DENSE,
        "has no x2; the match r",
    ),
    "no such name": ({"straight_through": {"input": "v"}}, NET, DENSE, "has no input 'v'; the"),
    "which input is not clear": (
        {"straight_through": True},
        NET,
        "x:_ -> m:MatMul -> r:Relu",
        "it is not clear which tensor",
    ),
    "which input to filter is not clear": (
        {"filter_gradient": "zero", "at": "input:0"},
        NET,
        "x:_ -> m:MatMul -> r:Relu",
        "it is not clear which tensor is x0",
    ),
    "a filter at no input": (
        {"filter_gradient": "zero", "at": "input:7"},
        ONE,
        SWISH,
        "the match that ends in Mul 'm' has no input 7; it has 1",
    ),
    "the library on two inputs": (
        {"override_gradient": "deconv_relu"},
        NET,
        DENSE,
        "deconv_relu is for one input; the match r",
    ),
    "the library on another shape": (
        {"override_gradient": {"scale": 2}},
        NET,
        DENSE,
        "is not known to keep that of x0; the match",
    ),
    "default": ({"filter_gradient": "default"}, ONE, SWISH, '"default" takes an override off'),
    "an integer": (
        {"straight_through": True},
        (X, node("a", "Neg", "x"), node("b", "Cast", "a", SrcT="float32", DstT="int32")),
        "x:_ -> Neg -> Cast",
        "cannot count as x0: y is int32, which carries no gradient",
    ),
    "a surrogate of too many": (
        {"surrogate_gradient": "x0 * x5"},
        NET,
        DENSE,
        "has no x5; the match reads 2: x0 = x, x1 = w",
    ),
}


@pytest.mark.parametrize(("patch", "nodes", "pattern", "said"), REFUSED.values(), ids=REFUSED)
def test_refused(patch: Any, nodes: Any, pattern: str, said: str) -> None:
    with pytest.raises(PatchError) as raised:
        as_one(patch, *nodes, pattern=pattern)
    assert said in str(raised.value)


def test_a_filter_on_a_match_needs_no_slots() -> None:
    assert as_one({"filter_gradient": {"scale": 2}}, *NET, pattern="x:_ -> m:MatMul -> r:Relu")


def test_a_name_of_a_pattern_is_no_input_of_one_op() -> None:
    rule = {"match": {"op": "Sigmoid"}, "patch": {"straight_through": {"input": "x"}}}
    with pytest.raises(PatchError, match='\'x\' is a name of a pattern, for "on": "match"'):
        graphpatch.apply([rule], graphdef(*ONE))
