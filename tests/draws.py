"""How many random examples a test draws: fewer by default, all of them where CI runs."""

from __future__ import annotations

import os

ALL = "GRAPHPATCH_ALL_DRAWS"  # `scripts/test --slow` sets it
PART = 4


def draws(count: int) -> int:
    """So many where all are drawn, a quarter of them else."""
    return count if os.environ.get(ALL) else max(count // PART, 1)
