"""The JSON of a rules file: its values, or what is wrong with it, where, and what to do."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from graphpatch.errors import ModelError, RulesError
from graphpatch.formats.container import is_text, recognise
from graphpatch.formats.foreign import foreign_file, not_there
from graphpatch.gradients.tensors import Files, with_tensors
from graphpatch.graph.wire import Source
from graphpatch.mapped import read_whole
from graphpatch.recipes import RECIPES, SIGN

DEEPEST_JSON = 120  # levels of JSON; each match in another one is at least one
SHORTEST = (
    '{"version": 1, "rules": [{"match": {"op": "Relu"}, "patch": {"override_gradient": '
    '"guided_relu"}}]}'
)
_FROM_YAML = (
    "this looks like YAML, and rules are JSON; convert it: python -c "
    "'import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)' < OLD > NEW"
)
_COMMENT = "JSON has no comments; remove this one (a rule can say what it is for in its `name`)"

NO_RULE = (
    "rules: expected at least 1 rule, found none (apply needs no rule only to convert: "
    "with -o MODEL.meta, or with --inputs and --outputs)"
)

# What a file that is not JSON looks like as a whole, and what to say then.
LOOKS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\s*\Z"), f"the file is empty; a rules file looks like this: {SHORTEST}"),
    (re.compile(r"\s*\[\[?[a-z_.]+\]\]?\s*\n|\s*\w+ *= "), "this looks like TOML; rules are JSON"),
    (re.compile(r"(?:---|[#%][^\n]*\n|\s)*(?:- )?[\w$]+:(?:\s|\Z)"), _FROM_YAML),
)

# What there is where JSON ends to be JSON.
FOUND: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"//|/\*|#"), _COMMENT),
    (re.compile(r"'"), 'strings are in double quotes: "Relu"'),
    (re.compile(r"(?:True|False|None|NaN)\b"), "JSON writes true, false and null"),
)

# The reasons of msgspec, in the words of a user.
JSON_FAULTS = {
    "Input data was truncated": "it ends too early: a bracket or a quote is not closed",
    "trailing comma in array": "remove the comma before this ]",
    "trailing comma in object": "remove the comma before this }",
    "object keys must be strings": 'keys are in double quotes: "match"',
    "trailing characters": "expected nothing after the last bracket",
}

# The JSON types, as msgspec calls them and as users do; null stands for a key that is not there.
TYPE_WORDS = {
    "object": "an object",
    "array": "a list",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
}

# How the keys that an object must have are written.
LIKE = {
    "version": '"version": 1',
    "rules": '"rules": [...], with a list of rules',
    "match": '"match": {"op": "Relu"}, or what else says which ops',
    "patch": '"patch": {"override_gradient": "guided_relu"}, or what else is to be done',
}


def raw_rules(path: str | os.PathLike[str]) -> bytes:
    """What a rules file holds; `-` is standard input. Raises RulesError where it is not read."""
    try:
        return read_whole(path)
    except FileNotFoundError as error:
        called = f"; the recipe of this name is {SIGN}{path}" if str(path) in RECIPES else ""
        raise RulesError(f"{not_there(Path(path))}{called}") from error
    except IsADirectoryError as error:
        raise RulesError(f"{path} is a folder; expected a rules file, in JSON") from error
    except OSError as error:
        name = "standard input" if str(path) == "-" else path
        raise RulesError(f"cannot read {name}: {error.strerror or error}") from error


def self_contained(raw: bytes, path: str, files: Files) -> bytes:
    """The rules file with the tensors in it that it names in `files`, for readers elsewhere."""
    try:
        document = decoded(raw)
        whole = document if json_depth(document) > DEEPEST_JSON else with_tensors(document, files)
    except RulesError as error:
        raise RulesError(f"{path}: {error}") from error
    return raw if whole == document else msgspec.json.encode(whole)


def json_depth(document: Any) -> int:
    """Return how many lists and objects lie in each other, counted up to one too many."""
    level, depth = [document], 0
    while level and depth <= DEEPEST_JSON:
        level = [value for some in level for value in _values_inside(some)]
        depth += 1
    return depth


def _values_inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def decoded(raw: bytes) -> Any:
    """Return the values of a JSON document, which may start with a byte order mark.

    Raises RulesError with line and column where it is not JSON, or where a key is there twice.
    """
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode()
        document = msgspec.json.decode(text)
        # msgspec lets the last of two equal keys win, and a rule would do half of what it says.
        json.loads(text, object_pairs_hook=_refuse_repeated_keys)
        return document
    except RecursionError:
        raise RulesError("it is nested too deeply: rules have some levels, not hundreds") from None
    except UnicodeDecodeError as error:
        raise RulesError(_binary(raw) or _at(raw, error.start, "not UTF-8")) from None
    except msgspec.DecodeError as error:
        if not is_text(raw):
            raise RulesError(_binary(raw)) from None
        raise RulesError(_not_json(raw, str(error))) from None


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_key: dict[str, Any] = {}
    for key, value in pairs:
        if key in by_key:
            raise RulesError(f"the key {key!r} is there twice in one object; remove one")
        by_key[key] = value
    return by_key


def _binary(raw: bytes) -> str:
    """What bytes that are not text are; nothing where they may be text of another encoding."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "the text is UTF-16; save the file as UTF-8"
    try:
        what = f"a {recognise(Source(raw)).name}"
    except ModelError:
        what = foreign_file("it", raw).partition(";")[0] or ("" if is_text(raw) else "binary data")
    return what and f"expected a rules file, found {what}; RULES come first, then MODEL"


