"""What a room asks of rooms above it: TensorFlow's part in `runtime/`, and that of `page/`.

`graphpatch/__init__.py` hands it in before any room is imported, so no room imports one above it.
"""

from __future__ import annotations

import importlib
from typing import Any

MODULES: dict[str, str] = {}
"""The module of each function that may be asked, which is imported then."""


def ask(function: str, *args: Any, **options: Any) -> Any:
    """What the function of this name returns, or raises."""
    return getattr(importlib.import_module(MODULES[function]), function)(*args, **options)
