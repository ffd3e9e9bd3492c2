"""Rules of recipes for activations that a graph has as several ops.

A leaky or parametric ReLU counts as one op that reads x0 = x and x1 = the slope below 0; swish and
GELU as one op that reads x. A rule for single ops comes behind them, and leaves their ops alone:
`NOT_INSIDE_OTHERS`.
"""

from __future__ import annotations

from typing import Any

from graphpatch.gradients.library import LIBRARY

PATTERNS = ("leaky_relu", "prelu")

SMOOTH = {
    "swish": (
        "x:_ -> sigmoid:Sigmoid -> mul:Mul; x -> mul",
        "dy * sigmoid(x) * (1 + x * sigmoid(-x))",
    ),
    "hard_swish": ("@hard_swish", "dy * where(x < -3, 0, where(x > 3, 1, x / 3 + 0.5))"),
    "gelu": (
        "@gelu",
        "dy * (0.5 + 0.5 * erf(x * 0.7071067811865476)"
        " + x * exp(-0.5 * square(x)) * 0.3989422804014327)",
    ),
}
"""By what it is called: the pattern, which reads x alone, and its own gradient."""

INSIDE_OTHERS: tuple[dict[str, Any], ...] = (
    {
        "op": "Sigmoid",
        "inputs": {"0": {"op": "Mul"}},
        "consumers": {"any": {"pattern": "@swish"}},
    },
    {
        "op": "Relu6",
        "inputs": {"0": {"op": ["Add", "AddV2"]}},
        "consumers": {"any": {"consumers": {"any": {"pattern": "@hard_swish"}}}},
    },
)
"""Ops of a swish with a factor, and of a hard swish: they are left alone with it."""

NOT_INSIDE_OTHERS = {"taken": False, "not": {"any": list(INSIDE_OTHERS)}}
"""What single ops must meet besides: they are not part of an activation of several ops."""

SLOPE = "where(x0 > 0, 1, x1)"


def _of_library(name: str) -> str:
    """The formula of the library, in which the gradient of such an op stands for `own(dy)`."""
    text = LIBRARY[name].text
    assert isinstance(text, str), name
    return text.replace("own(dy)", f"dy * {SLOPE}")


FORMULAS = {
    "guided_relu": f"where(dy > 0, dy * {SLOPE}, 0)",
    **{
        name: _of_library(name)
        for name in ("deconv_relu", "rectified_gradient", "lrp_epsilon", "deeplift_batch")
    },
}
"""By the gradient of single ops, what flows back to x. The slope gets nothing."""

OF_DIFFERENCES = ("lrp_epsilon", "deeplift_batch")
"""Gradients that are quotients of what an activation gives and reads: for one of any form."""


def several_ops(
    name: str, gradient: str, given: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The rules of a recipe that give activations of several ops the like of a gradient."""
    rectifiers = [f"@{one}" for one in PATTERNS]
    formula = [FORMULAS[gradient], None]
    found = [_rule_for(f"{name}: leaky and parametric ReLUs", rectifiers, gradient, formula, given)]
    if gradient in OF_DIFFERENCES:
        found += [
            _rule_for(f"{name}: {kind}", pattern, gradient, _of_smooth(gradient, own), given)
            for kind, (pattern, own) in SMOOTH.items()
        ]
    return found


def _of_smooth(gradient: str, own: str) -> str:
    """The formula of the library, for an activation whose own gradient is this one."""
    text = LIBRARY[gradient].text
    assert isinstance(text, str), gradient
    return text.replace("own(dy)", own)


def _rule_for(
    name: str, pattern: Any, gradient: str, formula: Any, given: dict[str, Any] | None
) -> dict[str, Any]:
    known = {one.name: one.default for one in LIBRARY[gradient].parameters} | (given or {})
    spec: dict[str, Any] = {"formula": formula}
    spec |= {"constants": known} if known else {}
    return {
        "name": f"@{name}",
        "match": {"pattern": pattern},
        "patch": {"override_gradient": spec, "on": "match"},
        "expect": {"min": 0},
    }
