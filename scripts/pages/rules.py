"""The tables of the page on rules files: each key of the schema, its meaning and an example."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from graphpatch.schema import schema
from pages import rule_keys
from pages.rule_keys import Key

# For each table of the page: the types of the schema whose keys it tells of.
TABLES: Mapping[str, tuple[str, ...]] = {
    "rule": ("RuleSpec", "Expect"),
    "match": ("Match",),
    "values": ("OneOf", "Near", "Between"),
    "pattern": ("Pattern", "Link"),
    "patch": ("PatchSpec",),
    "options": ("Input", "Until"),
}
# The keys whose values these are.
INSIDE = {
    "Expect": "expect",
    "OneOf": "attr.NAME",
    "Near": "value",
    "Between": "between",
    "Link": "edge",
    "Input": "straight_through",
    "Until": "backward_as",
}
# What has no table: the file itself, whose keys the page's first example shows; an edge, a list.
ELSEWHERE = {"RulesFile", "Edge"}


def table(name: str) -> str:
    """One table of the page, in Markdown. Raises LookupError where a key is not told."""
    lines = ["| key | value | means | example |", "|---|---|---|---|"]
    for label, value, key in _keys(name):
        lines.append(f"| `{label}` | {value} | {key.means} | `{_example(name, label, key)}` |")
    return "\n".join(lines)


def examples() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each key of `rule_keys` with the whole rule that its example is of."""
    for kinds in TABLES.values():
        for kind in kinds:
            for key, text in _told(kind).items():
                yield f"{kind}.{key}", text.rule


def unknown() -> list[str]:
    """The types of the schema that no table tells of."""
    told = {kind for kinds in TABLES.values() for kind in kinds}
    return sorted(set(schema()["$defs"]) - told - ELSEWHERE)


def _told(kind: str) -> Mapping[str, Key]:
    """What `rule_keys` tells of the keys of a type."""
    whole = {"RuleSpec": rule_keys.RULE, "Expect": rule_keys.EXPECT, "Match": rule_keys.MATCH}
    whole["PatchSpec"] = rule_keys.PATCH
    dotted = {**rule_keys.VALUES, **rule_keys.PATTERN, **rule_keys.OPTIONS}
    start = f"{kind}."
    return whole.get(kind) or {
        label.removeprefix(start): key for label, key in dotted.items() if label.startswith(start)
    }


def _keys(name: str) -> Iterator[tuple[str, str, Key]]:
    """The label, the type and the text of each key of a table."""
    defined = schema()["$defs"]
    for kind in TABLES[name]:
        found = _told(kind)
        for key, node in defined[kind]["properties"].items():
            if key not in found:
                raise LookupError(
                    f"scripts/pages/rule_keys.py lacks {key!r} of {kind}: its meaning, an example"
                )
            label = f"{INSIDE[kind]}.{key}" if kind in INSIDE else key
            yield label, spelled(node), found[key]


def spelled(node: Mapping[str, Any]) -> str:
    """The type of a value of the schema, in words."""
    if "anyOf" in node:
        return _one_of([one for one in node["anyOf"] if not _null(one)])
    if "$ref" in node:
        name = str(node["$ref"]).rpartition("/")[2]
        return NAMED.get(name, "object")
    if "enum" in node:
        return ", ".join(f"`{json.dumps(one)}`" for one in node["enum"])
    if node.get("type") == "array" and "items" in node:
        return f"list of {PLURALS.get(spelled(node['items']), spelled(node['items']))}"
    return {"array": "list", "boolean": "`true`, `false`"}.get(node["type"], str(node["type"]))


NAMED = {"Match": "match", "PatchSpec": "patch", "Pattern": "pattern", "Edge": "edge"}
PLURALS = {"string": "strings", "match": "matches", "edge": "edges", "string, pattern": "these"}


def _one_of(nodes: list[Mapping[str, Any]]) -> str:
    """Several types, each once; a list of what may also stand alone is said in short."""
    found = list(dict.fromkeys(spelled(one) for one in nodes))
    if found[:2] == ["string", "list of strings"]:
        found[:2] = ["string or strings"]
    return ", ".join(found)


def _null(node: Mapping[str, Any]) -> bool:
    return node.get("type") == "null"


def _example(name: str, label: str, key: Key) -> str:
    """What an example shows of its rule: its match, its patch, or the rule."""
    shown = (
        key.rule
        if name == "rule"
        else key.rule["patch" if name in ("patch", "options") else "match"]
    )
    if name == "rule":
        first = label.partition(".")[0]
        shown = {first: key.rule[first]}
    return json.dumps(shown).replace("|", "\\|")
