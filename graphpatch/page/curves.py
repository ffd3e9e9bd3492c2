"""Curves of gradients: what goes in and what comes out, before and after a rule, as numbers.

A gradient that reads the op's input is drawn over it, for an upstream gradient of 1 and of -1. One
that reads the upstream gradient alone is drawn over that. Both go from -3 to 3, and further where a
number of the formula lies outside: a Relu6 has its knee at 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphpatch.errors import GraphpatchError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.functions import FUNCTIONS
from graphpatch.gradients.interpreter import Array, gradient, value
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.spec import (
    DefaultGradient,
    LibraryGradient,
    PythonGradient,
    RegisteredKey,
    parse_gradient,
)
from graphpatch.gradients.syntax import Call, Literal, walk
from graphpatch.gradients.tensors import ConstantTensor

LOWEST, HIGHEST = -3.0, 3.0
MARGIN, FURTHEST = 2.0, 100.0  # beyond the outermost knee; what lies further out is no knee
POINTS = 61
UPSTREAM = (1.0, -1.0)

# Ops of one input: what they compute, and TensorFlow's default gradient of them.
CURVES: dict[str, tuple[Callable[[Array], Array], str | None]] = {
    "Abs": (np.abs, "dy * sign(x)"),
    "Ceil": (np.ceil, None),
    "Elu": (lambda x: np.where(x > 0, x, np.expm1(x)), "where(x > 0, dy, dy * (y + 1))"),
    "Exp": (np.exp, "dy * y"),
    "Floor": (np.floor, None),
    "Identity": (lambda x: x, "dy"),
    "LeakyRelu": (lambda x: np.where(x > 0, x, 0.2 * x), "where(x > 0, dy, 0.2 * dy)"),
    "Neg": (np.negative, "-dy"),
    "Relu": (lambda x: np.maximum(x, 0), "where(x > 0, dy, 0)"),
    "Relu6": (lambda x: np.clip(x, 0, 6), "where(x > 0 and x < 6, dy, 0)"),
    "Rint": (np.rint, None),
    "Round": (np.rint, None),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), "dy * y * (1 - y)"),
    "Sign": (np.sign, "0"),
    "Softplus": (lambda x: np.log1p(np.exp(x)), "dy / (1 + exp(-x))"),
    "Softsign": (lambda x: x / (1 + np.abs(x)), "dy / (1 + abs(x)) ** 2"),
    "Square": (np.square, "dy * 2 * x"),
    "StopGradient": (lambda x: x, None),
    "Tanh": (np.tanh, "dy * (1 - y ** 2)"),
}


@dataclass(frozen=True, slots=True)
class DrawnGradient:
    """A gradient that can be drawn: in words, and dx of given x, y and dy; None gives no tensor."""

    words: str
    dx: Callable[[Array, Array, Array], Array | None]
    reads: frozenset[str] = frozenset({"dy0"})
    knees: tuple[float, ...] = ()


def plot(patch: Mapping[str, Any] | None, op_type: str) -> dict[str, Any] | None:
    """Return the curves of an op type before and after a patch; None where no curve can say it.

    `words` has both gradients in words, `axis` what goes to the right, and `curves` the points of
    each side, for each upstream gradient `dy` where x goes to the right.
    """
    filters = "filter_gradient" in (patch or {})
    before = IDENTITY if filters else _default_gradient(op_type)
    after = _patched(patch, op_type) if patch else None
    gradients = {"before": before, "after": after}
    sides = {side: gradient for side, gradient in gradients.items() if gradient is not None}
    if not sides or (patch and after is None):
        return None
    axis = "x" if any(gradient.reads & {"x0", "y0"} for gradient in sides.values()) else "dy"
    across = _range_with_knees([knee for gradient in sides.values() for knee in gradient.knees])
    curves = [
        {"side": side, "dy": dy, "points": _points(gradient, op_type, dy, across)}
        for side, gradient in sides.items()
        for dy in ((None,) if axis == "dy" else UPSTREAM)
    ]
    if any(gradient.reads & {"y0"} and op_type not in CURVES for gradient in sides.values()):
        return None
    words = {side: gradient.words for side, gradient in sides.items()}
    low, high = float(across[0]), float(across[-1])
    about = {"op": op_type, "axis": axis, "low": low, "high": high, "words": words}
    return {**about, "curves": curves}


def _range_with_knees(knees: Sequence[float]) -> Array:
    """Return the numbers over which gradients are drawn, knees among them."""
    near = [knee for knee in knees if abs(knee) <= FURTHEST]
    outside = [knee for knee in near if not LOWEST < knee < HIGHEST]
    low = min([LOWEST, *(knee - MARGIN for knee in outside if knee < 0)])
    high = max([HIGHEST, *(knee + MARGIN for knee in outside if knee > 0)])
    beside = [knee + step for knee in near for step in (-1e-3, 0, 1e-3)]
    inside = [number for number in beside if low <= number <= high]
    return np.unique(np.concatenate([np.linspace(low, high, POINTS), inside]))


def _default_gradient(op_type: str) -> DrawnGradient | None:
    """TensorFlow's default gradient of an op type."""
    if op_type not in CURVES:
        return None
    text = CURVES[op_type][1]
    return GIVES_NONE if text is None else _of_formula(Formula.parse(text))


