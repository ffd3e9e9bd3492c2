"""A formula that reads parameters from further inputs, where they are tensors and not numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from graphpatch.gradients.expression import Call, Expression, NumberList, ParameterRef, Variable
from graphpatch.gradients.formula import Formula


def with_parameter_inputs(formula: Formula, count: int, names: Sequence[str]) -> Formula:
    """The formula for `count` inputs as one for these and one more for each of the parameters.

    The input after the last stands for the first name, and so on. No gradient flows to them.
    """
    if not names:
        return formula
    read = {name: f"x{count + place}" for place, name in enumerate(names)}
    none = (None,) * len(names)
    own = (formula.expressions * count) if formula.alike else formula.expressions
    texts = (formula.texts * count) if formula.alike else formula.texts
    done: dict[int, Expression] = {}
    expressions = tuple(None if one is None else _with_variables(one, read, done) for one in own)
    left = tuple((name, value) for name, value in formula.values if name not in read)
    return replace(
        formula, texts=texts + none, expressions=expressions + none, alike=False, values=left
    )


def _with_variables(
    expression: Expression, read: Mapping[str, str], done: dict[int, Expression]
) -> Expression:
    """The expression with variables for parameters; a part of several is made anew once."""
    if id(expression) not in done:
        done[id(expression)] = _rewritten(expression, read, done)
    return done[id(expression)]


def _rewritten(
    expression: Expression, read: Mapping[str, str], done: dict[int, Expression]
) -> Expression:
    if isinstance(expression, ParameterRef) and expression.name in read:
        return Variable(read[expression.name], expression.column)
    if isinstance(expression, NumberList):
        items = tuple(_with_variables(one, read, done) for one in expression.items)
        return structs.replace(expression, items=items)
    if isinstance(expression, Call):
        arguments = tuple(_with_variables(one, read, done) for one in expression.arguments)
        options = tuple(
            (name, _with_variables(one, read, done)) for name, one in expression.options
        )
        return structs.replace(expression, arguments=arguments, options=options)
    return expression
