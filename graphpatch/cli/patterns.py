"""`graphpatch patterns`."""

from __future__ import annotations

import msgspec

from graphpatch.cli import options
from graphpatch.cli.say import say_answer
from graphpatch.match.ready import READY, ReadyPattern, ready_pattern

OUTPUT = {"patterns": [{"name": str, "for": str, "forms": [dict]}]}


@options.command("patterns", "patterns", "patterns @batch_norm")
def command(
    name: str | None = options.argument(
        type=str, required=False, shell_complete=options.pattern_names
    ),
    as_json: bool = options.JSON,
) -> None:
    """List the ready patterns, or show all forms of the pattern NAME."""
    entries = [ready_pattern(name.removeprefix("@"))] if name else list(READY.values())
    lines = _pattern_lines if name else _lines
    document = {"patterns": [entry.document() for entry in entries]}
    say_answer(as_json, document, (line for entry in entries for line in lines(entry)))


def _lines(entry: ReadyPattern) -> list[str]:
    return [f"@{entry.name}", f"    {entry.purpose}"]


def _pattern_lines(entry: ReadyPattern) -> list[str]:
    lines = [
        f"@{entry.name}",
        f"  for    {entry.purpose}",
        f"  on     {', '.join(entry.captures())}",
    ]
    for text, where in entry.forms.items():
        lines.append(f"  form   {text}")
        for name, match in where.items():
            lines.append(f"    where  {name} {msgspec.json.encode(match).decode()}")
    return lines
