"""An error in a formula: its column, and the formula with a caret under it."""

from __future__ import annotations

from graphpatch.errors import FormulaError
from graphpatch.shown import pointed


def fault(text: str, column: int, message: str) -> FormulaError:
    """The error to raise for what stands at `column` (from 1) of the formula `text`."""
    return FormulaError(f"formula, column {column}: {message}\n{pointed(text, column)}")
