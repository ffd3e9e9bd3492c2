"""The options of a call (`axes=[1, 2]`, `keepdims=true`): known before there is a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphpatch.gradients.expression import Call, Expression, NumberList, Scalar
from graphpatch.gradients.functions import look_up
from graphpatch.gradients.tokens import formula_error

Evaluate = Callable[[Expression], object]

_LEAST = {"place": None, "natural": 0, "count": 1}
"""The least integer that an option of this kind may be."""


def option_values(text: str, call: Call, value_of: Evaluate) -> dict[str, object]:
    """The options of a call by name; `value_of` computes one that is not a list.

    Raises FormulaError where one is not what the function takes.
    """
    kinds: Mapping[str, str] = look_up(call.function).options
    found: dict[str, object] = {}
    for word, expression in call.options:
        if kinds[word] == "flag":
            found[word] = _bool_option(text, word, expression, value_of)
        elif kinds[word] == "axis":
            found[word] = _axis(text, word, expression, value_of, least=0)
        elif kinds[word] in _LEAST:
            found[word] = _axis(text, word, expression, value_of, _LEAST[kinds[word]])
        elif kinds[word] == "part":
            found[word] = _fraction(text, word, expression, value_of)
        else:
            found[word] = _axes_option(text, word, expression, value_of)
    if "axes" in found and "from_axis" in found:
        raise formula_error(text, call.column, f"{call.function} takes axes or from_axis, not both")
    missing = [word for word in look_up(call.function).required if word not in found]
    if missing:
        raise formula_error(text, call.column, f"{call.function} needs {missing[0]}=")
    return found


def _fraction(text: str, word: str, expression: Expression, value_of: Evaluate) -> float:
    value = _plain_number(text, word, expression, value_of)
    if isinstance(value, bool) or not 0 <= value <= 1:
        raise formula_error(text, expression.column, f"{word} is from 0 to 1, not {value:g}")
    return float(value)


def _bool_option(text: str, word: str, expression: Expression, value_of: Evaluate) -> bool:
    value = _plain_number(text, word, expression, value_of)
    if not isinstance(value, bool):
        raise formula_error(text, expression.column, f"{word} is true or false, not {value:g}")
    return value


def _axis(
    text: str, word: str, expression: Expression, value_of: Evaluate, least: int | None = None
) -> int:
    value = _plain_number(text, word, expression, value_of)
    if isinstance(value, bool) or not float(value).is_integer():
        raise formula_error(text, expression.column, f"{word}: expected an integer, found {value}")
    if least is not None and value < least:
        raise formula_error(
            text, expression.column, f"{word} counts from {least}, and this is {value:g}"
        )
    return int(value)


def _axes_option(
    text: str, word: str, expression: Expression, value_of: Evaluate
) -> tuple[int, ...]:
    items = expression.items if isinstance(expression, NumberList) else (expression,)
    axes = tuple(_axis(text, word, item, value_of) for item in items)
    if len(set(axes)) < len(axes):
        raise formula_error(text, expression.column, f"{word} names an axis twice")
    return axes


def _plain_number(text: str, word: str, expression: Expression, value_of: Evaluate) -> Scalar:
    value = value_of(expression)
    if not isinstance(value, (bool, int, float)):
        message = f"{word}: expected a number, a parameter or an attr, found a tensor"
        raise formula_error(text, expression.column, message)
    return value


def integers(text: str, numbers: NumberList, value_of: Evaluate) -> tuple[int, ...]:
    """A list of integers. Raises FormulaError where one is none."""
    return tuple(_axis(text, "an index", item, value_of) for item in numbers.items)
