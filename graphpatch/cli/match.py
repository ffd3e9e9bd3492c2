"""`graphpatch match`."""

from __future__ import annotations

from itertools import chain
from typing import Any

import click

from graphpatch.analysis.matches import RuleMatches, as_rules_file, match_only, match_rules
from graphpatch.application import pattern_matches
from graphpatch.cli import options
from graphpatch.cli.options import Texts, option
from graphpatch.cli.say import MATCH, bar, say_answer
from graphpatch.formats import load
from graphpatch.match.select import conditions
from graphpatch.match.spec import Match
from graphpatch.names import natural_sort_key
from graphpatch.patches.target import reads_in_words
from graphpatch.rules import load_rules
from graphpatch.shown import plural

OUTPUT = {
    "model": str,
    "rules": [
        {
            "name": str,
            "matches": [MATCH],
            "left_out": [str],
            "near": [str],
            "error": str | None,
            "notes?": [str],
        }
    ],
}


@options.command("match", "match rules.json model.pb", "match model.pb --pattern 'Conv2D -> Relu'")
def command(
    paths: Texts = options.argument("[RULES] MODEL", required=True),
    op: Texts = option("--op", "Instead of RULES: ops of this type (may be a glob)."),
    name: Texts = option("--name", "Instead of RULES: ops of this name (may be a glob)."),
    pattern: str | None = option(
        "--pattern", "Instead of RULES: this small graph.", shell_complete=options.pattern_names
    ),
    explain: bool = option("--explain", "Show the nearest places, and what they lack."),
    save: str | None = option(
        "--save FILE.json", "Write a rules file with one rule a match.", type=options.RULES_FILE
    ),
    force: bool = options.FORCE,
    as_json: bool = options.JSON,
) -> int:
    """Show what the rules of RULES, or a match typed here, match in MODEL. No model is written."""
    every: dict[str, Any] = {"op": op, "name": name, "pattern": pattern}
    typed = {key: value for key, value in every.items() if value}
    if len(paths) != (1 if typed else 2):
        raise click.UsageError(
            "expected RULES and MODEL, or MODEL and one of --op, --name, --pattern"
        )
    if typed and save:
        raise click.UsageError("--save writes what a rules file matches; give RULES and MODEL")
    saved: dict[str, Any] = {}
    saved_as = save
    if save:
        inputs = dict(zip(("the rules file", "the model itself"), paths, strict=True))
        saved_as = options.checked_output(save, force, inputs)
    with bar() as progress:
        model = load(paths[-1], progress)
        if typed:
            match = Match(**typed)
            conditions(match)  # raises RulesError where it means nothing
            matched_rules = [match_only(match, model, explain)]
        else:
            rules = load_rules(paths[0])
            matched_rules = match_rules(rules, model, explain)
            saved = as_rules_file(rules, model) if save else {}

    document = {"model": paths[-1], "rules": [of_rule.document() for of_rule in matched_rules]}
    replaced = [saved_as] if saved_as and saved_as != save else []
    lines = chain(chain.from_iterable(map(_lines_of_matches, matched_rules)), replaced)
    with options.writing_rules(save, saved):
        say_answer(as_json, document, lines)
    return 1 if any(of_rule.error for of_rule in matched_rules) else 0


def _lines_of_matches(matched: RuleMatches) -> list[str]:
    count = len(matched.matches)
    of_pattern = pattern_matches(matched.matches)
    first = "" if of_pattern in (0, count) else f"{plural(of_pattern, 'match')}, "
    title = [f"{matched.rule or 'matched'}: {first}{plural(count, 'op')}"]
    lines = [f"  {line}" for match in _in_order(matched.matches) for line in _match(match)]
    lines += [f"  note: {text}" for text in (*matched.notes, *matched.left_out)]
    error = (matched.error or "").removeprefix(f"rule {matched.rule!r}: ")
    lines += [f"  error: {error}"] if error else []
    return [*title, *lines, *matched.near]


def _in_order(matches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return matches in the file's order; where that is alphabetic, Conv2D_2 before Conv2D_11."""
    names = [match["op"] for match in matches]
    by_alphabet = names == sorted(names) and len({match["body"] for match in matches}) == 1
    return (
        sorted(matches, key=lambda match: natural_sort_key(match["op"])) if by_alphabet else matches
    )


def _match(match: dict[str, Any]) -> list[str]:
    place = "" if match["body"] == "main" else f"  in function {match['body']}"
    captures = ", ".join(f"{name} is {op}" for name, op in match.get("captures", {}).items())
    lines = [f"{match['type']} {match['op']}{place}{f'  ({captures})' if captures else ''}"]
    if match.get("inputs"):
        lines.append(f"  {reads_in_words(list(match['inputs'].values()), match['tensors'])}")
    return lines
