"""What `graphpatch gradients` says: the library, and one gradient of it in full."""

from __future__ import annotations

from typing import Any

from graphpatch.gradients.library import Entry


def gradient_document(entry: Entry) -> dict[str, Any]:
    """Return a gradient as `gradients --json` prints it."""
    return {
        "name": entry.name,
        "formula": entry.text,
        "parameters": [
            {"name": p.name, "does": p.does, "default": p.default, "legal": p.legal}
            for p in entry.parameters
        ],
        "ops": list(entry.ops),
        "for": entry.purpose,
        "not_when": entry.avoid,
        "source": entry.source,
        "leaves_out": entry.reach,
    }


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
