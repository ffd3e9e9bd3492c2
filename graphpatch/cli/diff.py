"""`graphpatch diff`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from graphpatch.analysis.diff import diff, op_entry
from graphpatch.cli import options
from graphpatch.cli.json_forms import OBJECT, OP, TEXT, TEXTS, YES, json_object, listed
from graphpatch.cli.progress import bar
from graphpatch.cli.say import say_json, say_lines
from graphpatch.table import IN_LIST, and_more

OUTPUT = json_object(
    {
        "a": TEXT,
        "b": TEXT,
        "equal": YES,
        "gradients": listed(json_object({**OP, "before": TEXT, "after": TEXT, "rules": TEXTS})),
        "removed": listed(json_object(OP)),
        "added": listed(json_object(OP, {"rule": TEXT})),
        "renamed": listed(json_object({**OP, "to": TEXT})),
        "changed": listed(OBJECT),
        "functions": listed(OBJECT),
        "other": listed({}),
    }
)


@options.command("diff", "diff model.pb model.patched.pb", "diff a.pb b.pb --all")
@options.argument("one", "A")
@options.argument("other", "B")
@options.ALL
@options.JSON
def command(one: str, other: str, every: bool, as_json: bool) -> int:
    """Compare the models A and B: gradients first. Exit 1 if they differ."""
    with bar() as progress:
        found = diff(one, other, progress)
    if as_json:
        say_json({**found.document(), "a": one, "b": other})
    else:
        say_lines(_lines_of_diff(found.document(), every))
    return 0 if found.ok else 1


def _lines_of_diff(document: dict[str, Any], every: bool) -> Iterator[str]:
    if document["equal"]:
        yield "no difference"
    shows: dict[str, Callable[[Any], str]] = {
        "gradients": _gradient_change,
        "removed": _entry_with_rule,
        "added": _entry_with_rule,
        "renamed": lambda entry: f"{_entry_with_rule(entry)} -> {entry['to']}",
        "changed": _entry_with_rule,
        "functions": lambda entry: f"{entry['name']}: {entry['change']}",
        "other": str,
    }
    for kind, show in shows.items():
        listed = document[kind] if every else document[kind][:IN_LIST]
        if listed:
            yield f"{kind}: {len(document[kind])}"
            for entry in listed:
                yield f"  {show(entry)}"
                yield from (f"    {how}" for how in _how(kind, entry))
        if len(listed) < len(document[kind]):
            yield f"  {and_more(document[kind], len(listed))}; --all lists them"


def _how(kind: str, entry: Any) -> list[str]:
    """Return what stands below the line of a listed change."""
    return list(entry["changes"]) if kind == "changed" else []


def _entry_with_rule(entry: dict[str, Any]) -> str:
    rule = f", by rule {entry['rule']!r}" if "rule" in entry else ""
    return f"{op_entry(entry)}{rule}"


def _gradient_change(entry: dict[str, Any]) -> str:
    by = ", ".join(repr(rule) for rule in entry["rules"])
    rules = f", by rule {by}" if by else ""
    return f"{op_entry(entry)}: {entry['before']} -> {entry['after']}{rules}"
