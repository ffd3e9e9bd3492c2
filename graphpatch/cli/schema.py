"""`graphpatch schema`."""

from __future__ import annotations

import json

import click

from graphpatch.rules import schema


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of rules files, for editors that complete and check them."""
    click.echo(json.dumps(schema(), indent=2))
