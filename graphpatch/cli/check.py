"""`graphpatch check`."""

from __future__ import annotations

import click

from graphpatch.cli import options
from graphpatch.cli.apply import say_counts, say_each
from graphpatch.cli.options import Texts
from graphpatch.fleet.search import search
from graphpatch.fleet.work import FleetOrder, check_model
from graphpatch.fleet.workers import results_of

OUTPUT = {
    "model": str,
    "applied": bool,
    "rules": [{"name": str, "applied": bool}],
    "seconds": float,
    "error?": str,
}


@options.command("check", "check rules.json patched.pb", "check rules.json patched/ --json")
def command(
    rules: str = options.RULES,
    models: Texts = options.MODELS,
    allow_python: bool = options.PYTHON,
    as_json: bool = options.JSON_LINES,
    jobs: int | None = options.JOBS,
    scheduler: str | None = options.SCHEDULER,
    allow_chained: bool = options.CHAINED,
) -> int:
    """Check that each MODEL is patched by RULES. Exit 1 if one is not. Nothing is written.

    MODEL may be a folder, a quoted glob, or @FILE, a list of models.
    """
    if "-" in models and len(models) > 1:
        raise click.UsageError("a model in a pipe goes alone; `@-` is a list of models in a pipe")
    options.refuse_both(jobs, scheduler)
    order = FleetOrder(
        rules,
        models,
        allow_python=allow_python,
        jobs=jobs,
        scheduler=scheduler,
        allow_chained=allow_chained,
    )
    order_with_rules, tasks = order.with_rules(), search(models, allow_chained)
    results = results_of(order_with_rules, check_model, tasks)
    ended = say_each(len(tasks), results, as_json, lambda report: [f"{report['model']}: applied"])
    return say_counts(ended, "with the rules applied")
