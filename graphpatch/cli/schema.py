"""`graphpatch schema`: the JSON Schema of rules files, and of what each `--json` prints."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, get_args

import msgspec

import graphpatch
from graphpatch import opdefs
from graphpatch.cli import COMMANDS, options
from graphpatch.cli.options import option
from graphpatch.cli.say import say_json
from graphpatch.differentiation.flow import is_registered
from graphpatch.errors import RulesError, did_you_mean
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.library.entry import Entry
from graphpatch.gradients.spec import DEFAULT, FORMULA, PYTHON, REGISTERED, GradientSpec
from graphpatch.match.keys import CLASSES
from graphpatch.match.ready import READY
from graphpatch.match.select import MAY_BE_EMPTY, NTH_WORDS, ON_EDGES, SLICE
from graphpatch.match.spec import Compared
from graphpatch.opdefs import DTYPE_NAMES
from graphpatch.patches import KINDS
from graphpatch.rules import OPTIONS, RulesFile

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# A name, not an address: it tells one version's schema from another's.
ID = f"urn:graphpatch:rules:{graphpatch.__version__}"
# The types of ours that users know by another name.
RENAMED = {"RuleSpec": "Rule", "PatchSpec": "Patch"}
SOME_TEXT = {"type": "string", "pattern": r"\S"}


def schema() -> Schema:
    """Return the JSON Schema of rules files: a document with `rules`, or a bare list of rules."""
    raw = json.loads(msgspec.json.encode(msgspec.json.schema(RulesFile)))  # lists, not tuples
    defined = {RENAMED.get(name, name): _without_null(form) for name, form in raw["$defs"].items()}
    described = {}
    for name, form in defined.items():
        form["title"] = name
        if "description" in form:
            form["description"] = inspect.cleandoc(form["description"]).replace("\n", " ")
        for key, part in form.get("properties", {}).items():
            words = [word for word in ("description", "examples") if word in part]
            described[name, key] = {word: part.pop(word) for word in words}
    _constrain(defined)
    for (name, key), texts in described.items():  # behind the type, whatever that has become
        defined[name]["properties"][key] = {**defined[name]["properties"][key], **texts}
    defined["Gradient"] = gradient()
    return {
        "$schema": DIALECT,
        "$id": ID,
        "title": "Rules of graphpatch",
        "description": "Which ops of a TensorFlow graph get which gradient.",
        "anyOf": [{"$ref": "#/$defs/RulesFile"}, defined["RulesFile"]["properties"]["rules"]],
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
    of = {name: form.get("properties", {}) for name, form in defined.items()}
    patch, match = of["Patch"], of["Match"]
    for name, kind in KINDS.items():
        if kind.value == GradientSpec:
            patch[name] = {"$ref": "#/$defs/Gradient"}
    patch["surrogate_gradient"] = SOME_TEXT
    patch["on"] = _one_or_list({"type": "string"})
    goes_with = {
        option: _required_one([name for name, kind in KINDS.items() if option in kind.options])
        for option in OPTIONS
    }
    defined["Patch"] |= {
        "oneOf": [{"required": [name]} for name in KINDS],
        "dependentSchemas": {option: {"anyOf": forms} for option, forms in goes_with.items()},
    }
    named = [("DependencySearch", "of"), ("Between", "from"), ("Between", "to")]
    named += [("Inside", "loop"), ("Inside", "branch")]
    for name, key in (*named, *(("Match", key) for key in match.keys() - MAY_BE_EMPTY)):
        of[name][key] = _not_empty(of[name][key])
    for form in (defined["Inside"], defined["OneOf"], of["Pattern"]["nodes"]):
        form["minProperties"] = 1
    of["OneOf"]["in"]["minItems"] = 1
    defined["Near"]["anyOf"] = _required_one(["near", *Compared.__struct_encode_fields__])
    match["class"] = _one_or_list({"enum": list(CLASSES)})
    match["dtype"] = _one_or_list({"enum": list(dict.fromkeys(DTYPE_NAMES.values()))})
    match["nth"], of["Nth"]["at"] = _slices(match["nth"]), _slices(of["Nth"]["at"])
    for key in ("inputs", "consumers"):
        match[key]["propertyNames"] = {"pattern": r"^(\d+|any|all|none)$"}
    ready = {"enum": [f"@{name}" for name in READY]}
    text = {"type": "string", "pattern": r"^\s*[^@\s]"}
    pattern = {"anyOf": [ready, text, {"$ref": "#/$defs/Pattern"}]}
    several = {"type": "array", "items": pattern, "minItems": 1}
    match["pattern"] = {"anyOf": [*pattern["anyOf"], several]}
    defined["Match"] |= {
        "if": {"properties": {"control": {"const": True}}, "required": ["control"]},
        "then": {"anyOf": _required_one(ON_EDGES)},
    }
    defined["Rule"] |= {
        "if": {"properties": {"patch": {"required": ["on"]}}},
        "then": {"properties": {"match": {"required": ["pattern"]}}},
    }


def _required_one(keys: Any) -> list[Schema]:
    return [{"required": [key]} for key in keys]


def _one_or_list(form: Schema) -> Schema:
    return {"anyOf": [form, {"type": "array", "items": form, "minItems": 1}]}


def _not_empty(form: Schema) -> Schema:
    """Return the same, where a list has something in it."""
    if "anyOf" in form:
        return {"anyOf": [_not_empty(item) for item in form["anyOf"]]}
    return {**form, "minItems": 1} if form.get("type") == "array" else form


def _slices(form: Schema) -> Schema:
    """Return the same, where a text is a word or a slice, and a list has something in it."""
    words = {"pattern": f"^({'|'.join(NTH_WORDS)}|{SLICE.pattern})$"}
    forms = [item | words if item.get("type") == "string" else item for item in form["anyOf"]]
    return _not_empty({"anyOf": forms})


def gradient() -> Schema:
    """Return what flows back: a name, or an object with one key."""
    without_parameters = [name for name, entry in LIBRARY.items() if not _needed(entry)]
    one_for_each = {"type": "array", "items": {"anyOf": [SOME_TEXT, {"type": "null"}]}}
    formula = {"anyOf": [SOME_TEXT, {**one_for_each, "minItems": 1, "contains": SOME_TEXT}]}
    properties = {
        REGISTERED: {
            **SOME_TEXT,
            "description": "A gradient that the program that loads the file registers under this "
            "name.",
            "examples": ["MyGrad"],
        },
        FORMULA: {
            **formula,
            "description": "A formula of dy, inputs x0, x1, ... and outputs y0, ...; a list has "
            "one for each input.",
            "examples": ["where(dy > 0, dy, 0)"],
        },
        PYTHON: {
            "type": "string",
            "pattern": r"^[\w.]+:[\w.]+$",
            "description": "A Python function (op, *grads); it runs only with --allow-python.",
            "examples": ["mine.gradients:clipped"],
        },
        **{name: _parameters(entry) for name, entry in LIBRARY.items()},
    }
    return {
        "title": "Gradient",
        "description": "What flows back: a name, or one name with its parameters, or a formula.",
        "examples": ["guided_relu", {"scale": 0.5}, {"formula": "where(dy > 0, dy, 0)"}],
        "anyOf": [
            {"enum": [*DEFAULT, *without_parameters, *filter(is_registered, opdefs.op_types())]},
            {
                "type": "object",
                "properties": properties,
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": False,
            },
        ],
    }


def _needed(entry: Entry) -> list[str]:
    return [parameter.name for parameter in entry.parameters if parameter.default is None]


def _parameters(entry: Entry) -> Schema:
    """Return what may stand behind the name of a gradient."""
    numbers = {
        parameter.name: {"type": "number", "description": parameter.does}
        for parameter in entry.parameters
    }
    named: Schema = {"type": "object", "properties": numbers, "additionalProperties": False}
    named |= {"required": _needed(entry)} if _needed(entry) else {}
    forms = [named, {"type": "number"}] if len(numbers) == 1 else [named]
    return {"description": entry.purpose, "anyOf": forms}


# What commands print.

# Keys may be added without a new version; a key that goes, or means something else, makes one.
VERSION = 1

JsonForm = dict[str, Any]
TYPES: Mapping[Any, str] = {
    **{str: "string", int: "integer", float: "number", bool: "boolean"},
    **{dict: "object", list: "array", NoneType: "null"},
}


def json_form(of: Any) -> JsonForm:
    """Return the JSON Schema of an `OUTPUT`: a type, `[item]`, a tuple of texts, or an object.

    `{str: value}` is an object with keys of any name: ops, tensors, op types. A `key?` may be
    missing, others may be there. What is `Any` may be anything.
    """
    if isinstance(of, list):
        return {"type": "array", "items": json_form(of[0])}
    if isinstance(of, tuple):
        return {"enum": list(of)}
    if isinstance(of, UnionType):
        return {"type": [TYPES[each] for each in get_args(of)]}
    if not isinstance(of, dict):
        return {} if of is Any else {"type": TYPES[of]}
    if str in of:
        return {"type": "object", "additionalProperties": json_form(of[str])}
    properties = {key.rstrip("?"): json_form(value) for key, value in of.items()}
    required = [key for key in of if not key.endswith("?")]
    return {"type": "object", "properties": properties, "required": required}


def outputs() -> dict[str, JsonForm]:
    """Return by command the document that it prints; `check` prints one for each model."""
    forms = {name: _output_form(name) for name in sorted(COMMANDS)}
    return {name: form for name, form in forms.items() if form is not None}


def output_schema(command: str) -> JsonForm:
    """Return the JSON Schema of what `graphpatch COMMAND --json` prints, or raise RulesError."""
    form = _output_form(command) if command in COMMANDS else None
    if form is None:
        legal = outputs()
        near = did_you_mean(command, legal) or f"; these do: {', '.join(legal)}"
        raise RulesError(f"no command {command!r} prints a JSON document{near}")
    return {
        "$schema": DIALECT,
        "$id": f"urn:graphpatch:output:{command}:{VERSION}",
        "title": f"graphpatch {command} --json",
        **form,
    }


def _output_form(command: str) -> JsonForm | None:
    output = getattr(importlib.import_module(f"graphpatch.cli.{command}"), "OUTPUT", None)
    return output and json_form(output)


@options.command("schema", "schema > graphpatch.schema.json", "schema --output apply")
def command(
    json: bool = option("--json", "The output is JSON with or without it."),
    of: str | None = option("--output COMMAND", "The schema of what COMMAND --json prints."),
) -> None:
    """Print the JSON Schema of rules files, for editors that complete and check them."""
    say_json(output_schema(of) if of else schema(), indent=2)
