"""`graphpatch gradients`."""

from __future__ import annotations

import textwrap
from itertools import chain

from graphpatch.analysis.gradient_library import (
    gradient_call,
    gradient_document,
    gradient_formula,
)
from graphpatch.cli import options
from graphpatch.cli.say import say_answer
from graphpatch.gradients.library import LIBRARY, Entry, Parameter, library_entry

WIDTH = 92

OUTPUT = {"gradients": [{"name": str, "formula": str}]}


@options.command("gradients", "gradients", "gradients guided_relu")
def command(
    name: str | None = options.argument(
        type=str, required=False, shell_complete=options.gradient_names
    ),
    as_json: bool = options.JSON,
) -> None:
    """List the gradient library, or describe the gradient NAME."""
    entries = [library_entry(name)] if name else list(LIBRARY.values())
    lines = _entry_lines if name else _lines
    document = {"gradients": [gradient_document(entry) for entry in entries]}
    say_answer(as_json, document, (line for entry in entries for line in lines(entry)))


def _lines(entry: Entry) -> list[str]:
    return [gradient_call(entry), f"    dx = {gradient_formula(entry)}"]


def _entry_lines(entry: Entry) -> list[str]:
    ops = ", ".join(entry.ops) or "any op with one input and one output of one shape"
    parts = [
        ("formula", gradient_formula(entry)),
        *((parameter.name, _in_words(parameter)) for parameter in entry.parameters),
        ("ops", ops),
        ("for", entry.purpose),
        ("not when", entry.avoid),
        ("source", entry.source),
        ("differs", entry.reach),
    ]
    titled = [_titled_lines(title, text) for title, text in parts if text]
    return [gradient_call(entry), *chain.from_iterable(titled)]


def _in_words(parameter: Parameter) -> str:
    default = "" if parameter.default is None else f"; default: {parameter.default:g}"
    legal = f"; {parameter.legal}" if parameter.legal else ""
    return f"{parameter.does}{default}{legal}"


def _titled_lines(title: str, text: str) -> list[str]:
    lines = textwrap.wrap(text, WIDTH, break_on_hyphens=False) or [""]
    return [f"  {'' if k else title:10}  {line}" for k, line in enumerate(lines)]
