"""`graphpatch recipes`."""

from __future__ import annotations

import click
import msgspec

from graphpatch.cli import options
from graphpatch.cli.say import say_answer, say_lines
from graphpatch.recipes import RECIPES, SIGN, recipe_rules
from graphpatch.rules import rules_from
from graphpatch.shown import document_of

OUTPUT = {"recipes": [{"name": str, "for": str, "source": str}]}


@options.command("recipes", "recipes", "recipes guided_backprop --save rules.json")
def command(
    name: str | None = options.argument(type=str, required=False),
    save: str | None = options.option(
        "--save FILE.json", "Write the recipe as a rules file to edit.", type=options.RULES_FILE
    ),
    force: bool = options.FORCE,
    as_json: bool = options.JSON,
) -> None:
    """List the recipes, or print the rules of NAME, such as `@reverse(at=features)`."""
    if name is None:
        if save is not None:
            raise click.UsageError("--save goes with the NAME of a recipe")
        recipes = RECIPES.values()
        keys = "name for=purpose source parameters"
        document = {"recipes": [document_of(recipe, keys) for recipe in recipes]}
        lines = [text for each in recipes for text in (each.spelled, f"    {each.purpose}")]
        say_answer(as_json, document, lines)
        return
    rules = recipe_rules(name if name.startswith(SIGN) else SIGN + name)
    rules_from(rules)
    if save is None:
        indented = msgspec.json.format(msgspec.json.encode(rules), indent=2).decode()
        say_answer(as_json, rules, indented.splitlines())
    else:
        written = options.checked_output(save, force, {})
        with options.writing_rules(save, msgspec.to_builtins(rules)):
            say_lines([written])
