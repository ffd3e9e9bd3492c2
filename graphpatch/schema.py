"""The JSON Schema of rules files: what an editor completes, explains and checks."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any

import msgspec

import graphpatch
from graphpatch import opdefs
from graphpatch.differentiation.override_keys import is_registered
from graphpatch.dtypes import DTYPE_NAMES
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.library.entry import Entry
from graphpatch.gradients.spec import DEFAULT, FORMULA, PYTHON, REGISTERED, GradientSpec
from graphpatch.match.conditions import MAY_BE_EMPTY, ON_EDGES
from graphpatch.match.keys import CLASSES, Compared
from graphpatch.match.nth import NTH_WORDS, SLICE
from graphpatch.match.ready import READY
from graphpatch.patches import KINDS
from graphpatch.rules import RulesFile

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
    """Return what flows back: a name, or an object with one key."""
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
    """Return what may stand behind the name of a gradient."""
    needed = [parameter.name for parameter in entry.parameters if parameter.default is None]
    named = {
        "type": "object",
        "properties": {
            parameter.name: {"type": "number", "description": parameter.does}
            for parameter in entry.parameters
        },
        "additionalProperties": False,
        **({"required": needed} if needed else {}),
    }
    short = [{"type": "number"}] if len(entry.parameters) == 1 else []
    return {"description": entry.purpose, "anyOf": [named, *short]}


def _described(text: str, example: str) -> dict[str, Any]:
    return {"description": text, "examples": [example]}


# The types of ours that users know by another name.
RENAMED = {"RuleSpec": "Rule", "PatchSpec": "Patch"}
SIGNS_OF_BOUNDS = Compared.__struct_encode_fields__
GRADIENT_REF = {"$ref": "#/$defs/Gradient"}
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# A name, not an address: it tells one version's schema from another's.
ID = f"urn:graphpatch:rules:{graphpatch.__version__}"


def schema() -> dict[str, Any]:
    """The JSON Schema of rules files: of the document with `rules`, and of a bare list of rules."""
    raw = json.loads(msgspec.json.encode(msgspec.json.schema(RulesFile)))  # lists, not tuples
    defined = {
        RENAMED.get(name, name): _without_null(definition)
        for name, definition in raw["$defs"].items()
    }
    for name, definition in defined.items():
        definition["title"] = name
        if "description" in definition:
            definition["description"] = inspect.cleandoc(definition["description"]).replace(
                "\n", " "
            )
    taken_out = {
        name: _taken_out(definition.get("properties", {})) for name, definition in defined.items()
    }
    _constrain(defined)
    for name, texts in taken_out.items():
        for key, text in texts.items():  # behind the type, whatever that has become
            defined[name]["properties"][key] = {**defined[name]["properties"][key], **text}
    defined["Gradient"] = gradient()
    rules = defined["RulesFile"]["properties"]["rules"]
    return {
        "$schema": DIALECT,
        "$id": ID,
        "title": "Rules of graphpatch",
        "description": "Which ops of a TensorFlow graph get which gradient.",
        "anyOf": [{"$ref": "#/$defs/RulesFile"}, rules],
        "$defs": defined,
    }


def _without_null(part: Any) -> Any:
    """Return a part of msgspec's schema in which a key that may be left out is never null."""
    if isinstance(part, list):
        return [_without_null(item) for item in part if item != {"type": "null"}]
    if not isinstance(part, dict):
        return part
    cleaned = {key: _without_null(value) for key, value in part.items()}
    if len(cleaned.get("anyOf", ())) == 1:
        cleaned |= cleaned.pop("anyOf")[0]
    if cleaned.get("default", 0) is None:
        del cleaned["default"]
    if "$ref" in cleaned:
        name = cleaned["$ref"].rpartition("/")[2]
        cleaned["$ref"] = f"#/$defs/{RENAMED.get(name, name)}"
    return cleaned


