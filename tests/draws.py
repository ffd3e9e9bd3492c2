"""How much of a table a test goes through: some by default, all of it where CI runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

ALL = "GRAPHPATCH_ALL_DRAWS"  # `scripts/test --slow` sets it
PART = 4


def draws(count: int) -> int:
    """So many where all are drawn, a quarter of them else."""
    return count if os.environ.get(ALL) else max(count // PART, 1)


def quick(rows: Iterable[Any], chosen: Callable[..., bool]) -> list[Any]:
    """Return the rows as parameters of a test; those that are not `chosen` are slow."""
    tuples = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [pytest.param(*row, marks=() if chosen(*row) else pytest.mark.slow) for row in tuples]


def selected(request: pytest.FixtureRequest, *names: str) -> list[Any]:
    """Return the values of these parameters in the tests of the module that are going to run."""
    calls = (
        getattr(item, "callspec", None)
        for item in request.session.items
        if item.path == request.path
    )
    rows = (
        tuple(call.params[name] for name in names)
        for call in calls
        if call and set(names) <= set(call.params)
    )
    return list(dict.fromkeys(row if len(names) > 1 else row[0] for row in rows))


def mark_rows_between(items: Iterable[pytest.Item]) -> None:
    """Mark slow what lies between each n-th row of a table that is marked `every(n)`."""
    rows: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("every")
        if mark is None:
            continue
        table = item.nodeid.partition("[")[0]
        if rows[table] % mark.args[0]:
            item.add_marker(pytest.mark.slow)
        rows[table] += 1
