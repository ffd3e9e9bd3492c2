"""`graphpatch patterns`."""

from __future__ import annotations

import json

import click
import msgspec

from graphpatch.analysis import patterns
from graphpatch.match.ready import READY, Form, Ready, named


@click.command("patterns")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(name: str | None, as_json: bool) -> None:
    """List the ready patterns, or say all forms of the one called NAME."""
    entries = [named(name.removeprefix("@"))] if name else list(READY.values())
    if as_json:
        described = [patterns.describe(entry) for entry in entries]
        click.echo(json.dumps({"patterns": described}))
    elif name:
        click.echo(_whole(entries[0]))
    else:
        click.echo("\n".join(f"@{entry.name}\n    {entry.purpose}" for entry in entries))


def _whole(entry: Ready) -> str:
    title = [
        f"@{entry.name}",
        f"  for    {entry.purpose}",
        f"  on     {', '.join(entry.captures())}",
    ]
    return "\n".join(title + [line for form in entry.forms for line in _form(form)])


def _form(form: Form) -> list[str]:
    besides = [f"{name} {_text(match)}" for name, match in form.where.items()]
    return [f"  form   {form.text}", *(f"    where  {text}" for text in besides)]


def _text(match: object) -> str:
    return msgspec.json.encode(match).decode()
