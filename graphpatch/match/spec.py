"""A match as a rules file writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

Texts = str | tuple[str, ...]


class OneOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of several values of an attr."""

    values: tuple[Any, ...] = msgspec.field(name="in")


class Match(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """Which ops: every key that is given must hold. Without a key it is every op."""

    op: Texts | None = None
    name: Texts | None = None
    name_regex: str | None = None
    attr: dict[str, bool | int | float | str | tuple[Any, ...] | OneOf] | None = None
    dtype: Texts | None = None
    body: Texts | None = None
    any: tuple[Match, ...] | None = None
    all: tuple[Match, ...] | None = None
    not_: Match | None = msgspec.field(default=None, name="not")

    def given(self) -> dict[str, Any]:
        """The keys that are there, as they are spelled in a rules file."""
        found = {field.encode_name: getattr(self, field.name) for field in FIELDS}
        return {key: value for key, value in found.items() if value is not None}


FIELDS = msgspec.structs.fields(Match)


def texts(value: str | Sequence[str]) -> tuple[str, ...]:
    """One text or several, as several."""
    return (value,) if isinstance(value, str) else tuple(value)
