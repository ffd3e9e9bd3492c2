"""Ready patterns for what legacy models contain, by name: `{"pattern": "@swish"}`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from graphpatch.errors import PatternError, nearest
from graphpatch.match.ready.activations import ACTIVATION_PATTERNS
from graphpatch.match.ready.entry import PatternForm as PatternForm
from graphpatch.match.ready.entry import ReadyPattern as ReadyPattern
from graphpatch.match.ready.layers import LAYER_PATTERNS
from graphpatch.match.ready.norms import NORM_PATTERNS
from graphpatch.match.ready.training import TRAINING

READY: Mapping[str, ReadyPattern] = MappingProxyType(
    {
        entry.name: entry
        for entry in (*LAYER_PATTERNS, *NORM_PATTERNS, *ACTIVATION_PATTERNS, *TRAINING)
    }
)


def ready_pattern(name: str) -> ReadyPattern:
    """The ready pattern of this name. Raises PatternError, which names the nearest ones."""
    if name not in READY:
        found = nearest(name, READY)
        near = (
            f"; {'nearest' if found else 'legal'}: {', '.join(f'@{one}' for one in found or READY)}"
        )
        raise PatternError(f"pattern: no ready pattern is called {'@' + name!r}{near}")
    return READY[name]


def pattern_document(entry: ReadyPattern) -> dict[str, Any]:
    """A ready pattern as `patterns --json` prints it: each form as a rules file can have it."""
    return {
        "name": f"@{entry.name}",
        "for": entry.purpose,
        "on": entry.captures(),
        "forms": [
            {"text": form.text, "pattern": msgspec.to_builtins(form.pattern())}
            for form in entry.forms
        ],
    }


def patterns_table() -> str:
    """The ready patterns as the table of the README."""
    lines = ["| pattern | for | `on` |", "|---|---|---|"]
    for entry in READY.values():
        names = ", ".join(f"`{name}`" for name in entry.captures())
        lines.append(f"| `@{entry.name}` | {entry.purpose} | {names} |")
    return "\n".join(lines)
