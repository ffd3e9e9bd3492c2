"""The JSON Schema of what `--json` prints, a document for each command.

Keys may be added without a new version; a key that goes, or means something else, makes one.
"""

from __future__ import annotations

from typing import Any

from graphpatch.errors import RulesError, did_you_mean
from graphpatch.schema import DIALECT

VERSION = 1

Form = dict[str, Any]

TEXT: Form = {"type": "string"}
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


def one(must: dict[str, Form], may: dict[str, Form] | None = None) -> Form:
    """An object that has the keys of `must`, and may have those of `may` and others."""
    return {"type": "object", "properties": {**must, **(may or {})}, "required": list(must)}


TEXTS = listed(TEXT)
OP = {"body": TEXT, "op": TEXT, "type": TEXT}
NODES = one({"before": WHOLE, "after": WHOLE})
MATCH = one(OP, {"captures": keyed(TEXT), "inputs": keyed(TEXT), "graph": TEXT})
GRADIENT_OF_OP = one({"state": TEXT}, {"gives": TEXT, "key": TEXT, "function": TEXT})

PATCHED = one(
    {
        "model": TEXT,
        "output": TEXT_OR_NULL,
        "rules": listed(one({"name": TEXT, "matches": listed(MATCH), "emit": TEXT})),
        "nodes": NODES,
        "consumer": one({"session": TEXTS, "tape": TEXTS}),
        "notes": TEXTS,
    },
    {"would_write": TEXT_OR_NULL, "replaced": YES, "seconds": NUMBER},
)
OUTPUTS: dict[str, Form] = {
    "apply": one(
        {"outputs": listed(PATCHED)}, {"errors": listed(one({"model": TEXT, "error": TEXT}))}
    ),
    "check": one(
        {
            "model": TEXT,
            "applied": YES,
            "rules": listed(one({"name": TEXT, "applied": YES})),
            "seconds": NUMBER,
        },
        {"error": TEXT},
    ),
    "diff": one(
        {
            "a": TEXT,
            "b": TEXT,
            "equal": YES,
            "gradients": listed(one({**OP, "before": TEXT, "after": TEXT, "rules": TEXTS})),
            "removed": listed(one(OP)),
            "added": listed(one(OP, {"rule": TEXT})),
            "renamed": listed(one({**OP, "to": TEXT})),
            "changed": listed(ANY),
            "functions": listed(ANY),
            "other": listed({}),
        }
    ),
    "doctor": one({"model": TEXT, "graphs": listed(one({"pairs": listed(ANY)}, {"notes": {}}))}),
    "gradients": one({"gradients": listed(one({"name": TEXT, "formula": TEXT}))}),
    "match": one(
        {
            "model": TEXT,
            "rules": listed(
                one(
                    {
                        "name": TEXT,
                        "matches": listed(MATCH),
                        "left_out": TEXTS,
                        "near": TEXTS,
                        "error": TEXT_OR_NULL,
                    },
                    {"notes": TEXTS},
                )
            ),
        }
    ),
    "ops": one(
        {"model": TEXT, "format": TEXT, "types": keyed(WHOLE)},
        {
            "ops": listed(
                one(
                    {
                        "body": TEXT,
                        "name": TEXT,
                        "type": TEXT,
                        "inputs": TEXTS,
                        "outputs": {"type": ["array", "null"]},
                        "attrs": ANY,
                        "gradient": GRADIENT_OF_OP,
                        "changed": listed(one({"rule": TEXT, "did": TEXT})),
                    }
                )
            )
        },
    ),
    "patterns": one({"patterns": listed(one({"name": TEXT, "for": TEXT, "forms": listed(ANY)}))}),
    "recipes": one({"recipes": listed(one({"name": TEXT, "for": TEXT, "source": TEXT}))}),
    "revert": one(
        {
            "model": TEXT,
            "output": TEXT_OR_NULL,
            "rules": TEXTS,
            "left": TEXTS,
            "ops": one({"restored": WHOLE, "dropped": WHOLE}),
            "nodes": NODES,
            "notes": TEXTS,
        }
    ),
    "split": one(
        {
            "output": TEXT,
            "version": WHOLE,
            "model": TEXT,
            "loss": TEXT,
            "wrt": TEXTS,
            "cuts": listed(TEXTS),
            "parts": listed(one({"file": TEXT, "nodes": WHOLE, "variables": TEXTS})),
            "steps": listed(ANY),
            "inputs": TEXTS,
            "gradients": keyed(TEXT),
            "tensors": keyed(ANY),
        }
    ),
    "verify": one(
        {
            "original": TEXT,
            "patched": TEXT,
            "verdict": {"enum": ["verified", "same structure", "differs", "not compared"]},
            "ok": YES,
            "failures": TEXTS,
            "not_compared": TEXTS,
            "graphs": listed(one({"label": TEXT, "structure": ANY})),
        }
    ),
    "view": one(
        {
            "graphpatch": TEXT,
            "document": WHOLE,
            "models": listed(one({"path": TEXT, "format": TEXT, "ops": WHOLE})),
            "rules": listed(ANY),
            "graphs": listed(ANY),
            "bodies": listed(ANY),
            "run": {"type": ["object", "null"]},
            "notes": TEXTS,
            "defaults": keyed(WHOLE),
            "tables": ANY,
        }
    ),
}
"""By command, the document that it prints; `check` prints one for each model."""


def output_schema(command: str) -> Form:
    """The JSON Schema of what `graphpatch COMMAND --json` prints. Raises RulesError for others."""
    if command not in OUTPUTS:
        near = did_you_mean(command, OUTPUTS) or f"; these do: {', '.join(OUTPUTS)}"
        raise RulesError(f"no command {command!r} prints a JSON document{near}")
    return {
        "$schema": DIALECT,
        "$id": f"urn:graphpatch:output:{command}:{VERSION}",
        "title": f"graphpatch {command} --json",
        **OUTPUTS[command],
    }
