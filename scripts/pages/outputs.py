"""The page on JSON output: the keys of each command's document."""

from __future__ import annotations

from collections.abc import Iterable

from graphpatch.cli.schema import outputs


def table() -> str:
    """Return a line for each command: keys that are always there, and those that may be missing."""
    rows = ["| command | keys | may be missing |", "|---|---|---|"]
    for name, form in outputs().items():
        must = form["required"]
        may = [key for key in form["properties"] if key not in must]
        rows.append(f"| `{name}` | {_listed(must)} | {_listed(may)} |")
    return "\n".join(rows)


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)
