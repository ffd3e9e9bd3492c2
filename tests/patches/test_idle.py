"""Rules that change nothing say so, and those that change something do not."""

from __future__ import annotations

import math
from typing import Any

import pytest

import graphpatch
from tests import graphs
from tests.graphs import node, sized
from tests.patches.one_op import applied, net, on_op

IDLE: dict[str, Any] = {
    "scale": {"scale": 1},
    "identity": "identity",
    "clip": {"clip": {"min": -math.inf, "max": math.inf}},
    "dy": {"formula": "dy"},
    "products": {"formula": "1 * dy / 1 - (2 - 2)"},
    "power": {"formula": "dy ** 1"},
    "bounds": {"formula": "minimum(inf, maximum(dy, -inf))"},
    "chosen": {"formula": "where(1 < 2, dy, 0)"},
    "both": {"formula": "where(x > 0, dy, dy)"},
    "constant": {"formula": "k * dy", "constants": {"k": 1}},
    "a list": {"formula": ["dy"]},
}
BUSY: dict[str, Any] = {
    "scale": {"scale": 2},
    "noise": {"gradient_noise": {"stddev": 0.1}},
    "clip": {"clip": {"min": -math.inf, "max": 1}},
    "NaN where x is infinite": {"formula": "dy + 0 * x"},
    "zero": "zero",
    "one side": {"formula": "where(x > 0, dy, 0)"},
    "the tensor": {"formula": "x"},
    "a key": {"registered": "Neg"},
}


def notes(patch: dict[str, Any], *nodes: Any) -> list[str]:
    rule = {"name": "r", "match": {"name": "a"}, "patch": patch}
    given = nodes or (node("a", "Tanh", "x"),)
    model = graphs.graphdef(node("x", "Placeholder"), *given)
    found = graphpatch.apply([rule], model).report["notes"]
    return [note for note in found if "changes nothing" in note]


@pytest.mark.parametrize("case", IDLE)
@pytest.mark.parametrize("at", ["outputs", "inputs"])
def test_a_filter_that_gives_dy_is_named(case: str, at: str) -> None:
    told = notes({"filter_gradient": IDLE[case], "at": at})
    assert told == ["rule 'r' changes nothing: its gradient gives dy as it comes"]


@pytest.mark.parametrize("case", BUSY)
def test_a_filter_that_gives_something_else_is_not(case: str) -> None:
    assert notes({"filter_gradient": BUSY[case]}) == []


OWN, THEIRS = "dy is the own gradient of these ops", "Tanh is the gradient of these ops already"
KEYED = {"_gradient_op_type": "Neg"}
# The gradient of an override, the op, and why it is idle there.
OVERRIDES: list[tuple[Any, str, dict[str, Any], str]] = [
    *((gradient, op, attrs, said) for gradient in ("identity", {"formula": "dy"})
      for op, attrs, said in (("Identity", {}, OWN), ("Tanh", {}, ""), ("Identity", KEYED, ""))),
    *((gradient, op, attrs, said) for gradient in ("Tanh", {"registered": "Tanh"})
      for op, attrs, said in (("Tanh", {}, THEIRS), ("Sigmoid", {}, ""), ("Tanh", KEYED, ""),
                              ("Neg", {"_gradient_op_type": "Tanh"}, THEIRS))),
]  # fmt: skip


@pytest.mark.parametrize(("gradient", "op", "attrs", "said"), OVERRIDES)
def test_an_override_is_idle_where_it_is_there(
    gradient: Any, op: str, attrs: Any, said: str
) -> None:
    told = notes({"override_gradient": gradient}, node("a", op, "x", **attrs))
    assert told == ([f"rule 'r' changes nothing: {said}"] if said else [])


@pytest.mark.parametrize("op_type", ["EnsureShape", "Identity"])
def test_a_called_function_with_an_op_that_has_no_gradient_there_is_named(op_type: str) -> None:
    inner = node("e", op_type, "x", **({"shape": sized(3)} if op_type == "EnsureShape" else {}))
    call = node("call", "PartitionedCall", "x", Tin=["float32"], Tout=["float32"])
    call.attr["f"].func.name = "f"
    body = graphs.function("f", ["x"], [inner], {"y": "e:output:0"})
    rule = on_op("Relu", {"override_gradient": "guided_relu"})
    result = applied(rule, [*net("x:Placeholder r:Relu(call)"), call], functions=[body])
    notes = [note for note in result.report["notes"] if "no gradient of EnsureShape there" in note]
    assert len(notes) == (op_type == "EnsureShape")
