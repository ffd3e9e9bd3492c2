"""Rules as JSON has them, of which a test is about one part."""

from __future__ import annotations

from typing import Any

ZERO = {"override_gradient": "zero"}


def rule(**keys: Any) -> dict[str, Any]:
    """A rule with these keys besides."""
    return {"match": {"op": "Relu"}, "patch": ZERO, **keys}


def patching(**patch: Any) -> dict[str, Any]:
    """A rule with this patch."""
    return {"match": {"op": "Relu"}, "patch": patch}


def matched(**match: Any) -> dict[str, Any]:
    """A rule with this match."""
    return {"match": match, "patch": ZERO}
