"""The JSON of a rules file: its values, or what is wrong with it, where, and what to do."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from graphpatch.decoding import convert
from graphpatch.errors import ModelError, RulesError, did_you_mean
from graphpatch.formats.container import is_text, recognise
from graphpatch.formats.foreign import foreign_file, not_there
from graphpatch.gradients.tensors import Files, with_tensors
from graphpatch.graph.wire import Source
from graphpatch.mapped import read_whole
from graphpatch.recipes import recipe_called

T = TypeVar("T", bound=msgspec.Struct)

DEEPEST_JSON = 120  # levels of JSON; each match in another one is at least one
SHORTEST = (
    '{"version": 1, "rules": [{"match": {"op": "Relu"}, "patch": {"override_gradient": '
    '"guided_relu"}}]}'
)
FROM_YAML = (
    "this looks like YAML, and rules are JSON; convert it: python -c "
    "'import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)' < OLD > NEW"
)
COMMENT = "JSON has no comments; remove this one (a rule can say what it is for in its `name`)"

# What a file that is not JSON looks like as a whole, and what to say then.
LOOKS = {
    r"\s*\Z": f"the file is empty; a rules file looks like this: {SHORTEST}",
    r"\s*\[\[?[a-z_.]+\]\]?\s*\n|\s*\w+ *= ": "this looks like TOML; rules are JSON",
    r"(?:---|[#%][^\n]*\n|\s)*(?:- )?[\w$]+:(?:\s|\Z)": FROM_YAML,
}

# What there is where JSON ends to be JSON, with the character before it.
ENDS = {
    r".?(?://|/\*|#)": COMMENT,
    r".?,\s*[]}]": "remove the comma before this bracket",
    r".?'": 'strings are in double quotes: "Relu"',
    r".?(?:True|False|None|NaN)\b": "JSON writes true, false and null",
    r".?\s*\Z": "it ends too early: a bracket or a quote is not closed",
}

# Keys that rules do not have, and what to write.
_OP_TYPE, _SCOPE = '"op": "Relu"', '"name": "SCOPE/**"'
WRITTEN = {
    **{"type": _OP_TYPE, "op_type": _OP_TYPE, "scope": _SCOPE, "layer": _SCOPE},
    "scale_gradient": '"filter_gradient": {"scale": 0.1}',
    "clip_gradient": '"filter_gradient": {"clip": {"min": -1, "max": 1}}',
    "reverse_gradient": '"filter_gradient": "reverse"',
    "count": '"expect": 4',
}

# The JSON types, as msgspec calls them and as users do.
TYPE_WORDS = {
    "object": "an object",
    "array": "a list",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}


def rules_file(path: str | os.PathLike[str]) -> bytes:
    """Return what a rules file holds; `-` is standard input. Raises RulesError."""
    try:
        return read_whole(path)
    except FileNotFoundError as error:
        more = "; graphpatch.pattern takes the text of a pattern" if "->" in str(path) else ""
        raise RulesError(f"{not_there(Path(path))}{more}{recipe_called(path)}") from error
    except IsADirectoryError as error:
        raise RulesError(f"{path} is a folder; expected a rules file, in JSON") from error
    except OSError as error:
        name = "standard input" if str(path) == "-" else path
        raise RulesError(f"cannot read {name}: {error.strerror or error}") from error


def self_contained(raw: bytes, path: str, files: Files) -> bytes:
    """Return the rules file with the tensors in it that it names in `files`."""
    try:
        document = decoded(raw)
        whole = document if is_too_deep(document) else with_tensors(document, files)
    except RulesError as error:
        raise RulesError(f"{path}: {error}") from error
    return raw if whole == document else msgspec.json.encode(whole)


def is_too_deep(document: Any) -> bool:
    """Return whether more lists and objects lie in each other than rules have."""
    level = [document]
    for _ in range(DEEPEST_JSON + 1):
        objects = [value.values() for value in level if isinstance(value, Mapping)]
        lists = [value for value in level if isinstance(value, list | tuple)]
        level = [value for values in (*objects, *lists) for value in values]
    return bool(level)


def decoded(raw: bytes) -> Any:
    """Return the values of a JSON document, which may start with a byte order mark.

    Raises RulesError with line and column where it is not JSON, or where a key is there twice.
    """
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode()
        # Of two equal keys the last would win, and a rule would do half of what it says.
        json.loads(text, object_pairs_hook=_refuse_repeated_keys)
        return msgspec.json.decode(text)
    except RecursionError:
        raise RulesError("it is nested too deeply: rules have some levels, not hundreds") from None
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode()
        reason = _binary(raw) or _not_json(before, len(before), "not UTF-8")
        raise RulesError(reason) from None
    except json.JSONDecodeError as error:
        if not is_text(raw):
            raise RulesError(_binary(raw)) from None
        around = text[: error.pos].rstrip()[-1:] + text[error.pos :]
        hint = _first_match(LOOKS, text) or _not_json(
            text, error.pos, _first_match(ENDS, around) or error.msg
        )
        raise RulesError(hint) from None
    except msgspec.DecodeError as error:  # what Python takes, and no other reader
        raise RulesError(f"not valid JSON: {error}") from None


def _first_match(hints: Mapping[str, str], text: str) -> str:
    return next((hint for expression, hint in hints.items() if re.match(expression, text)), "")


def _not_json(text: str, place: int, reason: str) -> str:
    before = text[:place]
    line, column = before.count("\n") + 1, place - before.rfind("\n")
    return f"line {line}, column {column}: not valid JSON: {reason}"


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_key = dict(pairs)
    for key in by_key if len(by_key) < len(pairs) else ():
        if sum(key == written for written, _ in pairs) > 1:
            raise RulesError(f"the key {key!r} is there twice in one object; remove one")
    return by_key


def _binary(raw: bytes) -> str:
    """Return what bytes that are not text are; nothing where they may be of another encoding."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "the text is UTF-16; save the file as UTF-8"
    try:
        what = f"a {recognise(Source(raw)).name}"
    except ModelError:
        what = foreign_file("it", raw).partition(";")[0] or ("" if is_text(raw) else "binary data")
    return what and f"expected a rules file, found {what}; RULES come first, then MODEL"


