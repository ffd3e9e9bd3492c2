"""The tables of the page on formulas: operators, functions and constants of the language."""

from __future__ import annotations

from collections.abc import Iterable

from graphpatch.gradients.formula import NAMED_NUMBERS
from graphpatch.gradients.functions import FUNCTIONS, OPERATORS, Function


def operators() -> str:
    """Return the operators, one line each."""
    return _table("operator", ((_operator(one), one) for one in OPERATORS.values()))


def functions() -> str:
    """Return the functions, one line each, with the arguments that they take."""
    return _table("function", ((one.spelled, one) for one in FUNCTIONS.values()))


def constants() -> str:
    """Return the constants, as one line."""
    return ", ".join(f"`{name}`" for name in NAMED_NUMBERS)


def _table(title: str, rows: Iterable[tuple[str, Function]]) -> str:
    lines = [f"| {title} | value |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{text}` | {one.does} |" for text, one in rows)])


def _operator(one: Function) -> str:
    if len(one.arguments) == 2:
        return f"{one.arguments[0]} {one.name} {one.arguments[1]}"
    return one.name if "x" in one.name else f"{one.name} x"
