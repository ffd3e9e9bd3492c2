"""Rules files: what each key means, and from JSON to values, with errors that walk to the key."""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta
from msgspec.structs import fields

from graphpatch.decoding import convert
from graphpatch.errors import GraphpatchError, RulesError, did_you_mean, wrong_argument
from graphpatch.formats import Model
from graphpatch.formats.foreign import is_text, not_there
from graphpatch.formats.load import HasModel
from graphpatch.gradients.spec import refuse_python
from graphpatch.gradients.tensors import Files, in_folder, with_tensors
from graphpatch.graph.record import AppliedRule, Author
from graphpatch.mapped import read_whole
from graphpatch.match.select import conditions
from graphpatch.match.spec import META as META
from graphpatch.match.spec import WHOLE, Match, Natural, described, documented
from graphpatch.names import Texts, texts
from graphpatch.patches import KINDS, Patch
from graphpatch.recipes import is_recipe, recipe_called, recipe_of, recipe_rules

T = TypeVar("T", bound=msgspec.Struct)
DEEPEST_JSON = 120  # levels of JSON; each match in another one is at least one
SHORTEST = (
    '{"version": 1, "rules": [{"match": {"op": "Relu"}, "patch": {"override_gradient": '
    '"guided_relu"}}]}'
)
JSON_IS = (
    "JSON has no comments and no comma before a closing bracket, and strings are in double quotes; "
    f"a rules file looks like this: {SHORTEST}"
)
NO_RULES_FILE = "expected a rules file, in JSON; RULES come first, then MODEL"
TOO_DEEP = f"it is nested more than {DEEPEST_JSON} levels deep"

RULE_KEYS = ("name", "expect", "emit")
# Keys that a match, a patch or a rule does not have, and what to write.
_OP_TYPE, _SCOPE = '"op": "Relu"', '"name": "SCOPE/**"'
WRITTEN = {
    **{"Match.type": _OP_TYPE, "Match.op_type": _OP_TYPE},
    **{"Match.scope": _SCOPE, "Match.layer": _SCOPE},
    "PatchSpec.scale_gradient": '"filter_gradient": {"scale": 0.1}',
    "PatchSpec.clip_gradient": '"filter_gradient": {"clip": {"min": -1, "max": 1}}',
    "PatchSpec.reverse_gradient": '"filter_gradient": "reverse"',
    "RuleSpec.count": '"expect": 4',
    **{f"PatchSpec.{key}": f'"{key}" beside "patch", in the rule itself' for key in RULE_KEYS},
    **{f"Match.{key}": f'"{key}" beside "match", in the rule itself' for key in RULE_KEYS[1:]},
}

