"""Ready patterns for what legacy models contain, by name: `{"pattern": "@swish"}`.

They stand in `data/ready_patterns.json`. `{name}` in a text is a fragment: each of several in turn.
`"$name"` in a match is another match of the file, or a list of op types that the code knows.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from graphpatch.decoding import convert
from graphpatch.errors import PatternError, nearest
from graphpatch.graph.op_types import REF_VARIABLES
from graphpatch.match.keys import OP_CLASSES
from graphpatch.match.spec import Match, Pattern
from graphpatch.match.syntax import parse_pattern

OpMatches = Mapping[str, Mapping[str, Any]]
OP_TYPES = {**OP_CLASSES, "ref_variables": list(REF_VARIABLES)}
FRAGMENT = re.compile(r"\{(\w+)\}")


class ReadyPattern(msgspec.Struct, frozen=True):
    """A ready pattern: what it stands for, and its forms: texts, and what their ops must be.

    Where a model has the pattern, there is an op of one of the types that it `needs`, if any.
    """

    name: str
    purpose: str
    forms: Mapping[str, OpMatches]
    needs: frozenset[str]

    def patterns(self) -> list[Pattern]:
        """Return the forms as patterns."""
        return [form_pattern(text, where) for text, where in self.forms.items()]

    def captures(self) -> list[str]:
        """Return what `on` can name: the captures that are there in every match of every form."""
        first, *others = [set(form.nodes) - set(form.optional) for form in self.patterns()]
        always = first.intersection(*others)
        return [name for name in self.patterns()[0].nodes if name[0].islower() and name in always]

    def document(self) -> dict[str, Any]:
        """Return what `patterns --json` prints: forms as a rules file has them."""
        pairs = zip(self.forms, map(msgspec.to_builtins, self.patterns()), strict=True)
        forms = [{"text": text, "pattern": pattern} for text, pattern in pairs]
        return dict(name=f"@{self.name}", **{"for": self.purpose}, on=self.captures(), forms=forms)


def form_pattern(text: str, where: OpMatches) -> Pattern:
    """Return a form as a pattern. Raises PatternError, RulesError or ValidationError for a slip."""
    parsed = parse_pattern(text)
    nodes = dict(parsed.nodes)
    for name, besides in where.items():
        nodes[name] = convert({**msgspec.to_builtins(nodes[name]), **besides}, Match)
    return replace(parsed, nodes=nodes)


def _read() -> Iterator[ReadyPattern]:
    data = msgspec.json.decode(pkgutil.get_data("graphpatch", "data/ready_patterns.json") or b"")

    def texts(template: str) -> Iterator[str]:
        fragment = FRAGMENT.search(template)
        if fragment is None:
            yield template
            return
        name = fragment[1]
        options = "|".join(OP_TYPES[name]) if name in OP_TYPES else data["fragments"][name]
        for option in [options] if isinstance(options, str) else options:
            yield from texts(template.replace(fragment[0], option))

    def match(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: match(value) for key, value in part.items()}
        if isinstance(part, list):
            types = ((OP_TYPES.get(str(item)[1:]) or (match(item),)) for item in part)
            return [item for items in types for item in items]
        is_name = isinstance(part, str) and part.startswith("$")
        return match(data["matches"][part[1:]]) if is_name else part

    for name, entry in data["patterns"].items():
        forms = {
            text: {op: match(what) for op, what in where.items() if f"{op}:" in text}
            for group in entry["forms"]
            for where in [group.get("where", {})]
            for template in group["texts"]
            for text in texts(template)
        }
        yield ReadyPattern(name, entry["for"], forms, frozenset(entry.get("needs", ())))


READY: Mapping[str, ReadyPattern] = MappingProxyType({entry.name: entry for entry in _read()})

# Of some the op types of which one is there, where it is.
NEEDED = {entry.name: entry.needs for entry in READY.values() if entry.needs}


def ready_pattern(name: str) -> ReadyPattern:
    """Return the ready pattern of this name. Raises PatternError, which names the nearest ones."""
    if name in READY:
        return READY[name]
    near = nearest(name, READY)
    listed = (
        f"{'nearest' if near else 'legal'}: {', '.join(f'@{entry}' for entry in near or READY)}"
    )
    raise PatternError(f"pattern: no ready pattern is called {'@' + name!r}; {listed}")
