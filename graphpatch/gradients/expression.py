"""A parsed formula: frozen values, each with the column where it stands in the text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec
from msgspec.structs import astuple

Scalar: TypeAlias = float | bool
"""A number or a boolean that belongs to no tensor: a literal, a parameter, an attr."""


class Part(msgspec.Struct, frozen=True, eq=False):
    """A part of a formula, the same wherever it stands: its last field, the column, is no matter.

    A Struct is made in a tenth of the time of a dataclass, which counts as a command starts.
    """

    def __eq__(self, other: object) -> bool:
        """Whether it says the same."""
        return type(other) is type(self) and astuple(other)[:-1] == astuple(self)[:-1]

    def __hash__(self) -> int:
        return hash((type(self), *astuple(self)[:-1]))


class Literal(Part, frozen=True, eq=False):
    """`0.5`, `1e-3`, `inf`, `nan`, `pi`, `true`, `false`."""

    value: Scalar
    column: int = 0


class Variable(Part, frozen=True, eq=False):
    """`x0`, `y0`, `dy0`, ...: an input, an output, an upstream gradient; `x` is `x0`."""

    name: str
    column: int = 0


class AttrRef(Part, frozen=True, eq=False):
    """`attr.alpha`: a number or a boolean among the attrs of the op's NodeDef."""

    name: str
    column: int = 0


class ParameterRef(Part, frozen=True, eq=False):
    """A number or a boolean that a rule gives by name."""

    name: str
    column: int = 0


class NumberList(Part, frozen=True, eq=False):
    """`[1, 2]`: a list, which only options such as `axes` and the indices of `gather` take."""

    items: tuple[Expression, ...]
    column: int = 0


class Call(Part, frozen=True, eq=False):
    """A function, or an operator, on its arguments; the options that are given, by name."""

    function: str
    arguments: tuple[Expression, ...]
    options: tuple[tuple[str, Expression], ...] = ()
    column: int = 0


Expression: TypeAlias = Literal | Variable | AttrRef | ParameterRef | NumberList | Call


def parts(expression: Expression) -> tuple[Expression, ...]:
    """What an expression is made of, in the order of the text."""
    if isinstance(expression, Call):
        return (*expression.arguments, *(value for _, value in expression.options))
    return expression.items if isinstance(expression, NumberList) else ()


def depth(expression: Expression) -> int:
    """How many calls lie within each other, found without recursion."""
    level: tuple[Expression, ...] = (expression,)
    count = 0
    while level := tuple({id(part): part for whole in level for part in parts(whole)}.values()):
        count += 1
    return count


def walk(expression: Expression) -> Iterator[Expression]:
    """This expression and all that it is made of, each part once, in the order of the text."""
    seen: set[int] = set()
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            waiting.extend(reversed(parts(part)))