# What msgspec says of a value, in the words of JSON's users.
IN_WORDS = {
    " | null`": "`",  # a key that may be null may as well be left out
    "int | float": "float",
    " | ": "` or `",
    "Expected": "expected",
    "got": "found",
    "Invalid enum value": "not a legal value:",
    "`object`": "an object",
    "`array`": "a list",
    "`str`": "a string",
    "`int`": "a whole number",
    "`float`": "a number",
    "`bool`": "true or false",
    "`null`": "null",
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
        return rules_at(rules, emit, allow_python)
    if isinstance(rules, Mapping) and "rules" in rules:
        return rules_from({"version": 1, **rules}, emit, allow_python)
    listed = [rules] if isinstance(rules, Rule | Mapping) else rules
    if not isinstance(listed, list | tuple):
        swapped = isinstance(rules, Model | HasModel)
        more = "; are the rules and the model swapped?" if swapped else ""
        raise TypeError(f"{wrong_argument(argument, RULES_TAKEN, rules)}{more}")
    for place, rule in enumerate(listed):
        if not isinstance(rule, Rule | Mapping):
            raise wrong_argument(f"{argument}[{place}]", "a dict or a Rule", rule)
    return rules_from(listed, emit, allow_python)


def rules_at(
    path: str | os.PathLike[str],
    emit: str | None = None,
    allow_python: bool = False,
    allow_none: bool = False,
) -> list[Rule]:
    """Return the rules of a file, which may name .npy files beside it, or of a recipe.

    `-` is standard input. Raises RulesError where there is no such file or recipe, or it is wrong.
    """
    try:
        raw = msgspec.json.encode(recipe_rules(str(path))) if is_recipe(path) else read_whole(path)
    except FileNotFoundError as error:
        more = "; graphpatch.pattern takes the text of a pattern" if "->" in str(path) else ""
        raise RulesError(f"{not_there(Path(path))}{more}{recipe_called(path)}") from error
    except OSError as error:
        name = "standard input" if str(path) == "-" else path
        reason = error.strerror or error
        raise RulesError(f"cannot read {name}: {reason}; {NO_RULES_FILE}") from error
    files = in_folder(Path(path).parent)
    return rules_in(raw, str(path), emit, allow_python, allow_none, files)


def rules_in(
    raw: bytes,
    path: str,
    emit: str | None = None,
    allow_python: bool = False,
    allow_none: bool = False,
    files: Files | None = None,
) -> list[Rule]:
    """Return the rules that the bytes of a file hold; `path` is what errors call it."""
    try:
        return rules_from(decoded(raw), emit, allow_python, allow_none, files)
    except RulesError as error:
        raise RulesError(f"{path}: {error}") from error


def rules_from(
    document: Any,
    emit: str | None = None,
    allow_python: bool = False,
    allow_none: bool = False,
    files: Files | None = None,
) -> list[Rule]:
    """Return the rules of a parsed file, or of a list of rules, in which a Rule is what it is.

    `files` gives the `.npy` files that they name; default: those of the working directory.
    """
    ready: dict[int, Rule] = {}
    if isinstance(document, list | tuple):
        ready = {place: rule for place, rule in enumerate(document) if isinstance(rule, Rule)}
        written = [rule.written if isinstance(rule, Rule) else rule for rule in document]
        document = {"version": 1, "rules": written}
    if is_too_deep(document):
        raise RulesError(TOO_DEEP)
    file = as_struct(with_tensors(document, files), RulesFile)
    try:  # a patched model carries its rules as JSON
        json.dumps(document, default=repr, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        text = f"{error.object[error.start : error.end]!r}, half of a surrogate pair"
        raise RulesError(f"a text of the rules holds {text}, which JSON cannot have") from None
    if not file.rules and not allow_none:
        raise RulesError(
            "rules: expected at least 1 rule, found none (apply needs no rule only to convert: "
            "with -o MODEL.meta, or with --inputs and --outputs)"
        )
    rules = []
    for place, spec in enumerate(file.rules):
        if place in ready:
            rules.append(ready[place])
            continue
        name = spec.name or f"rule {place + 1}"
        try:
            rules.append(_rule(name, spec, spec.emit or emit or "auto", allow_python))
        except GraphpatchError as error:
            raise RulesError(f"rules[{place}] ({name!r}): {error}") from error
    return rules


def match_from(match: object) -> Match:
    """Return a match without a rule, from the keys of `match` in a rules file.

    A rule is read in the one place that knows what is legal; its patch is not looked at.
    """
    [rule] = rules_from([{"match": match, "patch": {"stop_gradient": True}}])
    return rule.match


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
        _check_on(spec.match, captures)
        if WHOLE in captures and not patch.takes_match:
            raise RulesError(f'patch.on: "{WHOLE}", a match as one op, does not go with {kinds[0]}')
    # What a rule does, whatever its name: the same rule in another file has the same.
    content = msgspec.json.encode([spec.match, spec.patch], order="deterministic")
    author = Author(name, hashlib.sha256(content).hexdigest()[:16])
    return Rule(spec, author, spec.match, patch, expect, captures)


def _check_on(match: Match, on: Sequence[str]) -> None:
    """Raise RulesError where a patch names ops that the pattern of its match does not have."""
    from graphpatch.match.syntax import forms  # here: it brings the parser

    if match.pattern is None:
        raise RulesError(
            "patch.on names an op of match.pattern, and the match has no pattern; leave on out"
        )
    if not on or (WHOLE in on and len(on) > 1):
        raise RulesError(f'patch.on: names of the pattern\'s ops, or "{WHOLE}" for all as one')
    for wanted in match.pattern if isinstance(match.pattern, tuple) else (match.pattern,):
        for form, name in product(forms(wanted), on):
            if name not in (*form.present, WHOLE):
                legal = f"; legal: {', '.join(form.present)}, {WHOLE}"
                near = did_you_mean(name, form.present) or legal
                text = f"\n  {wanted}" if isinstance(wanted, str) else ""
                raise RulesError(f"patch.on: no op of the pattern is called {name!r}{near}{text}")


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
    try:
        text = raw.removeprefix(codecs.BOM_UTF8).decode()
        # Of two equal keys the last would win, and a rule would do half of what it says.
        json.loads(text, object_pairs_hook=_refuse_repeated_keys, parse_int=str)
        return msgspec.json.decode(text)
    except RecursionError:
        raise RulesError(TOO_DEEP) from None
    except UnicodeDecodeError as error:
        raise RulesError(f"byte {error.start} is not text in UTF-8; {NO_RULES_FILE}") from None
    except json.JSONDecodeError as error:
        if not is_text(raw):
            raise RulesError(f"it is not text; {NO_RULES_FILE}") from None
        where = f"line {error.lineno}, column {error.colno}"
        raise RulesError(f"{where}: not valid JSON: {error.msg}; {JSON_IS}") from None
    except msgspec.DecodeError as error:  # what Python takes, and no other reader
        raise RulesError(f"not valid JSON: {error}; {JSON_IS}") from None


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_key = dict(pairs)
    for key in by_key if len(by_key) < len(pairs) else ():
        if sum(key == written for written, _ in pairs) > 1:
            raise RulesError(f"the key {key!r} is there twice in one object; remove one")
    return by_key


def as_struct(document: Any, kind: type[T]) -> T:
    """Return a document as a typed value.

    Raises RulesError: the path of the key, what is wrong there, and what is legal: the nearest
    key or all of them, the values where they are few, or an example.
    """
    try:
        return convert(document, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
    for theirs, ours in IN_WORDS.items():
        problem = problem.replace(theirs, ours)
    place = place.rstrip("`").lstrip(".")
    path = re.sub(r"\[[^]]*\]", "", place).split(".")
    of_object = re.fullmatch(r"Object (.*) field `(.+)`", problem)  # it has or lacks this key
    key = of_object[2] if of_object else path.pop()
    structs: list[type[msgspec.Struct]] = [kind]
    for name in filter(None, path):
        named = [field for s in structs for field in fields(s) if field.encode_name == name]
        structs = [struct for field in named for struct in _structs_in(field.type)]
    types = {field.encode_name: field.type for s in structs for field in fields(s)}
    if of_object and key not in types:
        instead = next((w for s in structs if (w := WRITTEN.get(f"{s.__name__}.{key}"))), "")
        right = f"write: {instead}" if instead else did_you_mean(key, types).removeprefix("; ")
        problem, right = f"unknown key {key!r}", right or f"legal: {', '.join(types)}"
    else:
        problem = f"the key {key!r} is missing" if of_object else problem
        parts = list(_parts(types.get(key)))
        values = [v for part in parts if get_origin(part) is Literal for v in get_args(part)]
        examples = [part.examples[0] for part in parts if isinstance(part, Meta) and part.examples]
        right = f'for example "{key}": {json.dumps(examples[0])}' if examples else ""
        right = (
            f"legal: {', '.join(map(json.dumps, values))}" if "not a legal" in problem else right
        )
    raise RulesError(f"{place or 'at the top'}: {'; '.join(filter(None, (problem, right)))}")


def _parts(of: Any) -> Iterator[Any]:
    """Yield a type, and what it is made of: all that a union may be, what a list has in it."""
    yield of
    for inner in () if get_origin(of) is Literal else get_args(of):
        yield from _parts(inner)


def _structs_in(of: Any) -> Iterator[type[msgspec.Struct]]:
    """Yield the objects that a value of this type holds; of an edge, which is a list, its own."""
    for part in _parts(of):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            if part.__struct_config__.array_like:
                for field in fields(part):
                    yield from _structs_in(field.type)
            else:
                yield part
