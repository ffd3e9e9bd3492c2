"""`graphpatch schema`, and the JSON Schema of what `--json` of each command prints."""

from __future__ import annotations

import importlib

from graphpatch.cli import COMMANDS, options
from graphpatch.cli.json_forms import JsonForm
from graphpatch.cli.say import say_json
from graphpatch.errors import RulesError, did_you_mean
from graphpatch.schema import DIALECT, schema

VERSION = (
    1  # keys may be added without a new one; a key that goes, or means something else, makes one
)


def outputs() -> dict[str, JsonForm]:
    """By command, the document that it prints; `check` prints one for each model."""
    forms = {name: _output_form(name) for name in sorted(COMMANDS)}
    return {name: form for name, form in forms.items() if form is not None}


def output_schema(command: str) -> JsonForm:
    """The JSON Schema of what `graphpatch COMMAND --json` prints. Raises RulesError for others."""
    form = _output_form(command) if command in COMMANDS else None
    if form is None:
        legal = outputs()
        near = did_you_mean(command, legal) or f"; these do: {', '.join(legal)}"
        raise RulesError(f"no command {command!r} prints a JSON document{near}")
    return {
        "$schema": DIALECT,
        "$id": f"urn:graphpatch:output:{command}:{VERSION}",
        "title": f"graphpatch {command} --json",
        **form,
    }


def _output_form(command: str) -> JsonForm | None:
    return getattr(importlib.import_module(f"graphpatch.cli.{command}"), "OUTPUT", None)


@options.command("schema", "schema > graphpatch.schema.json", "schema --output apply")
@options.flag("--json", "The output is JSON with or without it.", expose_value=False)
@options.value("--output of", "COMMAND", "The schema of what COMMAND --json prints.")
def command(of: str | None) -> None:
    """Print the JSON Schema of rules files, for editors that complete and check them."""
    say_json(output_schema(of) if of else schema(), indent=2)
