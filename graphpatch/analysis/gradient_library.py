"""What `graphpatch gradients` says: the library, and one gradient of it in full."""

from __future__ import annotations

from typing import Any

from graphpatch.analysis.document import document_of
from graphpatch.gradients.library import Entry

GRADIENT = "name formula=text parameters ops for=purpose not_when=avoid source leaves_out=reach"


def gradient_document(entry: Entry) -> dict[str, Any]:
    """Return a gradient as `gradients --json` prints it."""
    document = document_of(entry, GRADIENT)
    parameters = [
        document_of(parameter, "name does default legal") for parameter in entry.parameters
    ]
    return {**document, "parameters": parameters}


def gradient_call(entry: Entry) -> str:
    """Return the gradient with its parameters, as one would write it: `clip(min, max)`."""
    parameters = [
        p.name if p.default is None else f"{p.name}={p.default:g}" for p in entry.parameters
    ]
    return f"{entry.name}({', '.join(parameters)})" if parameters else entry.name


def gradient_formula(entry: Entry) -> str:
    """Its formula, or its list of them as a rules file has it."""
    if isinstance(entry.text, str):
        return entry.text
    return f"[{', '.join('null' if text is None else text for text in entry.text)}]"
