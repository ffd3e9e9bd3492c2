"""`graphpatch match`."""

from __future__ import annotations

from typing import Any

import click

from graphpatch.analysis.matches import RuleMatches, as_rules_file, match_only, match_rules
from graphpatch.application import pattern_matches
from graphpatch.cli import options
from graphpatch.cli.json_forms import MATCH, TEXT, TEXT_OR_NULL, TEXTS, json_object, listed
from graphpatch.cli.progress import bar
from graphpatch.cli.say import say, say_json_of_texts, say_lines
from graphpatch.formats import load
from graphpatch.match.conditions import conditions
from graphpatch.match.nth import natural_sort_key
from graphpatch.match.spec import Match
from graphpatch.patches.target import reads_in_words
from graphpatch.rules import load_rules
from graphpatch.table import plural

TYPED = ("op", "name", "pattern")

OUTPUT = json_object(
    {
        "model": TEXT,
        "rules": listed(
            json_object(
                {
                    "name": TEXT,
                    "matches": listed(MATCH),
                    "left_out": TEXTS,
                    "near": TEXTS,
                    "error": TEXT_OR_NULL,
                },
                {"notes": TEXTS},
            )
        ),
    }
)


@options.command("match", "match rules.json model.pb", "match model.pb --pattern 'Conv2D -> Relu'")
@options.argument("paths", "[RULES] MODEL", nargs=-1, required=True)
@click.option("--op", multiple=True, help="Instead of RULES: ops of this type (may be a glob).")
@click.option("--name", multiple=True, help="Instead of RULES: ops of this name (may be a glob).")
@click.option(
    "--pattern", shell_complete=options.pattern_names, help="Instead of RULES: this small graph."
)
@options.flag("--explain", "Show the nearest places, and what they lack.")
@options.value(
    "--save", "FILE.json", "Write a rules file with one rule a match.", type=options.RULES_FILE
)
@options.FORCE
@options.JSON
def command(
    paths: tuple[str, ...],
    op: tuple[str, ...],
    name: tuple[str, ...],
    pattern: str | None,
    explain: bool,
    save: str | None,
    force: bool,
    as_json: bool,
) -> int:
    """Show what the rules of RULES, or a match typed here, match in MODEL. No model is written."""
    typed = {key: value for key, value in zip(TYPED, (op, name, pattern), strict=True) if value}
    if len(paths) != (1 if typed else 2):
        raise click.UsageError(
            "expected RULES and MODEL, or MODEL and one of --op, --name, --pattern"
        )
    if typed and save:
        raise click.UsageError("--save writes what a rules file matches; give RULES and MODEL")
    options.refuse_swapped("match", paths[0], paths[1:])
    if save:
        inputs = dict(zip(("the rules file", "the model itself"), paths, strict=True))
        is_replaced = options.refuse_rules_file(save, force, inputs)
    saved: dict[str, Any] = {}
    with bar() as progress:
        model = load(paths[-1], progress)
        if typed:
            matched_rules = [match_only(_typed_match(typed), model, explain)]
        else:
            rules = load_rules(paths[0])
            matched_rules = match_rules(rules, model, explain)
            if save:
                saved = as_rules_file(rules, model)

    def tell() -> None:
        if as_json:
            say_json_of_texts(
                {"model": paths[-1], "rules": [matched.document() for matched in matched_rules]}
            )
        else:
            say_lines(line for matched in matched_rules for line in _lines_of_matches(matched))
            if save and is_replaced:
                say(f"{save}{options.replaced(is_replaced)}")

    if save:
        options.write_rules_file(save, saved, tell)
    else:
        tell()
    return 1 if any(matched.error for matched in matched_rules) else 0


def _typed_match(typed: dict[str, Any]) -> Match:
    """Return what was typed as a match; RulesError where it means nothing."""
    match = Match(**typed)
    conditions(match)
    return match


def _lines_of_matches(matched: RuleMatches) -> list[str]:
    count = len(matched.matches)
    of_pattern = pattern_matches(matched.matches)
    first = "" if of_pattern in (0, count) else f"{plural(of_pattern, 'match')}, "
    title = [f"{matched.rule or 'matched'}: {first}{plural(count, 'op')}"]
    lines = [f"  {line}" for match in _in_order(matched.matches) for line in _match(match)]
    lines += [f"  note: {text}" for text in (*matched.notes, *matched.left_out)]
    error = matched.error.removeprefix(f"rule {matched.rule!r}: ")
    lines += [f"  error: {error}"] if error else []
    lines += matched.misses.split("\n") if matched.misses else []
    return title + lines


def _in_order(matches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Matches as the file has them; where that is by the alphabet, Conv2D_2 before Conv2D_11."""
    names = [match["op"] for match in matches]
    by_alphabet = names == sorted(names) and len({match["body"] for match in matches}) == 1
    return (
        sorted(matches, key=lambda match: natural_sort_key(match["op"])) if by_alphabet else matches
    )


def _match(match: dict[str, Any]) -> list[str]:
    place = "" if match["body"] == "main" else f"  in function {match['body']}"
    captures = [f"{name} is {op}" for name, op in match.get("captures", {}).items()]
    text = f"{match['type']} {match['op']}{place}" + (
        f"  ({', '.join(captures)})" if captures else ""
    )
    if not match.get("inputs"):
        return [text]
    return [text, f"  {reads_in_words(list(match['inputs'].values()), match['tensors'])}"]
