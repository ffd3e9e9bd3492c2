"""Ops behind a tf.custom_gradient, and rules that would patch them."""

from __future__ import annotations

from typing import Any

import pytest

import graphpatch
from graphpatch.differentiation.hidden import hidden_ops
from graphpatch.errors import PatchError
from graphpatch.protos import FunctionDef, NodeDef
from tests.graphs import const, function, graphdef, main, node
from tests.patches.one_op import net

KEY = b"CustomGradient-3"


def custom(name: str, *reads: str, key: bytes | None = KEY) -> Any:
    """The IdentityN that tf.custom_gradient leaves."""
    keyed = {} if key is None else {"_gradient_op_type": key}
    return node(name, "IdentityN", *reads, T=["float32"] * len(reads), **keyed)


# As tf.nn.swish leaves it, with the Identity that nothing reads.
PLAIN = (const("axis"), *net("""x:Placeholder s:Sigmoid(x) m:Mul(x, s) dangling:Identity(m)
    loss:Sum(custom, axis)"""))  # fmt: skip
SWISH = (*PLAIN, custom("custom", "m", "x"))
BOTH = {"s": "custom", "m": "custom"}

# Of each graph the ops that no gradient reaches, each with the IdentityN that leads past it.
HIDDEN: dict[str, tuple[tuple[Any, ...], dict[str, str]]] = {
    "what computes the result": (SWISH, BOTH),
    "not what is read elsewhere": ((*SWISH, *net("other:Tanh(s)")), {"m": "custom"}),
    "what a shape is read of": ((*SWISH, *net("shape:Shape(m)")), BOTH),
    "what tf.gradients reads": ((*SWISH, *net("gradients/m:Tanh(s)")), BOTH),
    "not a result that is the argument":
        ((*net("x:Placeholder y:Relu(x)"), custom("custom", "y", "y")), {}),
    "two results": (
        (*net("x:Placeholder a:Relu(x) b:Tanh(x) loss:Neg(custom:1)"),
         custom("custom", "a", "b", "x")), {"a": "custom", "b": "custom"}),
    "one inside another": (
        (*net("x:Placeholder a:Relu(x) b:Tanh(inner) loss:Neg(outer)"),
         custom("inner", "a", "x"), custom("outer", "b", "x", key=b"CustomGradient-4")),
        {"a": "inner", "b": "outer", "inner": "outer"}),
    "nothing without a key": ((*PLAIN, custom("custom", "m", "x", key=None)), {}),
    "nothing with another key": ((*PLAIN, custom("custom", "m", "x", key=b"Mine")), {}),
    # tf.gradients makes zeros for the outputs that no loss is computed of: those of the arguments.
    **{f"zeros in {scope}": (
        (*net(f"""x:Placeholder relu:Relu(x) s:Sigmoid(relu) m:Mul(relu, s) loss:Neg(custom)
         {scope}/zeros_like:ZerosLike(custom:1)"""), custom("custom", "m", "relu")), BOTH)
       for scope in ("gradients", "gradients_1", "mine")},
}  # fmt: skip


@pytest.mark.parametrize("case", HIDDEN)
def test_what_is_hidden_by_what(case: str) -> None:
    nodes, expected = HIDDEN[case]
    body = main(*nodes)
    names = body.heads.names
    assert {names[index]: names[by] for index, by in hidden_ops(body).items()} == expected


@pytest.mark.parametrize(
    "patch",
    [
        *({"override_gradient": "guided_relu"}, {"filter_gradient": {"scale": 0.5}}),
        *({"stop_gradient": True}, {"straight_through": True}, {"backward_as": {"input": 0}}),
        {"surrogate_gradient": "tanh(x)"},
    ],
)
def test_a_patch_that_would_never_fire_is_refused(patch: dict[str, Any]) -> None:
    rule = {"match": {"op": "Sigmoid"}, "patch": patch}
    with pytest.raises(PatchError, match="no gradient reaches Sigmoid 's': IdentityN 'custom'"):
        graphpatch.apply([rule], graphdef(*SWISH))


def test_a_whole_match_behind_it_is_refused() -> None:
    match = {"pattern": "x:_ -> s:Sigmoid -> m:Mul; x -> m"}
    patch = {"override_gradient": {"formula": "dy"}, "on": "match"}
    with pytest.raises(PatchError, match=r"key CustomGradient-3, from tf\.custom_gradient"):
        graphpatch.apply([{"match": match, "patch": patch}], graphdef(*SWISH))


def test_the_rule_that_the_message_names_takes_the_key_off() -> None:
    first = {"match": {"op": "IdentityN", "name": "custom"}}
    first["patch"] = {"override_gradient": "default"}
    second = {"match": {"op": "Sigmoid"}, "patch": {"filter_gradient": {"scale": 0.5}}}
    result = graphpatch.apply([first, second], graphdef(*SWISH))
    assert len(result.report["rules"]) == 2


def test_the_rule_that_the_message_names_is_for_one_function() -> None:
    """Other functions may have an IdentityN of the same name, whose key is meant."""
    sigmoid = node("s", "Sigmoid", "x", T="float32")
    inner = function(
        "f", ["x"], [sigmoid, custom("custom", "s:y:0", "x")], {"y": "custom:output:0"}
    )
    model = graphdef(*net("x:Placeholder call:f(x)"), functions=[inner])
    rule = {"match": {"op": "Sigmoid"}, "patch": {"override_gradient": "guided_relu"}}
    with pytest.raises(PatchError, match='"name": "custom", "body": "f"'):
        graphpatch.apply([rule], model)


def test_the_op_itself_can_be_patched() -> None:
    rule = {"match": {"op": "IdentityN"}, "patch": {"filter_gradient": {"scale": 0.5}}}
    assert graphpatch.apply([rule], graphdef(*SWISH)).report["rules"][0]["matches"]


# Functions that nothing calls of which TensorFlow has a gradient.


INNER = function("f", ["a"], net("relu:Relu(a)"), {"b": "relu:activations:0"})


def calling(name: str, op: str, reads: str, called: str = "f") -> NodeDef:
    """A node that names a function in its attr."""
    found = node(name, op, reads, Tin=["float32"], Tout=["float32"])
    found.attr["f"].func.name = called
    return found


G = function("g", ["a"], [calling("c", "PartitionedCall", "a")], {"b": "c:output:0"})
CALL = calling("call", "PartitionedCall", "x")


def patched(*nodes: NodeDef, functions: tuple[FunctionDef, ...] = (INNER,)) -> int:
    """How many ReLUs are patched where functions are named by these nodes."""
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
    ends = net("x:Placeholder data:Placeholder(dtype=variant)")
    report = graphpatch.apply([rule], graphdef(*ends, *nodes, functions=functions)).report
    return len(report["rules"][0]["matches"])


def test_a_patch_in_the_map_of_a_dataset_is_refused() -> None:
    mapped = calling("m", "MapDataset", "data")
    message = "TensorFlow has no gradient of MapDataset 'm', by which function f"
    with pytest.raises(PatchError, match=message):
        patched(mapped)
    assert patched(mapped, CALL) == 1  # what is called beside it


def test_a_call_in_what_a_dataset_maps_does_not_count() -> None:
    """Both main and g call f, and only a dataset calls g: what is patched fires in main."""
    mapped = calling("m", "MapDataset", "data", "g")
    assert patched(mapped, CALL, functions=(INNER, G)) == 1
    with pytest.raises(PatchError, match="no gradient of MapDataset 'm', by which function f"):
        patched(mapped, functions=(INNER, G))