def _not_json(raw: bytes, said: str) -> str:
    text = raw.decode()
    whole = next((says for expression, says in LOOKS if expression.match(text)), "")
    byte = re.search(r"byte (\d+)", said)
    place = int(byte[1]) if byte else len(raw)
    place -= "trailing characters" in said  # there msgspec counts from 1
    rest = raw[place:].decode(errors="replace")
    reason = said.removeprefix("JSON is malformed: ").partition(" (byte")[0]
    here = next(
        (says for expression, says in FOUND if expression.match(rest)),
        JSON_FAULTS.get(reason, reason),
    )
    return whole or _at(raw, place, here)


def _at(raw: bytes, place: int, reason: str) -> str:
    before = raw[:place]
    line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
    return f"line {line}, column {column}: not valid JSON: {reason}"


def value_at(document: Any, path: str) -> Any:
    """Return the value at a path as msgspec writes it: `rules[0].patch.at`."""
    for key, place in re.findall(r"(\w+)|\[(\d+)\]", path):
        document = document[int(place)] if place else document[key]
    return document


def msgspec_in_words(text: str) -> str:
    """Return what msgspec says of a value, in the words of JSON's users."""
    if text.startswith("Object missing required field"):
        key = text.split("`")[1]
        return f"the key {key!r} is missing" + (f"; write {LIKE[key]}" if key in LIKE else "")
    wrong = re.fullmatch(r"Expected `(.+?)`, got `(.+?)`", text)
    if wrong is not None:
        return (
            f"expected {_any_of(wrong[1].split(' | '))}, found {TYPE_WORDS.get(wrong[2], wrong[2])}"
        )
    short = re.fullmatch(r"Expected `array` of length >= (\d+)", text)
    if short is not None:
        return f"the list is empty; at least {short[1]} is needed"
    bound = re.fullmatch(r"Expected `(?:int|float)` >= (\d+)", text)
    return text if bound is None else f"expected a number of at least {bound[1]}"


def _any_of(types: Sequence[str]) -> str:
    """Types in words; a key that may be null may as well be left out, and nobody writes null."""
    left_out = {"null", "int"} if "float" in types else {"null"}
    words = [
        TYPE_WORDS.get(type_name, type_name) for type_name in types if type_name not in left_out
    ]
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def objects_by_key(top: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """By key, the objects that may stand in this one and in those within it, however deep.

    Of a key that may have several, the first one.
    """
    by_key: dict[str, type[msgspec.Struct]] = {}
    todo, visited = [top], {top}
    while todo:
        for field in msgspec.structs.fields(todo.pop()):
            for struct in _structs(field.type):
                if not struct.__struct_config__.array_like:
                    by_key.setdefault(field.encode_name, struct)
                if struct not in visited:
                    visited.add(struct)
                    todo.append(struct)
    return by_key


def _structs(of: Any) -> Iterator[type[msgspec.Struct]]:
    """The objects in a type, those within lists last; of an edge, which is a list, its own."""
    level = [of]
    while level:
        for part in level:
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                yield part
                if part.__struct_config__.array_like:
                    for field in msgspec.structs.fields(part):
                        yield from _structs(field.type)
        level = [inner for part in level for inner in get_args(part)]


_WHICH = 'which of them, and what that must be: {"0": {"op": "Relu"}}, or "any", "all", "none"'
_LIST = 'a list of matches: [{"op": "Relu"}, {"name": "x"}]'
WRITTEN = {
    "inputs": _WHICH,
    "consumers": _WHICH,
    "any": _LIST,
    "all": _LIST,
    "not": 'a match: {"op": "Relu"}',
    "patch": 'a kind of patch, and its value: {"override_gradient": "guided_relu"}',
    "stop_gradient": "true; where nothing is to be stopped, leave the rule out",
}
"""How a value is written, where the JSON type alone does not tell."""
