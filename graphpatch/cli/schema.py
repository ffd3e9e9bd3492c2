"""`graphpatch schema`, and the JSON Schema of what `--json` of each command prints."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, get_args

from graphpatch.cli import COMMANDS, options
from graphpatch.cli.options import option
from graphpatch.cli.say import say_json
from graphpatch.errors import RulesError, did_you_mean
from graphpatch.schema import DIALECT, schema

VERSION = (
    1  # keys may be added without a new one; a key that goes, or means something else, makes one
)


JsonForm = dict[str, Any]
TYPES: Mapping[Any, str] = {
    **{str: "string", int: "integer", float: "number", bool: "boolean"},
    **{dict: "object", list: "array", NoneType: "null"},
}


def json_form(of: Any) -> JsonForm:
    """Return the JSON Schema of an `OUTPUT`: a type, `[item]`, a tuple of texts, or an object.

    `{str: value}` is an object with keys of any name: ops, tensors, op types. A `key?` may be
    missing, others may be there. What is `Any` may be anything.
    """
    if isinstance(of, list):
        return {"type": "array", "items": json_form(of[0])}
    if isinstance(of, tuple):
        return {"enum": list(of)}
    if isinstance(of, UnionType):
        return {"type": [TYPES[each] for each in get_args(of)]}
    if not isinstance(of, dict):
        return {} if of is Any else {"type": TYPES[of]}
    if str in of:
        return {"type": "object", "additionalProperties": json_form(of[str])}
    properties = {key.rstrip("?"): json_form(value) for key, value in of.items()}
    required = [key for key in of if not key.endswith("?")]
    return {"type": "object", "properties": properties, "required": required}


def outputs() -> dict[str, JsonForm]:
    """Return by command the document that it prints; `check` prints one for each model."""
    forms = {name: _output_form(name) for name in sorted(COMMANDS)}
    return {name: form for name, form in forms.items() if form is not None}


def output_schema(command: str) -> JsonForm:
    """Return the JSON Schema of what `graphpatch COMMAND --json` prints, or raise RulesError."""
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
    output = getattr(importlib.import_module(f"graphpatch.cli.{command}"), "OUTPUT", None)
    return output and json_form(output)


@options.command("schema", "schema > graphpatch.schema.json", "schema --output apply")
def command(
    json: bool = option("--json", "The output is JSON with or without it."),
    of: str | None = option("--output COMMAND", "The schema of what COMMAND --json prints."),
) -> None:
    """Print the JSON Schema of rules files, for editors that complete and check them."""
    say_json(output_schema(of) if of else schema(), indent=2)
