"""Rules files: what each key means, and from JSON to values, with errors that walk to the key."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from graphpatch.arguments import wrong_argument
from graphpatch.decoding import convert
from graphpatch.errors import GraphpatchError, RulesError, did_you_mean
from graphpatch.gradients.spec import refuse_python
from graphpatch.gradients.tensors import in_folder, with_tensors
from graphpatch.graph.record import AppliedRule, Author
from graphpatch.match.conditions import conditions
from graphpatch.match.glob import Texts, texts
from graphpatch.match.keys import described
from graphpatch.match.spec import WHOLE, Match
from graphpatch.match.values import Natural
from graphpatch.patches import KINDS, Patch
from graphpatch.recipes import is_recipe, recipe_rules
from graphpatch.rules_json import (
    DEEPEST_JSON,
    NO_RULE,
    WRITTEN,
    decoded,
    json_depth,
    msgspec_in_words,
    objects_by_key,
    raw_rules,
    value_at,
)

Emit = Literal["auto", "construction", "function", "attr"]
EMITS = get_args(Emit)


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a rule must match."""

    min: Annotated[int, described("The least number of matches; 0 allows none.", 1, at_least=0)] = 1
    max: Annotated[Natural | None, described("The largest number of matches. Default: any.", 4)] = (
        None
    )

    def __str__(self) -> str:
        if self.max is None:
            return f"at least {self.min}"
        return f"{self.min}" if self.min == self.max else f"{self.min} to {self.max}"


OPTIONS = {name: kind for one in KINDS.values() for name, kind in one.options.items()}

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


class RuleSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rule as a rules file writes it."""

    match: Annotated[
        Match,
        described("Which ops: all keys must hold.", {"op": ["Relu", "Relu6"], "name": "head/**"}),
    ]
    patch: Annotated[
        PatchSpec,  # type: ignore[valid-type]
        described(
            "What happens to each matched op: exactly one kind of patch.",
            {"override_gradient": "guided_relu"},
        ),
    ]
    name: Annotated[str, described("What reports and errors call the rule.", "guided backprop")] = (
        ""
    )
    expect: Annotated[
        Natural | Expect,
        described(
            "How often the rule must match: a number, or bounds. Default: at least once.",
            {"min": 1, "max": 4},
        ),
    ] = Expect()
    emit: Annotated[
        Emit | None,
        described(
            "How the file stores the new gradient. Default: auto, or --emit of the command.",
            "function",
        ),
    ] = None


class RulesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rules file."""

    version: Annotated[Literal[1], described("The version of the rule language.", 1)]
    rules: Annotated[
        tuple[RuleSpec, ...],
        described(
            "The rules, applied in order, each on the result of the one before.",
            [{"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}],
        ),
    ]
    written: Annotated[
        str,
        described(
            "The mark of a file that graphpatch wrote, and may replace while nobody has edited it.",
            "by graphpatch; checksum 3f9a51b2c07d46e8",
        ),
    ] = ""
    schema: Annotated[
        str,
        described(
            "The path of this schema, for editors; graphpatch does not read it.",
            "graphpatch.schema.json",
        ),
    ] = msgspec.field(default="", name="$schema")


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
        return f"<Rule {self.author.rule!r}: {'+'.join(self.told)}>"

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
    def told(self) -> Any:
        """Return the patch as a rules file writes it, to be written down in the model."""
        return msgspec.to_builtins(self.written.patch)


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
    if isinstance(path, Mapping) and "rules" in path:
        return rules_from({"version": 1, **path}, emit, allow_python)
    if isinstance(path, list | tuple) and all(isinstance(rule, Mapping) for rule in path):
        return rules_from(path, emit, allow_python)
    taken = "the path of a rules file, or the name of a recipe, or a list of dicts"
    if not isinstance(path, str | os.PathLike):
        raise wrong_argument("path", taken, path)
    if is_recipe(path):
        return rules_from(recipe_rules(str(path)), emit, allow_python)
    folder = Path() if str(path) == "-" else Path(path).parent
    return rules_in(raw_rules(path), str(path), emit, allow_python, folder)


def rules_in(
    raw: bytes,
    path: str,
    emit: str | None = None,
    allow_python: bool = False,
    folder: Path | None = None,
    allow_none: bool = False,
) -> list[Rule]:
    """Return the rules that the bytes of a file hold; `path` is what errors call it.

    Files that a rule names lie in `folder`.
    """
    try:
        return rules_from(decoded(raw), emit, allow_python, folder, allow_none)
    except RulesError as error:
        raise RulesError(f"{path}: {error}") from error


def rules_from(
    document: Any,
    emit: str | None = None,
    allow_python: bool = False,
    folder: Path | None = None,
    allow_none: bool = False,
) -> list[Rule]:
    """The rules of a parsed rules file, or of a list of rules; `.npy` files lie in `folder`."""
    if isinstance(document, Sequence) and not isinstance(document, str):
        document = {"version": 1, "rules": document}
    try:
        if json_depth(document) > DEEPEST_JSON:
            raise RulesError(f"it is nested more than {DEEPEST_JSON} levels deep")
        whole = with_tensors(document, in_folder(folder or Path()))
        file = convert(whole, RulesFile)
    except msgspec.ValidationError as error:
        raise RulesError(_readable_error(str(error), document)) from None
    if not file.rules and not allow_none:
        raise RulesError(NO_RULE)
    return [
        _read_rule(place, spec, emit or "auto", allow_python)
        for place, spec in enumerate(file.rules)
    ]


def _read_rule(place: int, spec: RuleSpec, emit: str, allow_python: bool) -> Rule:
    name = spec.name or f"rule {place + 1}"
    expect = Expect(spec.expect, spec.expect) if isinstance(spec.expect, int) else spec.expect
    try:
        if expect.max is not None and expect.max < expect.min:
            raise RulesError(f"expect: max, {expect.max}, is less than min, {expect.min}")
        patch = _read_patch(spec.patch, spec.emit or emit, allow_python)
        conditions(spec.match)
        on = _patched_captures(spec, patch)
    except GraphpatchError as error:
        raise RulesError(f"rules[{place}] ({name!r}): {error}") from error
    return Rule(spec, Author(name, _fingerprint(spec)), spec.match, patch, expect, on)


def _patched_captures(spec: RuleSpec, patch: Patch) -> tuple[str, ...]:
    """The ops of the pattern that the patch goes to, by name; none where the rule is silent."""
    captures: Any = getattr(spec.patch, "on")  # noqa: B009
    if captures is msgspec.UNSET:
        return ()
    from graphpatch.match.pattern.syntax import check_on

    on = texts(captures)
    check_on(spec.match, on)
    if WHOLE in on and not patch.takes_match:
        raise RulesError(
            f'patch.on: "{WHOLE}", a match as one op, does not go with '
            f"{next(_patch_kinds(spec.patch))}"
        )
    return on


def _patch_kinds(spec: Any) -> Iterator[str]:
    return (key for key in KINDS if getattr(spec, key) is not msgspec.UNSET)


def _read_patch(spec: Any, emit: str, allow_python: bool) -> Patch:
    written = {key: getattr(spec, key) for key in (*KINDS, *OPTIONS)}
    written = {key: value for key, value in written.items() if value is not msgspec.UNSET}
    kinds = list(_patch_kinds(spec))
    if len(kinds) != 1:
        problem = (
            f"found {len(kinds)}: {', '.join(kinds)}; write a rule for each"
            if kinds
            else "found none"
        )
        raise RulesError(f"patch: expected exactly one of {', '.join(KINDS)}; {problem}")
    kind, value = KINDS[kinds[0]], written.pop(kinds[0])
    foreign = sorted(written.keys() - kind.options.keys())
    if foreign:
        legal = [key for key, patch_kind in KINDS.items() if foreign[0] in patch_kind.options]
        raise RulesError(
            f"patch.{foreign[0]} does not go with {kinds[0]}; it goes with {' and '.join(legal)}"
        )
    try:
        if not allow_python:
            refuse_python(value)
        return kind.make(value, emit=emit, **written)
    except RulesError as error:
        raise RulesError(f"patch.{kinds[0]}: {error}") from error


def _fingerprint(spec: RuleSpec) -> str:
    """Return what a rule does, whatever its name: the same rule in another file has the same."""
    content = msgspec.json.encode([spec.match, spec.patch], order="deterministic")
    return hashlib.sha256(content).hexdigest()[:16]


def _readable_error(message: str, document: Any) -> str:
    """The message of msgspec with the path first, and the nearest legal key for an unknown one."""
    text, _, path = message.partition(" - at `$")
    path = path.rstrip("`").lstrip(".") or "at the top"
    last = re.sub(r"\[[^]]*\]", "", path).rpartition(".")[2]
    unknown = re.search(r"unknown field `(.+?)`", text)
    if unknown is not None:
        legal = _keys_at(last)
        near = "; nearest: op" if unknown[1] == "type" and "op" in legal else ""
        near = near or did_you_mean(unknown[1], legal)
        if last in _BESIDE and unknown[1] in _BESIDE - {last}:
            near = f"; it stands beside {last!r}, in the rule itself"
        return f"{path}: unknown key {unknown[1]!r}{near or '; legal: ' + ', '.join(legal)}"
    if text.startswith("Expected") and last in WRITTEN:
        return f"{path}: {msgspec_in_words(text)}; it is {WRITTEN[last]}"
    if text.startswith("Invalid enum value") or "matching regex" in text:
        value = text.removeprefix("Invalid enum value ")
        value = repr(value_at(document, path)) if value == text else value
        reason = {"False": "false"}.get(value, value)
        return f"{path}: {reason} is not a legal value; legal: {_VALUES.get(last, 'true')}"
    return f"{path}: {msgspec_in_words(text)}"


# What is legal where a value is one of a few; `true` where this is silent.
_VALUES = {
    "version": "1",
    "emit": ", ".join(EMITS),
    "at": "outputs, inputs, output:N, input:N (N is 0, 1, ...)",
    "inside": "loop, branch",
    "by": "graph, name, file",
}


_BESIDE = {field.encode_name for field in msgspec.structs.fields(RuleSpec)}


def _keys_at(last: str) -> list[str]:
    """Return the keys that are legal where the last key of a path is this one."""
    struct = RulesFile if last == "at the top" else objects_by_key(RulesFile).get(last, Match)
    return [field.encode_name for field in msgspec.structs.fields(struct)]
