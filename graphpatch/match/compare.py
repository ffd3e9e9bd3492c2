"""Comparisons with numbers: `{">": 0, "<=": 1}`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from graphpatch.match.spec import Compared

SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
}


def is_number(value: object) -> bool:
    """Whether a value is a number that can be compared: no bool, no NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def holds(value: object, wanted: Compared) -> bool:
    """Whether a number meets all bounds; of a list, whether it has some, and all of them do."""
    if isinstance(value, list | tuple):
        return bool(value) and all(holds(one, wanted) for one in value)
    return is_number(value) and all(
        bool(SIGNS[sign](value, bound)) for sign, bound in wanted.bounds.items()
    )


def words(wanted: Compared) -> str:
    """The bounds as text: `> 0 and <= 1`."""
    return " and ".join(f"{sign} {bound}" for sign, bound in wanted.bounds.items())
