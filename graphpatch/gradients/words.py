"""The words of the formula language, and what they stand for."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from graphpatch.errors import did_you_mean
from graphpatch.gradients.expression import Expression, Literal, ParameterRef, Scalar, Variable

NAMED_NUMBERS: dict[str, Scalar] = {
    "inf": math.inf,
    "nan": math.nan,
    "pi": math.pi,
    "true": True,
    "false": False,
}

OPERATOR_WORDS = ("and", "or", "not")
LET = "let"

_VARIABLE = re.compile(r"(?P<kind>x|y|dy)(?P<index>0|[1-9]\d*)?", re.ASCII)

ELSEWHERE = {
    "if": "write: where(condition, a, b)",
    "else": "write: where(condition, a, b)",
    "lambda": "a formula is one expression of x, y and dy",
    "dx": "the upstream gradient is dy, and dx is what the formula gives",
    "grad": "the upstream gradient is dy",
    "e": "write: exp(1)",
    "tf": "functions are called by their bare name",
    "np": "functions are called by their bare name",
    "None": "null stands for a whole formula in the list, one for each input",
    "null": "null stands for a whole formula in the list, one for each input",
}


def full_variable_name(word: str) -> str | None:
    """The full name of a variable (`x` is `x0`), or None where the word is none."""
    found = _VARIABLE.fullmatch(word)
    return f"{found['kind']}{found['index'] or 0}" if found else None


def meaning_of_word(word: str, column: int, parameters: Collection[str]) -> Expression | None:
    """What a word stands for that is not called as a function, or None for an unknown one."""
    if word in parameters:
        return ParameterRef(word, column)
    if word in NAMED_NUMBERS:
        return Literal(NAMED_NUMBERS[word], column)
    name = full_variable_name(word)
    return Variable(name, column) if name else None


def unknown_word(word: str, parameters: Collection[str], functions: Collection[str]) -> str:
    """The message for a word that stands for nothing."""
    if word in functions:
        return f"{word} is a function, and needs its arguments: {word}(...)"
    if word in ELSEWHERE:
        return f"a formula has no {word!r}; {ELSEWHERE[word]}"
    legal = [*parameters, "x", "y", "dy", "attr", *NAMED_NUMBERS, *OPERATOR_WORDS, LET, *functions]
    named = ", ".join(
        [*parameters, "x, y, dy (for x0, y0, dy0), x1, ..., y1, ..., dy1, ..., attr.NAME"]
    )
    return f"unknown name {word!r}{did_you_mean(word, legal)}; a formula knows {named}"


def legal_parameter(word: str) -> bool:
    """Whether a parameter may have this name."""
    taken = (
        word in NAMED_NUMBERS
        or word in OPERATOR_WORDS
        or word in ("attr", LET)
        or full_variable_name(word)
    )
    return re.fullmatch(r"[A-Za-z_]\w*", word, re.ASCII) is not None and not taken
