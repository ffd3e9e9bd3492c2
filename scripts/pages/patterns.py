"""The page on patterns: the ready ones, and what `on` can name of each."""

from __future__ import annotations

from graphpatch.match.ready import READY


def table() -> str:
    """Return a line for each ready pattern."""
    lines = ["| pattern | for | `on` |", "|---|---|---|"]
    for entry in READY.values():
        names = ", ".join(f"`{name}`" for name in entry.captures())
        lines.append(f"| `@{entry.name}` | {entry.purpose} | {names} |")
    return "\n".join(lines)
