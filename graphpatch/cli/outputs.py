"""The JSON Schema of what `--json` prints: each command's `OUTPUT`, in its own file.

Keys may be added without a new version; a key that goes, or means something else, makes one.
"""

from __future__ import annotations

import importlib

from graphpatch.cli import COMMANDS
from graphpatch.cli.forms import Form
from graphpatch.errors import RulesError, did_you_mean
from graphpatch.schema import DIALECT

VERSION = 1


def outputs() -> dict[str, Form]:
    """By command, the document that it prints; `check` prints one for each model."""
    found = {name: _output(name) for name in sorted(COMMANDS)}
    return {name: form for name, form in found.items() if form is not None}


def output_schema(command: str) -> Form:
    """The JSON Schema of what `graphpatch COMMAND --json` prints. Raises RulesError for others."""
    form = _output(command) if command in COMMANDS else None
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


def _output(command: str) -> Form | None:
    return getattr(importlib.import_module(f"graphpatch.cli.{command}"), "OUTPUT", None)
