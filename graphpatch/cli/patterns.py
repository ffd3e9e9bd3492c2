"""`graphpatch patterns`."""

from __future__ import annotations

import click
import msgspec

from graphpatch.cli import options
from graphpatch.cli.json_forms import OBJECT, TEXT, json_object, listed
from graphpatch.cli.say import say_json, say_lines
from graphpatch.match import ready
from graphpatch.match.ready import READY, OpMatches, ReadyPattern, ready_pattern

OUTPUT = json_object(
    {"patterns": listed(json_object({"name": TEXT, "for": TEXT, "forms": listed(OBJECT)}))}
)


@options.command("patterns", "patterns", "patterns @batch_norm")
@click.argument("name", required=False, shell_complete=options.pattern_names)
@options.JSON
def command(name: str | None, as_json: bool) -> None:
    """List the ready patterns, or show all forms of the pattern NAME."""
    entries = [ready_pattern(name.removeprefix("@"))] if name else list(READY.values())
    if as_json:
        described = [ready.pattern_document(entry) for entry in entries]
        say_json({"patterns": described})
    elif name:
        say_lines(_pattern_lines(entries[0]))
    else:
        say_lines(text for entry in entries for text in (f"@{entry.name}", f"    {entry.purpose}"))


def _pattern_lines(entry: ReadyPattern) -> list[str]:
    title = [
        f"@{entry.name}",
        f"  for    {entry.purpose}",
        f"  on     {', '.join(entry.captures())}",
    ]
    return title + [line for form in entry.forms.items() for line in _form(*form)]


def _form(text: str, where: OpMatches) -> list[str]:
    besides = [f"    where  {name} {_match_json(match)}" for name, match in where.items()]
    return [f"  form   {text}", *besides]


def _match_json(match: object) -> str:
    return msgspec.json.encode(match).decode()
