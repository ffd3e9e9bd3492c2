"""`graphpatch gradients`."""

from __future__ import annotations

import textwrap
from itertools import chain

from graphpatch.cli import options
from graphpatch.cli.say import say_answer
from graphpatch.gradients.library import LIBRARY, Entry, Parameter, library_entry
from graphpatch.shown import document_of

WIDTH = 92

KEYS = "name formula=text parameters ops for=purpose not_when=avoid source leaves_out=differs"
OF_PARAMETER = "name does default legal"

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
    documents = [document_of(entry, KEYS) for entry in entries]
    for entry, document in zip(entries, documents, strict=True):
        document["parameters"] = [document_of(p, OF_PARAMETER) for p in entry.parameters]
    say_answer(
        as_json, {"gradients": documents}, (line for entry in entries for line in lines(entry))
    )


def gradient_call(entry: Entry) -> str:
    """Return the gradient with its parameters, as one would write it: `clip(min, max)`."""
    parameters = [
        p.name if p.default is None else f"{p.name}={p.default:g}" for p in entry.parameters
    ]
    return f"{entry.name}({', '.join(parameters)})" if parameters else entry.name


def gradient_formula(entry: Entry) -> str:
    """Return its formula, or its list of them as a rules file has it."""
    if isinstance(entry.text, str):
        return entry.text
    return f"[{', '.join('null' if text is None else text for text in entry.text)}]"


def _lines(entry: Entry) -> list[str]:
    return [gradient_call(entry), f"    dx = {gradient_formula(entry)}"]


def _entry_lines(entry: Entry) -> list[str]:
    parts = [
        ("formula", gradient_formula(entry)),
        *((parameter.name, _in_words(parameter)) for parameter in entry.parameters),
        ("ops", entry.meant_for),
        ("for", entry.purpose),
        ("not when", entry.avoid),
        ("source", entry.source),
        ("differs", entry.differs),
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
