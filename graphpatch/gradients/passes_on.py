"""Whether a formula gives dy as it comes, with the values that its parameters have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias
from typing import Literal as OneOf

from graphpatch.gradients.expression import (
    Call,
    Expression,
    Literal,
    ParameterRef,
    Scalar,
    Variable,
)
from graphpatch.gradients.folding import fold
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.functions import look_up
from graphpatch.gradients.spec import Gradient, InlineFormula, LibraryGradient

DY: Final = "dy0"
RANDOM = frozenset({"normal_like"})  # finite, so that 0 times it is 0

Known: TypeAlias = Scalar | OneOf["dy0"] | None
"""What a part of a formula is: a number, dy, or neither."""


def passes_on(gradient: Gradient) -> bool:
    """Whether a gradient of ours gives each input dy, as far as its formula shows it."""
    if not isinstance(gradient, InlineFormula | LibraryGradient):
        return False
    formula = gradient.formula
    return len(formula.expressions) == 1 and _known(formula.expressions[0], formula) == DY


def _known(expression: Expression | None, formula: Formula) -> Known:
    if isinstance(expression, Literal):
        return expression.value
    if isinstance(expression, ParameterRef):
        value = dict(formula.values).get(expression.name)
        return value if isinstance(value, bool | int | float) else None
    if isinstance(expression, Variable):
        return DY if expression.name == DY else None
    if not isinstance(expression, Call):
        return None
    parts = [_known(one, formula) for one in expression.arguments]
    if numbers := _numbers(parts) if not expression.options else ():
        return fold(look_up(expression.function), numbers)
    return _of_call(expression, parts)


def _numbers(parts: Sequence[Known]) -> list[Scalar]:
    found = [one for one in parts if isinstance(one, bool | int | float)]
    return found if len(found) == len(parts) else []


def _of_call(call: Call, parts: Sequence[Known]) -> Known:
    """What a call gives that leaves dy as it is, or that is 0."""
    match call.function, *parts:
        case ("*", "dy0", 1) | ("*", 1, "dy0") | ("/", "dy0", 1) | ("**", "dy0", 1):
            return DY
        case ("+", "dy0", 0) | ("+", 0, "dy0") | ("-", "dy0", 0):
            return DY
        case ("clip", "dy0", low, high) if (low, high) == (-math.inf, math.inf):
            return DY
        case ("minimum", "dy0", math.inf) | ("minimum", math.inf, "dy0"):
            return DY
        case ("maximum", "dy0", bound) | ("maximum", bound, "dy0") if bound == -math.inf:
            return DY
        case ("where", "dy0", *_):
            return None
        case ("where", bool(), _, _):
            return parts[1] if parts[0] else parts[2]
        case ("where", _, "dy0", "dy0"):
            return DY
        case ("*", 0, None) | ("*", None, 0):
            is_random = [isinstance(o, Call) and o.function in RANDOM for o in call.arguments]
            return 0.0 if any(is_random) else None
    return None
