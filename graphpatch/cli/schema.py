"""`graphpatch schema`."""

from __future__ import annotations

import click

from graphpatch.cli.outputs import output_schema
from graphpatch.cli.say import say_json
from graphpatch.schema import schema


@click.command("schema")
@click.option(
    "--json", is_flag=True, expose_value=False, help="The output is JSON with or without it."
)
@click.option("--output", "of", metavar="COMMAND", help="The schema of what COMMAND --json prints.")
def command(of: str | None) -> None:
    """Print the JSON Schema of rules files, for editors that complete and check them."""
    say_json(output_schema(of) if of else schema(), indent=2)
