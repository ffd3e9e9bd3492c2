"""`graphpatch recipes`."""

from __future__ import annotations

from functools import partial

import click
import msgspec

from graphpatch.cli import options
from graphpatch.cli.json_forms import TEXT, json_object, listed
from graphpatch.cli.say import say_json, say_lines
from graphpatch.recipes import RECIPES, SIGN, Recipe, recipe_named, recipe_rules
from graphpatch.rules import rules_from

OUTPUT = json_object({"recipes": listed(json_object({"name": TEXT, "for": TEXT, "source": TEXT}))})


@options.command("recipes", "recipes", "recipes guided_backprop --save rules.json")
@click.argument("name", required=False)
@options.value(
    "--save", "FILE.json", "Write the recipe as a rules file to edit.", type=options.RULES_FILE
)
@options.FORCE
@options.JSON
def command(name: str | None, save: str | None, force: bool, as_json: bool) -> None:
    """List the recipes, or print the rules of NAME, such as `@reverse(at=features)`."""
    if name is None:
        if save is not None:
            raise click.UsageError("--save goes with the NAME of a recipe")
        _list_recipes(as_json)
        return
    rules = recipe_rules(name if name.startswith(SIGN) else SIGN + name)
    rules_from(rules)
    if save is not None:
        is_replaced = options.refuse_rules_file(save, force, {})
        tell = partial(say_lines, [f"{save}{options.replaced(is_replaced)}"])
        options.write_rules_file(save, msgspec.to_builtins(rules), tell)
    elif as_json:
        say_json(rules)
    else:
        say_lines(_indented_json(rules).splitlines())


def _list_recipes(as_json: bool) -> None:
    if as_json:
        say_json({"recipes": [_recipe_document(recipe) for recipe in RECIPES.values()]})
    else:
        say_lines(
            text
            for recipe in RECIPES.values()
            for text in [recipe.spelled, f"    {recipe.purpose}"]
        )


def _recipe_document(recipe: Recipe) -> dict[str, object]:
    return {
        "name": recipe_named(recipe.name).name,
        "for": recipe.purpose,
        "source": recipe.source,
        "parameters": dict(recipe.parameters),
    }


def _indented_json(rules: object) -> str:
    return msgspec.json.format(msgspec.json.encode(rules), indent=2).decode()
