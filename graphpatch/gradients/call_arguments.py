"""The arguments of a call, matched with what its function takes."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from graphpatch.errors import did_you_mean
from graphpatch.gradients.expression import Call, Expression, NumberList
from graphpatch.gradients.functions import FUNCTIONS, Function
from graphpatch.gradients.tokens import formula_error
from graphpatch.gradients.words import full_variable_name
from graphpatch.tokens import Token


class CallArgument(msgspec.Struct, frozen=True):
    """An argument as it stands in the text; `keyword` is the token before its `=`."""

    keyword: Token | None
    value: Expression


def bind(text: str, name: Token, given: list[CallArgument], parameters: Collection[str]) -> Call:
    """The call of the function `name`. Raises FormulaError where it takes other arguments."""
    function = _function_named(text, name, parameters)
    values: dict[str, Expression] = {}
    for place, argument in enumerate(given):
        word = _argument_place(text, name, function, place, argument)
        if word in values:
            raise formula_error(
                text, argument.value.column, f"{function.name} is given {word} twice"
            )
        values[word] = _shaped(text, function, word, argument.value)
    missing = [word for word in function.arguments if word not in values]
    if missing:
        message = f"{function.name} needs {' and '.join(missing)}: {function.spelled}"
        raise formula_error(text, name.column, message)
    further = range(len(function.arguments), len(given)) if function.rest else ()
    more = [word for place in further if (word := f"{function.rest}{place}") in values]
    arguments = tuple(values[word] for word in (*function.arguments, *more))
    options = tuple((word, values[word]) for word in function.options if word in values)
    return Call(function.name, arguments, options, name.column)


def _function_named(text: str, name: Token, parameters: Collection[str]) -> Function:
    function = FUNCTIONS.get(name.text)
    if function is not None:
        return function
    if name.text in parameters or full_variable_name(name.text):
        raise formula_error(
            text, name.column, f"{name.text} is a value, not a function; write * to multiply"
        )
    near = did_you_mean(name.text, FUNCTIONS) or f"; legal: {', '.join(FUNCTIONS)}"
    raise formula_error(text, name.column, f"no function is called {name.text!r}{near}")


def _argument_place(
    text: str, name: Token, function: Function, place: int, argument: CallArgument
) -> str:
    """Which argument or option of the function this is."""
    takes = (*function.arguments, *function.options)
    if argument.keyword is None:
        if function.rest and place >= len(function.arguments):
            return f"{function.rest}{place}"
        if place < len(takes):
            return takes[place]
        message = f"{function.name} takes {len(takes)} at most: {function.spelled}"
        raise formula_error(text, argument.value.column, message)
    word = argument.keyword.text
    if word not in takes:
        near = did_you_mean(word, takes) or f": {function.spelled}"
        raise formula_error(text, argument.keyword.column, f"{function.name} has no {word!r}{near}")
    return word


def _shaped(text: str, function: Function, word: str, value: Expression) -> Expression:
    """The value, where only a list stands that may be one."""
    if isinstance(value, NumberList) and not _may_be_list(function, word):
        raise formula_error(text, value.column, f"{word} of {function.name} cannot be a list")
    return value


def _may_be_list(function: Function, word: str) -> bool:
    if word in function.arguments:
        return function.kinds_of(len(function.arguments))[function.arguments.index(word)] == "index"
    return function.options.get(word) == "axes"
