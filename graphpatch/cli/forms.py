"""The vocabulary in which a command says what JSON it prints: its `OUTPUT`, a JSON Schema."""

from __future__ import annotations

from typing import Any

Form = dict[str, Any]

TEXT: Form = {"type": "string"}
TEXTS: Form = {"type": "array", "items": TEXT}
TEXT_OR_NULL: Form = {"type": ["string", "null"]}
WHOLE: Form = {"type": "integer"}
NUMBER: Form = {"type": "number"}
YES: Form = {"type": "boolean"}
ANY: Form = {"type": "object"}


def listed(item: Form) -> Form:
    """A list of these."""
    return {"type": "array", "items": item}


def keyed(value: Form) -> Form:
    """An object with keys of any name: ops, tensors, op types."""
    return {"type": "object", "additionalProperties": value}


def record(must: dict[str, Form], may: dict[str, Form] | None = None) -> Form:
    """An object that has the keys of `must`, and may have those of `may` and others."""
    return {"type": "object", "properties": {**must, **(may or {})}, "required": list(must)}


OP = {"body": TEXT, "op": TEXT, "type": TEXT}
"""How documents name an op."""

MATCH = record(OP, {"captures": keyed(TEXT), "inputs": keyed(TEXT), "graph": TEXT})
NODES = record({"before": WHOLE, "after": WHOLE})
