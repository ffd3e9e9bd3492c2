"""`graphpatch gradients`."""

from __future__ import annotations

import textwrap

import click

from graphpatch.analysis.gradient_library import (
    gradient_call,
    gradient_document,
    gradient_formula,
)
from graphpatch.cli import options
from graphpatch.cli.json_forms import TEXT, json_object, listed
from graphpatch.cli.say import say_json, say_lines
from graphpatch.gradients.library import LIBRARY, Entry, library_entry

WIDTH = 92

OUTPUT = json_object({"gradients": listed(json_object({"name": TEXT, "formula": TEXT}))})


@options.command("gradients", "gradients", "gradients guided_relu")
@click.argument("name", required=False, shell_complete=options.gradient_names)
@options.JSON
def command(name: str | None, as_json: bool) -> None:
    """List the gradient library, or describe the gradient NAME."""
    entries = [library_entry(name)] if name else list(LIBRARY.values())
    if as_json:
        described = [gradient_document(entry) for entry in entries]
        say_json({"gradients": described})
    elif name:
        say_lines(_entry_lines(entries[0]).split("\n"))
    else:
        say_lines(line for entry in entries for line in _line(entry).split("\n"))


def _line(entry: Entry) -> str:
    return f"{gradient_call(entry)}\n    dx = {gradient_formula(entry)}"


def _entry_lines(entry: Entry) -> str:
    ops = ", ".join(entry.ops) or "any op with one input and one output of one shape"
    parts = [
        ("formula", gradient_formula(entry)),
        *((f"{p.name}", _parameter(entry, place)) for place, p in enumerate(entry.parameters)),
        ("ops", ops),
        ("for", entry.purpose),
        ("not when", entry.avoid),
        ("source", entry.source),
        ("differs", entry.reach),
    ]
    return "\n".join(
        [gradient_call(entry), *(_titled_lines(title, text) for title, text in parts if text)]
    )


def _parameter(entry: Entry, place: int) -> str:
    parameter = entry.parameters[place]
    default = "" if parameter.default is None else f"; default: {parameter.default:g}"
    legal = f"; {parameter.legal}" if parameter.legal else ""
    return f"{parameter.does}{default}{legal}"


def _titled_lines(title: str, text: str) -> str:
    lines = textwrap.wrap(text, WIDTH, break_on_hyphens=False) or [""]
    return "\n".join(f"  {title if not k else '':10}  {line}" for k, line in enumerate(lines))
