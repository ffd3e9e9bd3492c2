"""Rules of recipes for activations that a graph has as several ops: leaky and parametric ReLUs.

Each counts as one op that reads x0 = x and x1 = the slope below 0. A rule for single ops comes
behind them, and leaves their ops alone: `"taken": false`.
"""

from __future__ import annotations

from typing import Any

from graphpatch.gradients.library import LIBRARY

PATTERNS = ("leaky_relu", "prelu")

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


def several_ops(name: str, gradient: str, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """The rule of a recipe that gives leaky and parametric ReLUs the like of a gradient."""
    entry = LIBRARY[gradient]
    known = {one.name: one.default for one in entry.parameters} | (given or {})
    formula: dict[str, Any] = {"formula": [FORMULAS[gradient], None]}
    formula |= {"constants": known} if known else {}
    return {
        "name": f"@{name}: leaky and parametric ReLUs",
        "match": {"pattern": [f"@{one}" for one in PATTERNS]},
        "patch": {"override_gradient": formula, "on": "match"},
        "expect": {"min": 0},
    }
