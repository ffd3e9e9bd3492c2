"""A formula cut into tokens, and the error that points at one."""

from __future__ import annotations

import re

from graphpatch.errors import FormulaError
from graphpatch.shown import pointed
from graphpatch.tokens import Language, Token

_TOKEN = re.compile(
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<symbol>\*\*|<=|>=|==|!=|[-+*/<>(),=.;\[\]])",
    re.ASCII,
)

_INSTEAD = {
    "&": "write: and",
    "|": "write: or",
    "!": "write: not, or != for unequal",
    "~": "write: not",
    "^": "powers are written **",
    "%": "there is no remainder",
    "?": "write: where(condition, a, b)",
    "{": "brackets are round",
    "}": "brackets are round",
}


def formula_error(text: str, column: int, message: str) -> FormulaError:
    """The error to raise for what stands at `column` (from 1) of the formula `text`."""
    return FormulaError(f"formula, column {column}: {message}\n{pointed(text, column)}")


_FORMULA = Language("formula", _TOKEN, _INSTEAD, formula_error)


def tokenize(text: str) -> list[Token]:
    """The tokens of a formula, an end token last. Raises FormulaError at what is none."""
    tokens: list[Token] = []
    for token in _FORMULA.tokens(text):
        if tokens and _runs_on(tokens[-1], token):
            message = f"{tokens[-1].text}{token.text} is neither a number nor a name"
            raise formula_error(text, token.column, message)
        tokens.append(token)
    return tokens


def _runs_on(before: Token, token: Token) -> bool:
    """Whether a number runs into a name or a number, as in `2x` or `1.2.3`."""
    touching = before.column + len(before.text) == token.column
    return touching and before.kind == "number" and token.kind in ("name", "number")
