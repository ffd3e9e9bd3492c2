"""The page on the library of gradients: a table of all, then a section for each."""

from __future__ import annotations

from graphpatch.analysis import gradients
from graphpatch.gradients.library import LIBRARY, Entry


def table() -> str:
    """All gradients, one line each."""
    return gradients.markdown()


def sections() -> str:
    """A section for each gradient, in the order of the library."""
    return "\n\n".join(_section(entry) for entry in LIBRARY.values())


def _section(entry: Entry) -> str:
    ops = ", ".join(f"`{name}`" for name in entry.ops) or "any with one input and one output"
    facts = [
        ("For op types", ops),
        *(("Parameter", _parameter(entry, place)) for place in range(len(entry.parameters))),
        ("Do not use it when", entry.avoid),
        ("Differs from the source", entry.reach),
        ("Source", entry.source),
    ]
    listed = [f"- **{title}**: {text}" for title, text in facts if text]
    formula = f"```text\ndx = {gradients.formula(entry)}\n```"
    return "\n\n".join([f"### {entry.name}", _sentence(entry.purpose), formula, "\n".join(listed)])


def _parameter(entry: Entry, place: int) -> str:
    parameter = entry.parameters[place]
    default = "" if parameter.default is None else f". Default: {parameter.default:g}"
    legal = f". Legal: `{parameter.legal}`" if parameter.legal else ""
    return f"`{parameter.name}`, {parameter.does}{default}{legal}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
