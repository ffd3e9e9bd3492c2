"""Rules files: what each key means, and from JSON to values, with errors that walk to the key."""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin

import msgspec

from graphpatch.arguments import wrong_argument
from graphpatch.decoding import convert
from graphpatch.errors import GraphpatchError, ModelError, RulesError, did_you_mean
from graphpatch.formats import Model
from graphpatch.formats.container import is_text, recognise
from graphpatch.formats.foreign import foreign_file, not_there
from graphpatch.formats.load import HasModel
from graphpatch.gradients.spec import refuse_python
from graphpatch.gradients.tensors import Files, in_folder, with_tensors
from graphpatch.graph.record import AppliedRule, Author
from graphpatch.graph.wire import Source
from graphpatch.mapped import read_whole
from graphpatch.match.conditions import conditions
from graphpatch.match.glob import Texts, texts
from graphpatch.match.spec import META as META
from graphpatch.match.spec import WHOLE, Match, Natural, described, documented
from graphpatch.patches import KINDS, Patch
from graphpatch.recipes import is_recipe, recipe_called, recipe_of, recipe_rules

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
    r".?(?:True|False|None)\b": "JSON writes true, false and null",
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

RULES_TAKEN = "the path of a rules file, a list of rules, a dict with `rules`, or a graphpatch.Rule"
Emit = Literal["auto", "construction", "function", "attr"]
EMITS = get_args(Emit)


@documented
class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a rule must match.

    Keys:
        min: The least number of matches; 0 allows none. Example: 1
        max: The largest number of matches. Default: any. Example: 4
    """

    min: Natural = 1
    max: Natural | None = None

    def __str__(self) -> str:
        if self.max is None:
            return f"at least {self.min}"
        return f"{self.min}" if self.min == self.max else f"{self.min} to {self.max}"


OPTIONS = {name: kind for patch in KINDS.values() for name, kind in patch.options.items()}

_ON = described(
    'Which ops of the match\'s pattern, by name, or "match" for all as one. Default: the last one.',
    "act",
)

# One optional field for each kind of patch and each option: a line in the table of kinds is all
# that a new kind needs.
PatchSpec = msgspec.defstruct(
    "PatchSpec",
    [
        (name, value | msgspec.UnsetType, msgspec.UNSET)
        for name, value in [
            *((key, Annotated[kind.value, kind.described]) for key, kind in KINDS.items()),
            *OPTIONS.items(),
            ("on", Annotated[Texts, _ON]),  # whatever the kind
        ]
    ],
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
)


@documented
class RuleSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rule as a rules file writes it.

    Keys:
        match: Which ops: all keys must hold. Example: {"op": ["Relu", "Relu6"], "name": "head/**"}
        patch: What happens to each matched op: exactly one kind of patch.
            Example: {"override_gradient": "guided_relu"}
        name: What reports and errors call the rule. Example: "guided backprop"
        expect: How often the rule must match: a number, or bounds. Default: at least once.
            Example: {"min": 1, "max": 4}
        emit: How the file stores the new gradient. Default: auto, or --emit of the command.
            Example: "function"
    """

    match: Match
    patch: PatchSpec  # type: ignore[valid-type]
    name: str = ""
    expect: Natural | Expect = Expect()
    emit: Emit | None = None


