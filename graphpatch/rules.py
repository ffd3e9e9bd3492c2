"""Rules files: from JSON to values, with errors that walk to the key; and their JSON Schema."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from graphpatch.errors import GraphpatchError, RulesError, did_you_mean
from graphpatch.graph.provenance import Author
from graphpatch.match.conditions import conditions
from graphpatch.match.spec import Match
from graphpatch.patches import KINDS, Patch

Emit = Literal["auto", "function", "attr"]
EMITS = get_args(Emit)


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a rule must match."""

    min: Annotated[int, msgspec.Meta(ge=0)] = 1
    max: Annotated[int, msgspec.Meta(ge=0)] | None = None

    def __str__(self) -> str:
        if self.max is None:
            return f"at least {self.min}"
        return f"{self.min}" if self.min == self.max else f"{self.min} to {self.max}"


_OPTIONS = {name: kind for one in KINDS.values() for name, kind in one.options.items()}

# One optional field for each kind of patch and each option: a line in the table of kinds is all
# that a new kind needs.
PatchSpec = msgspec.defstruct(
    "PatchSpec",
    [
        (name, value | msgspec.UnsetType, msgspec.UNSET)
        for name, value in [*((key, kind.value) for key, kind in KINDS.items()), *_OPTIONS.items()]
    ],
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
)


class RuleSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rule as a rules file writes it."""

    match: Match
    patch: PatchSpec  # type: ignore[valid-type]
    name: str = ""
    expect: Annotated[int, msgspec.Meta(ge=0)] | Expect = Expect()
    emit: Emit | None = None


class RulesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rules file."""

    version: Literal[1]
    rules: Annotated[tuple[RuleSpec, ...], msgspec.Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Rule:
    """Which ops, what is done to them, and how many there must be."""

    author: Author
    match: Match
    patch: Patch
    expect: Expect


def load_rules(path: str | Path, emit: str | None = None) -> list[Rule]:
    """The rules of a file; `-` reads standard input. `emit` stands where a rule names no carrier.

    Raises RulesError with line and column where it is no JSON, and with the way to the key where
    it is no rules file.
    """
    try:
        raw = Path("/dev/stdin" if str(path) == "-" else path).read_bytes()
    except OSError as error:
        raise RulesError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        return rules_from(_decoded(raw), emit)
    except RulesError as error:
        raise RulesError(f"{path}: {error}") from error


def rules_from(document: Any, emit: str | None = None) -> list[Rule]:
    """The rules of a parsed rules file, or of a list of rules."""
    if isinstance(document, Sequence) and not isinstance(document, str):
        document = {"version": 1, "rules": document}
    try:
        file = msgspec.convert(document, RulesFile)
    except msgspec.ValidationError as error:
        raise RulesError(_legal(str(error))) from None
    return [_rule(place, spec, emit or "auto") for place, spec in enumerate(file.rules)]


def schema() -> dict[str, Any]:
    """The JSON Schema of rules files."""
    return msgspec.json.schema(RulesFile)


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        at = re.search(r"byte (\d+)", str(error))
        before = raw[: int(at[1])] if at else raw
        line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
        reason = str(error).removeprefix("JSON is malformed: ").partition(" (byte")[0]
        raise RulesError(f"line {line}, column {column}: not valid JSON: {reason}") from None


def _rule(place: int, spec: RuleSpec, emit: str) -> Rule:
    name = spec.name or f"rule {place + 1}"
    expect = Expect(spec.expect, spec.expect) if isinstance(spec.expect, int) else spec.expect
    try:
        patch = _patch(spec.patch, spec.emit or emit)
        conditions(spec.match)
    except GraphpatchError as error:
        raise RulesError(f"rules[{place}] ({name!r}): {error}") from error
    return Rule(Author(name, _fingerprint(spec)), spec.match, patch, expect)


def _patch(spec: Any, emit: str) -> Patch:
    given = {key: getattr(spec, key) for key in (*KINDS, *_OPTIONS)}
    given = {key: value for key, value in given.items() if value is not msgspec.UNSET}
    kinds = [key for key in given if key in KINDS]
    if len(kinds) != 1:
        found = f"not {len(kinds)} ({', '.join(kinds)})" if kinds else "and there is none"
        raise RulesError(f"patch: exactly one of {', '.join(KINDS)} must be there, {found}")
    kind, value = KINDS[kinds[0]], given.pop(kinds[0])
    foreign = sorted(given.keys() - kind.options.keys())
    if foreign:
        raise RulesError(f"patch.{foreign[0]} does not go with {kinds[0]}")
    try:
        return kind.make(value, emit=emit, **given)
    except RulesError as error:
        raise RulesError(f"patch.{kinds[0]}: {error}") from error


def _fingerprint(spec: RuleSpec) -> str:
    """What a rule does, whatever its name: the same rule in another file has the same."""
    content = msgspec.json.encode([spec.match, spec.patch], order="deterministic")
    return hashlib.sha256(content).hexdigest()[:16]


def _legal(message: str) -> str:
    """The message of msgspec with the path first, and the nearest legal key for an unknown one."""
    text, _, path = message.partition(" - at `$")
    path = path.rstrip("`").lstrip(".") or "at the top"
    unknown = re.search(r"unknown field `(.+?)`", text)
    if unknown is None:
        return f"{path}: {text}"
    legal = _keys_at(path)
    near = did_you_mean(unknown[1], legal)
    return f"{path}: unknown key {unknown[1]!r}{near or '; legal: ' + ', '.join(legal)}"


def _keys_at(path: str) -> list[str]:
    """The keys that are legal where a path ends."""
    last = re.sub(r"\[[^]]*\]", "", path).rpartition(".")[2]
    kinds: Mapping[str, type[Any]] = {
        "rules": RuleSpec, "patch": PatchSpec, "expect": Expect, "at the top": RulesFile,
    }  # fmt: skip
    return [field.encode_name for field in msgspec.structs.fields(kinds.get(last, Match))]