def _constrain(defined: dict[str, Any]) -> None:
    """Say what the types of Python do not: one patch, options of their kinds, legal names."""
    patch, match = defined["Patch"], defined["Match"]["properties"]
    for name, kind in KINDS.items():
        if kind.value == GradientSpec:
            patch["properties"][name] = GRADIENT_REF
    patch["oneOf"] = [{"required": [name]} for name in KINDS]
    options = dict.fromkeys(option for kind in KINDS.values() for option in kind.options)
    patch["dependentSchemas"] = {
        option: {"anyOf": list(_required_by(option))} for option in options
    }
    patch["properties"]["surrogate_gradient"] = SOME_TEXT
    patch["properties"]["on"] = _one_or_list({"type": "string"})
    for key in match.keys() - MAY_BE_EMPTY:
        match[key] = _not_empty(match[key])
    for name, key in (("DependencySearch", "of"), ("Between", "from"), ("Between", "to")):
        defined[name]["properties"][key] = _not_empty(defined[name]["properties"][key])
    for key in ("loop", "branch"):
        defined["Inside"]["properties"][key] = _not_empty(defined["Inside"]["properties"][key])
    defined["Inside"]["minProperties"] = 1
    defined["Pattern"]["properties"]["nodes"]["minProperties"] = 1
    defined["OneOf"] |= {"minProperties": 1}
    defined["OneOf"]["properties"]["in"]["minItems"] = 1
    defined["Near"]["anyOf"] = [{"required": [key]} for key in ("near", *SIGNS_OF_BOUNDS)]
    match["class"] = _one_or_list({"enum": list(CLASSES)})
    match["nth"] = _slices(match["nth"])
    defined["Nth"]["properties"]["at"] = _slices(defined["Nth"]["properties"]["at"])
    for key in ("inputs", "consumers"):
        match[key]["propertyNames"] = {"pattern": r"^(\d+|any|all|none)$"}
    defined["Match"] |= {
        "if": {"properties": {"control": {"const": True}}, "required": ["control"]},
        "then": {"anyOf": [{"required": [key]} for key in ON_EDGES]},
    }
    defined["Rule"] |= {"if": _has("patch", "on"), "then": _has("match", "pattern")}
    match["dtype"] = _one_or_list({"enum": list(dict.fromkeys(DTYPE_NAMES.values()))})
    match["pattern"] = _pattern_schema()


def _has(key: str, inner: str) -> dict[str, Any]:
    return {"properties": {key: {"required": [inner]}}}


def _required_by(option: str) -> Iterator[dict[str, Any]]:
    return ({"required": [name]} for name, kind in KINDS.items() if option in kind.options)


def _one_or_list(form: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [form, {"type": "array", "items": form, "minItems": 1}]}


def _not_empty(form: dict[str, Any]) -> dict[str, Any]:
    """Return the same, where a list has something in it."""
    if "anyOf" in form:
        return {"anyOf": [_not_empty(item) for item in form["anyOf"]]}
    return {**form, "minItems": 1} if form.get("type") == "array" else form


def _slices(form: dict[str, Any]) -> dict[str, Any]:
    """Return the same, where a text is a word or a slice, and a list has something in it."""
    words = {"pattern": f"^({'|'.join(NTH_WORDS)}|{SLICE.pattern})$"}
    forms = [item | words if item.get("type") == "string" else item for item in form["anyOf"]]
    return _not_empty({"anyOf": forms})


def _pattern_schema() -> dict[str, Any]:
    ready = {"enum": [f"@{name}" for name in READY]}
    text = {"type": "string", "pattern": r"^\s*[^@\s]"}
    form = {"anyOf": [ready, text, {"$ref": "#/$defs/Pattern"}]}
    return {"anyOf": [*form["anyOf"], {"type": "array", "items": form, "minItems": 1}]}


def _taken_out(properties: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the description and the example of each property, which it no longer has then."""
    return {
        key: {word: part.pop(word) for word in ("description", "examples") if word in part}
        for key, part in properties.items()
    }
