"""What a program does before it maps its first large file; a library does nothing."""

from __future__ import annotations

from collections.abc import Callable

BEFORE_MAPPING: list[Callable[[], None]] = []
