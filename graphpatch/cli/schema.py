"""`graphpatch schema`."""

from __future__ import annotations

import click

from graphpatch.cli.say import say_json
from graphpatch.schema import schema


@click.command("schema")
@click.option(
    "--json", is_flag=True, expose_value=False, help="The output is JSON with or without it."
)
def command() -> None:
    """Print the JSON Schema of rules files, for editors that complete and check them."""
    say_json(schema(), indent=2)
