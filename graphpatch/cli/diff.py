"""`graphpatch diff`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphpatch.analysis.diff import CHANGES, diff, op_entry
from graphpatch.cli import options
from graphpatch.cli.say import OP, bar, say_answer
from graphpatch.shown import IN_LIST, and_more

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
    first: str = options.argument("A"),
    second: str = options.argument("B"),
    every: bool = options.ALL,
    as_json: bool = options.JSON,
) -> int:
    """Compare the models A and B: gradients first. Exit 1 if they differ."""
    with bar() as progress:
        compared = diff(first, second, progress)
    document = {**compared.document(), "a": first, "b": second}
    say_answer(as_json, document, _lines_of_diff(document, every))
    return 0 if compared.ok else 1


def _lines_of_diff(document: dict[str, Any], every: bool) -> Iterator[str]:
    if document["equal"]:
        yield "no difference"
    for kind in CHANGES:
        changes = document[kind]
        shown = changes if every else changes[:IN_LIST]
        if shown:
            yield f"{kind}: {len(changes)}"
            for change in shown:
                yield f"  {_in_words(change)}"
                details = change["changes"] if kind == "changed" else ()
                yield from (f"    {detail}" for detail in details)
        if len(shown) < len(changes):
            yield f"  {and_more(changes, len(shown))}; --all lists them"


def _in_words(change: Any) -> str:
    if isinstance(change, str):
        return change
    if "change" in change:
        return f"{change['name']}: {change['change']}"
    flows = f": {change['before']} -> {change['after']}" if "before" in change else ""
    rules = change.get("rules", [change["rule"]] if "rule" in change else [])
    by = f", by rule {', '.join(map(repr, rules))}" if rules else ""
    return f"{op_entry(change)}{flows}{by}{f' -> {to}' if (to := change.get('to')) else ''}"
