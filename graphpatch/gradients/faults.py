"""An error in a formula: its column, and the formula with a caret under it."""

from __future__ import annotations

from graphpatch.errors import FormulaError

_SHOWN = 100
"""How much of a long formula is shown around the column."""


def fault(text: str, column: int, message: str) -> FormulaError:
    """The error to raise for what stands at `column` (from 1) of the formula `text`."""
    start = max(0, column - 1 - _SHOWN // 2)
    shown = "".join(" " if character.isspace() else character for character in text)
    shown = shown[start : start + _SHOWN]
    caret = " " * (column - 1 - start) + "^"
    return FormulaError(f"formula, column {column}: {message}\n  {shown}\n  {caret}")