@documented
class RulesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rules file.

    Keys:
        version: The version of the rule language. Example: 1
        rules: The rules, applied in order, each on the result of the one before.
            Example: [{"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}]
        written: The mark of a file that graphpatch wrote, and may replace while nobody has edited
            it. Example: "by graphpatch; checksum 3f9a51b2c07d46e8"
        $schema: The path of this schema, for editors; graphpatch does not read it.
            Example: "graphpatch.schema.json"
    """

    version: Literal[1]
    rules: tuple[RuleSpec, ...]
    written: str = ""
    schema: str = msgspec.field(default="", name="$schema")


@dataclass(frozen=True, slots=True, repr=False)
class Rule:
    """Which ops, what is done to them, and how many there must be.

    `on` names, where the match has a pattern, the ops of it that the patch goes to. `written` is
    the rule as a rules file has it.

    Example:
        >>> graphpatch.load_rules("rules.json")[0]
        <Rule 'guided': override_gradient>
    """

    written: RuleSpec
    author: Author
    match: Match
    patch: Patch
    expect: Expect
    on: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Rule {self.author.rule!r}: {'+'.join(self.written_patch)}>"

    @property
    def as_one(self) -> bool:
        """Return whether it takes each match of its pattern as one op."""
        return self.on == (WHOLE,)

    @property
    def applied(self) -> AppliedRule:
        """Return the rule as a patched model tells of it, so that it can be applied again."""
        written = {k: v for k, v in msgspec.to_builtins(self.written).items() if v is not None}
        emit = getattr(self.patch, "emit", "auto")
        document = {"name": self.author.rule, **written, "emit": emit}
        if emit == "auto":
            del document["emit"]
        return AppliedRule(self.author.rule, self.author.id, document)

    @property
    def written_patch(self) -> Any:
        """Return the patch as a rules file writes it, to be written down in the model."""
        return msgspec.to_builtins(self.written.patch)


# What functions take as their argument `rules`.
RulesLike: TypeAlias = (
    str | os.PathLike[str] | Mapping[str, Any] | Rule | Sequence[Rule | Mapping[str, Any]]
)


def load_rules(
    path: str | os.PathLike[str] | Mapping[str, Any] | Sequence[Mapping[str, Any]],
    emit: str | None = None,
    allow_python: bool = False,
) -> list[Rule]:
    """Read the rules of a file, or a list of them; `-` is standard input, `@NAME` a recipe.

    Args:
        path: The file; or a list of rules as dicts, or a dict with `rules`.
        emit: How gradients are stored where a rule does not say. Default: `auto`.
        allow_python: Let {"python": "package.module:function"} import that module and call the
            function when the rules are applied.

    Raises:
        RulesError: It is not JSON, with line and column; or not a rules file, with the key's path.
        TypeError: `path` is none of these.

    Example:
        >>> rules = graphpatch.load_rules("@guided_backprop")
    """
    return rules_of(path, allow_python, emit, "path")


def rules_of(
    rules: RulesLike, allow_python: bool = False, emit: str | None = None, argument: str = "rules"
) -> list[Rule]:
    """Return the rules that an argument of this name holds.

    A path, a dict with `rules`, one rule, or a list of them, each a dict or a `Rule`. Raises
    RulesError where one is not valid, TypeError where it is none of these.
    """
    if isinstance(rules, str | os.PathLike):
        return rules_in(raw_rules(rules), str(rules), emit, allow_python)
    if isinstance(rules, Mapping) and "rules" in rules:
        return rules_from({"version": 1, **rules}, emit, allow_python)
    listed = [rules] if isinstance(rules, Rule | Mapping) else rules
    if not isinstance(listed, list | tuple):
        more = ""
        if isinstance(rules, Model | HasModel):
            more = "; are the rules and the model swapped?"
        raise TypeError(f"{argument}: expected {RULES_TAKEN}; found {type(rules).__name__}{more}")
    for place, rule in enumerate(listed):
        if not isinstance(rule, Rule | Mapping):
            raise wrong_argument(f"{argument}[{place}]", "a dict or a Rule", rule)
    written = [rule for rule in listed if not isinstance(rule, Rule)]
    read = iter(rules_from(written, emit, allow_python) if written or not listed else ())
    return [rule if isinstance(rule, Rule) else next(read) for rule in listed]


def raw_rules(path: str | os.PathLike[str]) -> bytes:
    """Return what a rules file holds, or a recipe makes, with the tensors that it names.

    `-` is standard input. Raises RulesError where there is no such file or recipe.
    """
    if is_recipe(path):
        return msgspec.json.encode(recipe_rules(str(path)))
    is_piped = str(path) == "-"
    try:
        raw = read_whole(path)
    except FileNotFoundError as error:
        more = "; graphpatch.pattern takes the text of a pattern" if "->" in str(path) else ""
        raise RulesError(f"{not_there(Path(path))}{more}{recipe_called(path)}") from error
    except IsADirectoryError as error:
        raise RulesError(f"{path} is a folder; expected a rules file, in JSON") from error
    except OSError as error:
        name = "standard input" if is_piped else path
        raise RulesError(f"cannot read {name}: {error.strerror or error}") from error
    return self_contained(raw, str(path), in_folder(Path() if is_piped else Path(path).parent))


def rules_in(
    raw: bytes,
    path: str,
    emit: str | None = None,
    allow_python: bool = False,
    allow_none: bool = False,
) -> list[Rule]:
    """Return the rules that the bytes of a file hold; `path` is what errors call it."""
    try:
        return rules_from(decoded(raw), emit, allow_python, allow_none)
    except RulesError as error:
        raise RulesError(f"{path}: {error}") from error


def rules_from(
    document: Any,
    emit: str | None = None,
    allow_python: bool = False,
    allow_none: bool = False,
) -> list[Rule]:
    """Return the rules of a parsed file, or of a list of rules; `.npy` files lie in this folder."""
    if isinstance(document, Sequence) and not isinstance(document, str):
        document = {"version": 1, "rules": document}
    if is_too_deep(document):
        raise RulesError(f"it is nested more than {DEEPEST_JSON} levels deep")
    file = as_struct(document, RulesFile, with_tensors(document, in_folder(Path())))
    if not file.rules and not allow_none:
        raise RulesError(
            "rules: expected at least 1 rule, found none (apply needs no rule only to convert: "
            "with -o MODEL.meta, or with --inputs and --outputs)"
        )
    rules = []
    for place, spec in enumerate(file.rules):
        name = spec.name or f"rule {place + 1}"
        try:
            rules.append(_rule(name, spec, spec.emit or emit or "auto", allow_python))
        except GraphpatchError as error:
            raise RulesError(f"rules[{place}] ({name!r}): {error}") from error
    return rules


def _rule(name: str, spec: RuleSpec, emit: str, allow_python: bool) -> Rule:
    expect = Expect(spec.expect, spec.expect) if isinstance(spec.expect, int) else spec.expect
    if expect.max is not None and expect.max < expect.min:
        raise RulesError(f"expect: max, {expect.max}, is less than min, {expect.min}")
    written = {key: getattr(spec.patch, key) for key in (*KINDS, *OPTIONS, "on")}
    written = {key: value for key, value in written.items() if value is not msgspec.UNSET}
    on = written.pop("on", None)
    kinds = [key for key in KINDS if key in written]
    if len(kinds) != 1:
        problem = f"found {len(kinds)}: {', '.join(kinds)}; write a rule for each"
        problem = problem if kinds else "found none"
        raise RulesError(f"patch: expected exactly one of {', '.join(KINDS)}; {problem}")
    patch = _patch(kinds[0], written.pop(kinds[0]), written, emit, allow_python)
    conditions(spec.match)
    captures = () if on is None else texts(on)
    if on is not None:
        from graphpatch.match.pattern.syntax import check_on

        check_on(spec.match, captures)
        if WHOLE in captures and not patch.takes_match:
            raise RulesError(f'patch.on: "{WHOLE}", a match as one op, does not go with {kinds[0]}')
    # What a rule does, whatever its name: the same rule in another file has the same.
    content = msgspec.json.encode([spec.match, spec.patch], order="deterministic")
    author = Author(name, hashlib.sha256(content).hexdigest()[:16])
    return Rule(spec, author, spec.match, patch, expect, captures)


def _patch(
    name: str, value: Any, options: Mapping[str, Any], emit: str, allow_python: bool
) -> Patch:
    kind = KINDS[name]
    for foreign in sorted(options.keys() - kind.options.keys()):
        legal = [key for key, patch_kind in KINDS.items() if foreign in patch_kind.options]
        raise RulesError(
            f"patch.{foreign} does not go with {name}; it goes with {' and '.join(legal)}"
        )
    try:
        if not allow_python:
            refuse_python(value)
        return kind.make(value, emit=emit, **options)
    except RulesError as error:
        raise RulesError(f"patch.{name}: {error}{recipe_called(value)}") from error


def by_recipe(rules: Iterable[Rule]) -> list[list[Rule]]:
    """Return the rules that recipes made, those of each recipe together."""
    together: dict[str, list[Rule]] = {}
    for rule in rules:
        if recipe := recipe_of(rule.author.rule):
            together.setdefault(recipe.name, []).append(rule)
    return list(together.values())


# From JSON to values.


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
        repeated, constant = _refuse_repeated_keys, _refuse_constant
        json.loads(text, object_pairs_hook=repeated, parse_int=str, parse_constant=constant)
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


def _refuse_constant(name: str) -> None:
    raise RulesError(f"not valid JSON: it has no {name}; formulas have inf and nan")


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
    if not text.startswith(("Expected", "Invalid")):  # what a type of ours says
        raise RulesError(f"{where}: {text}")
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
