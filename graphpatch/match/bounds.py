"""Comparisons with numbers: `{">": 0, "<=": 1}`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET

from graphpatch.match.described import described

Bound = int | float | msgspec.UnsetType


class Compared(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds of a number, all of which must hold: `{">": 0, "<=": 1}`."""

    above: Annotated[Bound, described("Each number is above this one.", 0)] = msgspec.field(
        default=UNSET, name=">"
    )
    below: Annotated[Bound, described("Each number is below this one.", 2)] = msgspec.field(
        default=UNSET, name="<"
    )
    least: Annotated[Bound, described("Each number is at least this one.", 1)] = msgspec.field(
        default=UNSET, name=">="
    )
    most: Annotated[Bound, described("Each number is at most this one.", 8)] = msgspec.field(
        default=UNSET, name="<="
    )
    other: Annotated[Bound, described("Each number is not this one.", 0)] = msgspec.field(
        default=UNSET, name="!="
    )

    def __post_init__(self) -> None:
        if not msgspec.to_builtins(self):
            raise ValueError(f"it is empty: give one of {', '.join(self.__struct_encode_fields__)}")

    @property
    def bounds(self) -> dict[str, int | float]:
        """The comparisons that are given, by their sign."""
        found = {sign: getattr(self, name) for sign, name in _BOUNDS.items()}
        return {sign: bound for sign, bound in found.items() if bound is not UNSET}


_BOUNDS = dict(zip(Compared.__struct_encode_fields__, Compared.__struct_fields__, strict=True))

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


def meets(value: object, wanted: Compared) -> bool:
    """Whether a number meets all bounds; of a list, whether it has some, and all of them do."""
    if isinstance(value, list | tuple):
        return bool(value) and all(meets(one, wanted) for one in value)
    return is_number(value) and all(
        bool(SIGNS[sign](value, bound)) for sign, bound in wanted.bounds.items()
    )