def _patched(patch: Mapping[str, Any], op_type: str) -> DrawnGradient | None:
    if "straight_through" in patch:
        return IDENTITY
    if "stop_gradient" in patch or "freeze" in patch:
        return GIVES_NONE
    if "surrogate_gradient" in patch:
        return _derivative(str(patch["surrogate_gradient"]))
    for kind in ("override_gradient", "filter_gradient"):
        if kind in patch:
            return _of_spec(patch[kind], op_type)
    return None


def _of_spec(spec: Any, op_type: str) -> DrawnGradient | None:
    try:
        gradient = parse_gradient(spec)
    except GraphpatchError:
        return None
    if isinstance(gradient, DefaultGradient):
        return _default_gradient(op_type)
    if isinstance(gradient, RegisteredKey):
        return _default_gradient(gradient.key)
    if isinstance(gradient, PythonGradient):
        return None
    own = gradient.for_op(op_type)
    entry = LIBRARY.get(own.name) if isinstance(own, LibraryGradient) else None
    if entry is None:
        is_curve = _is_by_element(own.formula)
    else:
        is_curve = entry.elementwise or entry.name == "zero"
    return _of_formula(own.formula) if is_curve else None


def _is_by_element(formula: Formula) -> bool:
    """Return whether each element of dx is computed of the same one of x, y and dy."""
    parts = (
        part
        for expression in formula.expressions
        if expression is not None
        for part in walk(expression)
    )
    called = {part.function for part in parts if isinstance(part, Call)}
    functions = [FUNCTIONS[name] for name in called & FUNCTIONS.keys()]  # and operators, which are
    return not formula.tensors and all(
        not expression.options and {*expression.kinds} <= {"number", "truth"}
        for expression in functions
    )


def _of_formula(formula: Formula) -> DrawnGradient | None:
    """Return a formula of one input that reads x, y and dy alone, and numbers."""
    if formula.attrs or formula.variables - {"x0", "y0", "dy0"} or not formula.alike:
        return None
    if any(isinstance(value, ConstantTensor) for _, value in formula.values):
        return None  # another gradient for each element

    def dx(x: Array, y: Array, dy: Array) -> Array | None:
        return gradient(formula, [x], [y], [dy])[0]

    parameters = [f"{name}={value:g}" for name, value in formula.values]
    words = ", ".join([str(formula), *parameters])
    return DrawnGradient(words, dx, formula.variables, _knees(formula))


def _knees(formula: Formula) -> tuple[float, ...]:
    """Return the numbers of a formula, at which its curve may have a knee."""
    parts = [
        part
        for expression in formula.expressions
        if expression is not None
        for part in walk(expression)
    ]
    literals = [part.value for part in parts if isinstance(part, Literal)]
    values = [value for _, value in formula.values if not isinstance(value, ConstantTensor)]
    return tuple(float(value) for value in (*literals, *values) if math.isfinite(value))


def _derivative(text: str) -> DrawnGradient | None:
    """Return the derivative of g, by differences."""
    formula = Formula.parse(text)
    if formula.variables != {"x0"} or formula.expressions[0] is None:
        return None
    if not _is_by_element(formula):
        return None
    half = 1e-4

    def dx(x: Array, y: Array, dy: Array) -> Array | None:
        up, down = (value(formula, [x + step]) for step in (half, -half))
        return np.asarray(dy * (up - down) / (2 * half))

    words = f"dy * g'(x), g(x) = {text}"
    return DrawnGradient(words, dx, frozenset({"x0", "dy0"}), _knees(formula))


def _points(
    back: DrawnGradient, op_type: str, dy: float | None, across: Array
) -> list[list[float]] | None:
    x = np.ones_like(across) if dy is None else across
    upstream = across if dy is None else np.full_like(across, dy)
    y = CURVES[op_type][0](x) if op_type in CURVES else x
    try:
        dx = back.dx(x, y, upstream)
    except GraphpatchError:
        return None
    if dx is None or not np.isfinite(dx).all():
        return None
    return [[round(float(a), 3), round(float(b), 3)] for a, b in zip(across, dx, strict=True)]


IDENTITY = DrawnGradient("dy", lambda x, y, dy: dy)
GIVES_NONE = DrawnGradient("None", lambda x, y, dy: None)
