"""Ops behind a tf.custom_gradient, and rules that would patch them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.differentiation.hidden import hidden_ops
from graphpatch.errors import PatchError
from tests.graphs import const, function, graphdef, main, node, saved

KEY = b"CustomGradient-3"
X = node("x", "Placeholder", dtype="float32")


def floats(count: int) -> dict[str, Any]:
    return {"T": ["float32"] * count}


# As tf.nn.swish leaves it, with the Identity that nothing reads.
SWISH = (
    X,
    node("s", "Sigmoid", "x", T="float32"),
    node("m", "Mul", "x", "s", T="float32"),
    node("dangling", "Identity", "m", T="float32"),
    node("custom", "IdentityN", "m", "x", _gradient_op_type=KEY, **floats(2)),
    node("loss", "Sum", "custom", "axis", T="float32"),
    const("axis"),
)


def hidden(*nodes: Any) -> dict[str, str]:
    body = main(*nodes)
    names = body.heads.names
    return {names[index]: names[by] for index, by in sorted(hidden_ops(body).items())}


def test_what_computes_the_result_is_hidden_and_the_argument_is_not() -> None:
    assert hidden(*SWISH) == {"s": "custom", "m": "custom"}


def test_what_is_read_elsewhere_is_reached() -> None:
    assert hidden(*SWISH, node("other", "Tanh", "s", T="float32")) == {"m": "custom"}
    assert hidden(*SWISH, node("shape", "Shape", "m", T="float32")) == {
        "s": "custom",
        "m": "custom",
    }
    assert hidden(*SWISH, node("gradients/m", "Tanh", "s", T="float32")) == {
        "s": "custom",
        "m": "custom",
    }


def test_a_result_that_is_the_argument_is_reached() -> None:
    custom = node("custom", "IdentityN", "y", "y", _gradient_op_type=KEY, **floats(2))
    assert hidden(X, node("y", "Relu", "x", T="float32"), custom) == {}


def test_two_results() -> None:
    found = hidden(
        X,
        node("a", "Relu", "x", T="float32"),
        node("b", "Tanh", "x", T="float32"),
        node("custom", "IdentityN", "a", "b", "x", _gradient_op_type=KEY, **floats(3)),
        node("loss", "Neg", "custom:1", T="float32"),
    )
    assert found == {"a": "custom", "b": "custom"}


@pytest.mark.parametrize("scope", ["gradients", "gradients_1", "mine"])
def test_what_tf_gradients_reads_makes_no_result(scope: str) -> None:
    """It makes zeros for the outputs that no loss is computed of: those of the arguments."""
    found = hidden(
        X,
        node("relu", "Relu", "x", T="float32"),
        node("s", "Sigmoid", "relu", T="float32"),
        node("m", "Mul", "relu", "s", T="float32"),
        node("custom", "IdentityN", "m", "relu", _gradient_op_type=KEY, **floats(2)),
        node("loss", "Neg", "custom", T="float32"),
        node(f"{scope}/zeros_like", "ZerosLike", "custom:1", T="float32"),
    )
    assert found == {"m": "custom", "s": "custom"}


def test_one_inside_another() -> None:
    found = hidden(
        X,
        node("a", "Relu", "x", T="float32"),
        node("inner", "IdentityN", "a", "x", _gradient_op_type=KEY, **floats(2)),
        node("b", "Tanh", "inner", T="float32"),
        node("outer", "IdentityN", "b", "x", _gradient_op_type=b"CustomGradient-4", **floats(2)),
        node("loss", "Neg", "outer", T="float32"),
    )
    assert found == {"a": "inner", "b": "outer", "inner": "outer"}


def test_another_key_and_none_hide_nothing() -> None:
    plain = [one for one in SWISH if one.name != "custom"]
    assert hidden(*plain, node("custom", "IdentityN", "m", "x", **floats(2))) == {}
    mine = node("custom", "IdentityN", "m", "x", _gradient_op_type=b"Mine", **floats(2))
    assert hidden(*plain, mine) == {}


def swish_in(folder: Path) -> graphpatch.Model:
    path = folder / "model.pb"
    path.write_bytes(graphdef(*SWISH).SerializeToString())
    return graphpatch.load(path)


PATCHES: list[dict[str, Any]] = [
    {"override_gradient": "guided_relu"},
    {"filter_gradient": {"scale": 0.5}},
    {"stop_gradient": True},
    {"straight_through": True},
    {"surrogate_gradient": "tanh(x)"},
    {"backward_as": {"input": 0}},
]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: next(iter(patch)))
def test_a_patch_that_would_never_fire_is_refused(tmp_path: Path, patch: dict[str, Any]) -> None:
    rule = {"match": {"op": "Sigmoid"}, "patch": patch}
    with pytest.raises(PatchError, match="no gradient reaches Sigmoid 's': IdentityN 'custom'"):
        graphpatch.apply([rule], swish_in(tmp_path))


def test_a_whole_match_behind_it_is_refused(tmp_path: Path) -> None:
    match = {"pattern": "x:_ -> s:Sigmoid -> m:Mul; x -> m"}
    patch = {"override_gradient": {"formula": "dy"}, "on": "match"}
    with pytest.raises(PatchError, match=r"key CustomGradient-3, from tf\.custom_gradient"):
        graphpatch.apply([{"match": match, "patch": patch}], swish_in(tmp_path))


def test_the_rule_that_the_message_names_takes_the_key_off(tmp_path: Path) -> None:
    first = {
        "match": {"op": "IdentityN", "name": "custom"},
        "patch": {"override_gradient": "default"},
    }
    second = {"match": {"op": "Sigmoid"}, "patch": {"filter_gradient": {"scale": 0.5}}}
    result = graphpatch.apply([first, second], swish_in(tmp_path))
    assert len(result.report["rules"]) == 2


def test_the_rule_that_the_message_names_is_for_one_function(tmp_path: Path) -> None:
    """Other functions may have an IdentityN of the same name, whose key is meant."""
    sigmoid = node("s", "Sigmoid", "x", T="float32")
    custom = node("custom", "IdentityN", "s:y:0", "x", _gradient_op_type=KEY, **floats(2))
    inner = function("f", ["x"], [sigmoid, custom], {"y": "custom:output:0"})
    path = saved(tmp_path, X, node("call", "f", "x"), functions=[inner])
    rule = {"match": {"op": "Sigmoid"}, "patch": {"override_gradient": "guided_relu"}}
    with pytest.raises(PatchError, match='"name": "custom", "body": "f"'):
        graphpatch.apply([rule], path)


def test_the_op_itself_can_be_patched(tmp_path: Path) -> None:
    rule = {"match": {"op": "IdentityN"}, "patch": {"filter_gradient": {"scale": 0.5}}}
    assert graphpatch.apply([rule], swish_in(tmp_path)).report["rules"][0]["matches"]
