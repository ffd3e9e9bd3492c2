"""A formula cut into tokens, and the error that points at one."""

from __future__ import annotations

import re

from graphpatch.errors import FormulaError
from graphpatch.shown import pointed
from graphpatch.tokens import LONGEST_NUMBER, LONGEST_TEXT, Token, tokens_of

_TOKEN = re.compile(
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<symbol>\*\*|<=|>=|==|!=|[-+*/<>(),=.;\[\]])",
    re.ASCII,
)

_FOREIGN = {
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


def tokenize(text: str) -> list[Token]:
    """The tokens of a formula, an end token last. Raises FormulaError at what is none."""
    if len(text) > LONGEST_TEXT:
        message = f"the formula has {len(text):,} characters, and {LONGEST_TEXT:,} is the most"
        raise formula_error(text, LONGEST_TEXT, message)
    return tokens_of(text, _token)


def _token(text: str, position: int, before: list[Token]) -> Token:
    column = position + 1
    found = _TOKEN.match(text, position)
    if found is None:
        hint = _FOREIGN.get(text[position])
        reason = f"; {hint}" if hint else ""
        raise formula_error(text, column, f"a formula has no {text[position]!r}{reason}")
    token = Token(_kind(found), found.group(), column)
    if token.kind == "number" and len(token.text) > LONGEST_NUMBER:
        raise formula_error(text, column, f"a number has at most {LONGEST_NUMBER} characters")
    if before and _runs_on(before[-1], token):
        raise formula_error(
            text, column, f"{before[-1].text}{token.text} is neither a number nor a name"
        )
    return token


def _kind(found: re.Match[str]) -> str:
    if found["number"] is not None:
        return "number"
    return "name" if found["name"] is not None else "symbol"


def _runs_on(before: Token, token: Token) -> bool:
    """Whether a number runs into a name or a number, as in `2x` or `1.2.3`."""
    touching = before.column + len(before.text) == token.column
    return touching and before.kind == "number" and token.kind in ("name", "number")
