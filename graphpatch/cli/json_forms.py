"""The vocabulary in which a command says what JSON it prints: its `OUTPUT`, a JSON Schema."""

from __future__ import annotations

from typing import Any

JsonForm = dict[str, Any]

TEXT: JsonForm = {"type": "string"}
TEXTS: JsonForm = {"type": "array", "items": TEXT}
TEXT_OR_NULL: JsonForm = {"type": ["string", "null"]}
INTEGER: JsonForm = {"type": "integer"}
NUMBER: JsonForm = {"type": "number"}
YES: JsonForm = {"type": "boolean"}
OBJECT: JsonForm = {"type": "object"}


def listed(item: JsonForm) -> JsonForm:
    """Return a list of these."""
    return {"type": "array", "items": item}


def keyed(value: JsonForm) -> JsonForm:
    """Return an object with keys of any name: ops, tensors, op types."""
    return {"type": "object", "additionalProperties": value}


def json_object(must: dict[str, JsonForm], may: dict[str, JsonForm] | None = None) -> JsonForm:
    """Return an object that has the keys of `must`, and may have those of `may` and others."""
    return {"type": "object", "properties": {**must, **(may or {})}, "required": list(must)}


OP = {"body": TEXT, "op": TEXT, "type": TEXT}
"""How documents name an op."""

MATCH = json_object(OP, {"captures": keyed(TEXT), "inputs": keyed(TEXT), "graph": TEXT})
NODES = json_object({"before": INTEGER, "after": INTEGER})