def as_struct(document: Any, kind: type[T], whole: Any) -> T:
    """Return a document as a typed value; `whole` is the document with its tensors in it.

    Raises RulesError that begins with the path of the key, and says what is legal there: the keys,
    with the nearest to an unknown one, the values where they are few, or an example.
    """
    try:
        return convert(whole, kind)
    except msgspec.ValidationError as error:
        message = str(error)
    text, _, path = message.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    outer, _, last = re.sub(r"\[[^]]*\]", "", path).rpartition(".")
    by_key: dict[str, type[msgspec.Struct]] = {"": kind, **_structs_by_key(kind)}

    def fields(key: str) -> dict[str, Any]:
        struct = by_key.get(key, by_key["match"])
        return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}

    where = path or "at the top"
    unknown = re.search(r"unknown field `(.+?)`", text)
    if unknown is not None:
        keys, key = fields(last), unknown[1]
        meant = WRITTEN.get(key, "")
        is_meant = meant.partition('"')[2].partition('"')[0] in keys
        near = f"; write: {meant}" if is_meant else did_you_mean(key, keys)
        if last in ("match", "patch") and key in fields("rules"):
            near = f"; it stands beside {last!r}, in the rule itself"
        raise RulesError(f"{where}: unknown key {key!r}{near or '; legal: ' + ', '.join(keys)}")
    missing = re.match(r"Object missing required field `(.+?)`", text)
    if missing is not None:
        example = _example(missing[1], fields(last)[missing[1]])
        raise RulesError(f"{where}: the key {missing[1]!r} is missing{example}")
    of_key = fields(outer.rpartition(".")[2]).get(last)
    if text.startswith("Expected") and "matching regex" not in text:
        raise RulesError(f"{where}: {_in_words(text)}{_example(last, of_key)}")
    value = document
    for name, place in re.findall(r"(\w+)|\[(\d+)\]", path):
        value = value[int(place)] if place else value[name]
    parts = list(_parts(of_key))
    literals = (value for part in parts if get_origin(part) is Literal for value in get_args(part))
    texts = [part.description for part in parts if isinstance(part, msgspec.Meta)]
    legal = ", ".join(map(json.dumps, literals))
    legal = f"legal: {legal}" if legal else next(filter(None, texts), "").rstrip(".")
    legal = legal[:1].lower() + legal[1:]
    raise RulesError(f"{where}: {json.dumps(value)} is not a legal value; {legal}")


def _in_words(text: str) -> str:
    """Return what msgspec says of a value, in the words of JSON's users."""
    wrong = re.fullmatch(r"Expected `(.+?)`, got `(.+?)`", text)
    if wrong is None:
        text = re.sub(r"Expected `array` of length >=", "expected a list of at least", text)
        return re.sub(r"Expected `(?:int|float)` >=", "expected a number of at least", text)
    types = wrong[1].split(" | ")
    # A key that may be null may as well be left out, and a whole number is a number.
    left_out = {"null", "int"} if "float" in types else {"null"}
    words = [TYPE_WORDS.get(name, name) for name in types if name not in left_out]
    listed = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    return f"expected {listed}, found {TYPE_WORDS.get(wrong[2], wrong[2])}"


def _example(key: str, of_key: Any) -> str:
    """Return what follows a message: how a key is written."""
    examples = (part.examples for part in _parts(of_key) if isinstance(part, msgspec.Meta))
    example = next(filter(None, examples), None)
    return "" if example is None else f'; for example "{key}": {json.dumps(example[0])}'


def _parts(of: Any) -> Iterator[Any]:
    """Yield a type, and what it is made of: all that a union may be, what a list has in it."""
    level = [of]
    while level:
        yield from level
        level = [
            inner for part in level if get_origin(part) is not Literal for inner in get_args(part)
        ]


def _structs_by_key(top: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """Return by key the objects that may stand in this one and in those within it, however deep.

    Of a key that may have several, the first one; of an edge, which is a list, its own.
    """
    by_key: dict[str, type[msgspec.Struct]] = {}
    todo, visited = [top], {top}
    while todo:
        for field in msgspec.structs.fields(todo.pop()):
            for struct in _parts(field.type):
                if not (isinstance(struct, type) and issubclass(struct, msgspec.Struct)):
                    continue
                if not struct.__struct_config__.array_like:
                    by_key.setdefault(field.encode_name, struct)
                if struct not in visited:
                    visited.add(struct)
                    todo.append(struct)
    return by_key
