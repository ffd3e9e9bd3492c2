"""The tables of the page on rules files: each key of the schema, its meaning and an example."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from graphpatch.cli.schema import schema

# For each table of the page: the types of the schema whose keys it lists.
TABLES: Mapping[str, tuple[str, ...]] = {
    "rule": ("Rule", "Expect"),
    "values": (
        "OneOf",
        "Near",
        "Compared",
        "Shape",
        "Inside",
        "Nth",
        "Between",
        "DependencySearch",
    ),
    "pattern": ("Pattern", "Link"),
    "patch": ("Patch",),
    "options": ("Input", "Until"),
}
# The keys whose values these are.
INSIDE = {
    "Expect": "expect",
    "OneOf": "attr.NAME",
    "Near": "value",
    "Compared": "attr.NAME",
    "Shape": "shape",
    "Inside": "inside",
    "Nth": "nth",
    "Between": "between",
    "DependencySearch": "upstream_of",
    "Link": "edge",
    "Input": "straight_through",
    "Until": "backward_as",
}
# What has no table: the file itself, which the page's first example shows; an edge, a list; G; and
# a match, which docs/matching.md has.
ELSEWHERE = {"RulesFile", "Match", "Edge", "Gradient"}
MOST = 6  # values that are listed; of more, the type is enough
NAMED = {"Match": "match", "Patch": "patch", "Pattern": "pattern", "Edge": "edge", "Gradient": "G"}
PLURALS = {"string": "strings", "match": "matches", "edge": "edges", "string, pattern": "these"}


def table(name: str) -> str:
    """One table of the page, in Markdown."""
    rows = [_row(label, key, node) for label, key, node in _keys(name)]
    return "\n".join(("| key | value | means | example |", "|---|---|---|---|", *rows))


def unknown() -> list[str]:
    """Return the types of the schema that no table lists."""
    told = {kind for kinds in TABLES.values() for kind in kinds}
    return sorted(set(schema()["$defs"]) - told - ELSEWHERE)


def spelled(node: Mapping[str, Any]) -> str:
    """Return the type of a value of the schema, in words."""
    if "anyOf" in node:
        return _one_of(node["anyOf"])
    if "$ref" in node:
        name = str(node["$ref"]).rpartition("/")[2]
        return NAMED.get(name, "object")
    if len(node.get("enum", ())) > MOST:
        return "string"
    if "enum" in node:
        return ", ".join(f"`{json.dumps(one)}`" for one in node["enum"])
    if "type" not in node:
        return "any"
    if node["type"] == "array" and isinstance(node.get("items"), Mapping):
        return f"list of {PLURALS.get(spelled(node['items']), spelled(node['items']))}"
    return {"array": "list", "boolean": "`true`, `false`"}.get(node["type"], str(node["type"]))


def _keys(name: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the label, the key and the schema of each key of a table; bounds are listed once."""
    defined = schema()["$defs"]
    bounds = defined["Compared"]["properties"]
    for kind in TABLES[name]:
        for key, node in defined[kind]["properties"].items():
            if kind == "Compared" or key not in bounds:
                yield f"{INSIDE[kind]}.{key}" if kind in INSIDE else key, key, node


def _row(label: str, key: str, node: Mapping[str, Any]) -> str:
    example = json.dumps({key: node["examples"][0]}).replace("|", "\\|")
    means = node["description"].replace("|", "\\|")
    return f"| `{label}` | {spelled(node)} | {means} | `{example}` |"


def _one_of(nodes: list[Mapping[str, Any]]) -> str:
    """Several types, each once; a list of what may also stand alone is said in short."""
    found = list(dict.fromkeys(spelled(one) for one in nodes))
    if found[:2] == ["string", "list of strings"]:
        found[:2] = ["string or strings"]
    return ", ".join(found)
