"""`graphpatch diff`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from graphpatch.analysis.diff import diff, op_entry
from graphpatch.cli import options
from graphpatch.cli.progress import bar
from graphpatch.cli.say import OP, say_answer
from graphpatch.table import IN_LIST, and_more

OUTPUT = {
    "a": str,
    "b": str,
    "equal": bool,
    "gradients": [{**OP, "before": str, "after": str, "rules": [str]}],
    "removed": [OP],
    "added": [{**OP, "rule?": str}],
    "renamed": [{**OP, "to": str}],
    "changed": [dict],
    "functions": [dict],
    "other": [Any],
}


@options.command("diff", "diff model.pb model.patched.pb", "diff a.pb b.pb --all")
def command(
    one: str = options.argument("A"),
    other: str = options.argument("B"),
    every: bool = options.ALL,
    as_json: bool = options.JSON,
) -> int:
    """Compare the models A and B: gradients first. Exit 1 if they differ."""
    with bar() as progress:
        compared = diff(one, other, progress)
    document = {**compared.document(), "a": one, "b": other}
    say_answer(as_json, document, _lines_of_diff(document, every))
    return 0 if compared.ok else 1


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
                changes = entry["changes"] if kind == "changed" else ()
                yield from (f"    {change}" for change in changes)
        if len(listed) < len(document[kind]):
            yield f"  {and_more(document[kind], len(listed))}; --all lists them"


def _entry_with_rule(entry: dict[str, Any]) -> str:
    rule = f", by rule {entry['rule']!r}" if "rule" in entry else ""
    return f"{op_entry(entry)}{rule}"


def _gradient_change(entry: dict[str, Any]) -> str:
    by = ", ".join(repr(rule) for rule in entry["rules"])
    rules = f", by rule {by}" if by else ""
    return f"{op_entry(entry)}: {entry['before']} -> {entry['after']}{rules}"
