"""The schema of a gradient: the names of the library with their parameters, and formulas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphpatch import opdefs
from graphpatch.differentiation.override_keys import is_registered
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.library.entry import Entry
from graphpatch.gradients.spec import DEFAULT, FORMULA, PYTHON, REGISTERED

SOME_TEXT = {"type": "string", "pattern": r"\S"}
FORMULA_SCHEMA = {
    "anyOf": [
        SOME_TEXT,
        {
            "type": "array",
            "items": {"anyOf": [SOME_TEXT, {"type": "null"}]},
            "minItems": 1,
            "contains": SOME_TEXT,
        },
    ]
}


def gradient() -> dict[str, Any]:
    """What flows back: a name, or an object with one key."""
    return {
        "title": "Gradient",
        "description": "What flows back: a name, or one name with its parameters, or a formula.",
        "examples": ["guided_relu", {"scale": 0.5}, {"formula": "where(dy > 0, dy, 0)"}],
        "anyOf": [
            {"enum": [*DEFAULT, *_without_parameters(), *filter(is_registered, opdefs.op_types())]},
            {
                "type": "object",
                "properties": {
                    REGISTERED: SOME_TEXT
                    | _described(
                        "A gradient that the program that loads the file registers under this "
                        "name.",
                        "MyGrad",
                    ),
                    FORMULA: FORMULA_SCHEMA
                    | _described(
                        "A formula of dy, inputs x0, x1, ... and outputs y0, ...; a list has one "
                        "for each input.",
                        "where(dy > 0, dy, 0)",
                    ),
                    PYTHON: {"type": "string", "pattern": r"^[\w.]+:[\w.]+$"}
                    | _described(
                        "A Python function (op, *grads); it runs only with --allow-python.",
                        "mine.gradients:clipped",
                    ),
                    **{name: _parameters(entry) for name, entry in LIBRARY.items()},
                },
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": False,
            },
        ],
    }


def _without_parameters() -> Iterator[str]:
    for name, entry in LIBRARY.items():
        if all(parameter.default is not None for parameter in entry.parameters):
            yield name


def _parameters(entry: Entry) -> dict[str, Any]:
    """What may stand behind the name of a gradient."""
    needed = [parameter.name for parameter in entry.parameters if parameter.default is None]
    named = {
        "type": "object",
        "properties": {one.name: _number_schema(one.does) for one in entry.parameters},
        "additionalProperties": False,
        **({"required": needed} if needed else {}),
    }
    short = [{"type": "number"}] if len(entry.parameters) == 1 else []
    return {"description": entry.purpose, "anyOf": [named, *short]}


def _described(text: str, example: str) -> dict[str, Any]:
    return {"description": text, "examples": [example]}


def _number_schema(does: str) -> dict[str, Any]:
    return {"type": "number", "description": does}
