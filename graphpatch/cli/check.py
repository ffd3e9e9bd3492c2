"""`graphpatch check`."""

from __future__ import annotations

from typing import Any

import click

from graphpatch.cli import options
from graphpatch.cli.apply import report_each, worker_options
from graphpatch.cli.json_forms import NUMBER, TEXT, YES, json_object, listed
from graphpatch.fleet.order import FleetOrder, Workers
from graphpatch.fleet.run import check_models

OUTPUT = json_object(
    {
        "model": TEXT,
        "applied": YES,
        "rules": listed(json_object({"name": TEXT, "applied": YES})),
        "seconds": NUMBER,
    },
    {"error": TEXT},
)


@options.command("check", "check rules.json patched.pb", "check rules.json patched/ --json")
@options.RULES
@options.MODELS
@options.PYTHON
@options.JSON_LINES
@worker_options
def command(
    rules: str,
    models: tuple[str, ...],
    allow_python: bool,
    as_json: bool,
    workers: Workers,
    allow_chained: bool,
) -> int:
    """Check that each MODEL is patched by RULES. Exit 1 if one is not. Nothing is written.

    MODEL may be a folder, a quoted glob, or @FILE, a list of models.
    """
    if "-" in models and len(models) > 1:
        raise click.UsageError("a model in a pipe goes alone; `@-` is a list of models in a pipe")
    options.refuse_swapped("check", rules, models)
    order = FleetOrder(
        rules, models, allow_python=allow_python, workers=workers, allow_chained=allow_chained
    )
    total, results = check_models(order)
    return report_each(total, results, as_json, _applied_line, "with the rules applied")


def _applied_line(report: dict[str, Any]) -> list[str]:
    return [f"{report['model']}: applied"]
