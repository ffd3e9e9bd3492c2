"""Curves of gradients: what goes in and what comes out, before and after a rule, as numbers.

A gradient that reads the op's input is drawn over it, for an upstream gradient of 1 and of -1. One
that reads the upstream gradient alone is drawn over that. Both go from -3 to 3, and further where a
number of the formula lies outside: a Relu6 has its knee at 6.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from graphpatch.errors import FormulaError, GraphpatchError
from graphpatch.gradients.formula import Formula, Literal, walk
from graphpatch.gradients.interpreter import Array, gradient, op_output, value
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.spec import (
    DefaultGradient,
    LibraryGradient,
    PythonGradient,
    RegisteredKey,
    parse_gradient,
)
from graphpatch.gradients.tensors import ConstantTensor

LOWEST, HIGHEST = -3.0, 3.0
MARGIN, FURTHEST = 2.0, 100.0  # beyond the outermost knee; what lies further out is no knee
POINTS = 61
UPSTREAM = (1.0, -1.0)
STEP = 1e-4  # of a derivative
ALPHA = 0.2  # of a LeakyRelu that does not say
# What says that a gradient is no curve: it needs other inputs, or tensors of another shape.
NO_CURVE = (FormulaError, ValueError, TypeError, LookupError)

# TensorFlow's default gradient of ops of one input.
DEFAULTS: dict[str, str | None] = {
    "Abs": "dy * sign(x)",
    "Ceil": None,
    "Elu": "where(x > 0, dy, dy * (y + 1))",
    "Exp": "dy * y",
    "Floor": None,
    "Identity": "dy",
    "LeakyRelu": "where(x > 0, dy, attr.alpha * dy)",
    "Neg": "-dy",
    "Relu": "where(x > 0, dy, 0)",
    "Relu6": "where(x > 0 and x < 6, dy, 0)",
    "Rint": None,
    "Round": None,
    "Sigmoid": "dy * y * (1 - y)",
    "Sign": "0",
    "Softplus": "dy / (1 + exp(-x))",
    "Softsign": "dy / (1 + abs(x)) ** 2",
    "Square": "dy * 2 * x",
    "StopGradient": None,
    "Tanh": "dy * (1 - y ** 2)",
}


class DrawnGradient(NamedTuple):
    """A gradient that can be drawn: the formula of dx, None for no gradient.

    `is_forward`: the formula is what the op counts as, and dx is its derivative times dy.
    """

    formula: Formula | None
    is_forward: bool = False

    def words(self, alpha: float) -> str:
        """Return the gradient in words."""
        if self.formula is None:
            return "None"
        if self.is_forward:
            return f"dy * g'(x), g(x) = {self.formula}"
        attrs = [("attr.alpha", alpha)] if "alpha" in self.formula.attrs else []
        numbers = (f"{name}={number:g}" for name, number in (*attrs, *self._numbers()))
        return ", ".join([str(self.formula), *numbers])

    def _numbers(self) -> Iterator[tuple[str, float]]:
        """Yield the parameters and the constants of one element, each with its number."""
        for name, number in self.formula.values if self.formula is not None else ():
            if not isinstance(number, ConstantTensor):
                yield name, number
            elif math.prod(number.shape) == 1 and not number.dtype.startswith("complex"):
                yield name, float(number.array().item())

    @property
    def reads_op(self) -> bool:
        """Return whether it reads more than the upstream gradient."""
        return self.formula is not None and bool(self.formula.variables & {"x0", "y0"})

    @property
    def knees(self) -> list[float]:
        """Return the numbers of the formula, at which its curve may have a knee."""
        if self.formula is None:
            return []
        trees = [tree for tree in self.formula.expressions if tree is not None]
        parts = (part for tree in trees for part in walk(tree))
        literals = [part.value for part in parts if isinstance(part, Literal)]
        numbers = [number for _, number in self._numbers()]
        return [float(number) for number in (*literals, *numbers) if math.isfinite(number)]

    def points(
        self, op_type: str, alpha: float, dy: float | None, across: Array
    ) -> list[list[float]] | None:
        """Return its curve over x for this dy, or over dy without one; None for no gradient.

        Raises FormulaError where it is no curve: numpy does not compute it, or an element of dx
        depends on other elements.
        """
        if self.formula is None:
            return None
        dx = self._dx(op_type, alpha, dy, across)
        if dx is None:
            return None
        part = self._dx(op_type, alpha, dy, across[1:-1])
        if dx.shape != across.shape or part is None or not np.array_equal(dx[2:-2], part[1:-1]):
            raise FormulaError("each element depends on others")
        if not np.isfinite(dx).all():
            raise FormulaError("it is not finite")
        return [[round(float(a), 3), round(float(b), 3)] for a, b in zip(across, dx, strict=True)]

    def _dx(self, op_type: str, alpha: float, dy: float | None, across: Array) -> Array | None:
        assert self.formula is not None
        x = np.ones_like(across) if dy is None else across
        upstream = across if dy is None else np.full_like(across, dy)
        if self.is_forward:
            up, down = (value(self.formula, [x + step]) for step in (STEP, -STEP))
            return np.asarray(upstream * (up - down) / (2 * STEP))
        reads_y = "y0" in self.formula.variables
        if reads_y and op_type not in DEFAULTS:
            raise FormulaError("it is no op of one element")
        attrs = {"alpha": alpha}
        y = op_output(op_type, [x], attrs) if reads_y else x
        return gradient(self.formula, [x], [y], [upstream], attrs)[0]


def plot(
    patch: Mapping[str, Any] | None, op_type: str, alpha: float = ALPHA
) -> dict[str, Any] | None:
    """Return the curves of an op type before and after a patch; None where no curve can say it.

    `alpha` is that attr of a LeakyRelu.
    `words` has both gradients in words, `axis` what goes to the right, and `curves` the points of
    each side, for each upstream gradient `dy` where x goes to the right.
    """
    before = IDENTITY if "filter_gradient" in (patch or {}) else _default_gradient(op_type)
    after = _patched(patch, op_type) if patch else None
    gradients = {"before": before, "after": after}
    sides = {side: drawn for side, drawn in gradients.items() if drawn is not None}
    if not sides or (patch and after is None):
        return None
    axis = "x" if any(drawn.reads_op for drawn in sides.values()) else "dy"
    across = _range_with_knees([knee for drawn in sides.values() for knee in drawn.knees])
    try:
        curves = [
            {"side": side, "dy": dy, "points": drawn.points(op_type, alpha, dy, across)}
            for side, drawn in sides.items()
            for dy in ((None,) if axis == "dy" else UPSTREAM)
        ]
    except NO_CURVE:
        return None
    words = {side: drawn.words(alpha) for side, drawn in sides.items()}
    low, high = float(across[0]), float(across[-1])
    return {"axis": axis, "low": low, "high": high, "words": words, "curves": curves}


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
    """Return TensorFlow's default gradient of an op type."""
    if op_type not in DEFAULTS:
        return None
    text = DEFAULTS[op_type]
    return DrawnGradient(None if text is None else Formula.parse(text))


def _patched(patch: Mapping[str, Any], op_type: str) -> DrawnGradient | None:
    if "straight_through" in patch:
        return IDENTITY
    if "stop_gradient" in patch or "freeze" in patch:
        return DrawnGradient(None)
    if "surrogate_gradient" in patch:
        return DrawnGradient(Formula.parse(str(patch["surrogate_gradient"])), is_forward=True)
    kinds = [kind for kind in ("override_gradient", "filter_gradient") if kind in patch]
    try:
        drawn = parse_gradient(patch[kinds[0]]) if kinds else None
    except GraphpatchError:
        return None
    if isinstance(drawn, DefaultGradient | RegisteredKey):
        return _default_gradient(drawn.key if isinstance(drawn, RegisteredKey) else op_type)
    if drawn is None or isinstance(drawn, PythonGradient):
        return None
    own = drawn.for_op(op_type)
    entry = LIBRARY.get(own.name) if isinstance(own, LibraryGradient) else None
    is_whole = entry is not None and not entry.elementwise and entry.name != "zero"
    return None if is_whole else DrawnGradient(own.formula)


IDENTITY = DrawnGradient(Formula.parse("dy"))
