"""What `graphpatch patterns` says: the ready patterns, and one of them in full."""

from __future__ import annotations

from typing import Any

import msgspec

from graphpatch.match.ready import READY, Ready


def describe(entry: Ready) -> dict[str, Any]:
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


def markdown() -> str:
    """The ready patterns as the table of the README."""
    lines = ["| pattern | for | `on` |", "|---|---|---|"]
    for entry in READY.values():
        names = ", ".join(f"`{name}`" for name in entry.captures())
        lines.append(f"| `@{entry.name}` | {entry.purpose} | {names} |")
    return "\n".join(lines)
