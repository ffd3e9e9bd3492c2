"""What `apply` and `check` print of one model or many: of many a line each, as each ends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from graphpatch.application import counted_types
from graphpatch.cli.progress import bar
from graphpatch.cli.say import say, say_error, say_json, say_lines
from graphpatch.fleet.execute import patch_models
from graphpatch.fleet.order import FleetOrder, Workers
from graphpatch.fleet.task import TaskResult
from graphpatch.fleet.work import Finish, in_process

BUG = 3
Tell = Callable[[dict[str, Any]], list[str]]
Command = Callable[..., int]


def worker_options(command: Command) -> Command:
    """The options that say who does the work, given to a command as `workers`."""

    @click.option("-j", "--jobs", type=click.IntRange(min=1), help="Processes; default: all cores.")
    @click.option("--scheduler", metavar="ADDRESS", help="Use the workers of this Dask cluster.")
    @click.option(
        "--allow-chained-urls",
        "allow_chained",
        is_flag=True,
        help="Open a file inside another one: zip://m.pb::s3://bucket/all.zip.",
    )
    @functools.wraps(command)
    def with_workers(jobs: int | None, scheduler: str | None, **options: Any) -> int:
        if jobs is not None and scheduler is not None:
            raise click.UsageError("--jobs are processes of this machine; --scheduler has its own")
        return command(workers=Workers(jobs, scheduler), **options)

    return with_workers


def apply_to(order: FleetOrder, as_json: bool, tell: Tell, finish: Finish | None = None) -> int:
    """`apply`: one model is a fleet of one.

    Models that were named one by one are told of together, in their order: by `tell`, or in one
    JSON document. In this process alone, `finish` may change each result before it is written.
    """
    refuse_options(order)
    piped = order.is_piped()
    if piped and as_json:
        raise click.UsageError("--json and the model would both go to standard output")
    if order.is_of_many():
        return report_each(*patch_models(order), as_json, patched_lines, "patched")

    alone = len(order.models) == 1 and not order.is_for_workers()

    def say_report(report: dict[str, Any]) -> None:
        if not as_json:
            say_lines(tell(report), err=piped)
        elif alone:
            say_json({"outputs": [report]})

    if order.is_for_workers():
        ended = _by_workers(order)
    else:
        with bar() as progress:  # a report is printed before its output takes its name
            ended = list(patch_models(order, in_process(progress, finish, say_report))[1])
    for done in ended:
        if done.error:
            say_error(done.error)
        elif order.is_for_workers() and not as_json:
            say_lines(tell(done.report))
    if as_json and not (alone and ended[0].report):
        say_json(joint_document(ended))
    return exit_code(ended)


def _by_workers(order: FleetOrder) -> list[TaskResult]:
    total, results = patch_models(order)
    with bar(of_many=True) as progress:
        ended = []
        for done in results:
            ended.append(done)
            progress("models", len(ended), total)
    return sorted(ended, key=lambda done: done.task.place)


def joint_document(ended: list[TaskResult]) -> dict[str, Any]:
    """The one JSON document of models that were named one by one."""
    errors = [{"model": done.task.model, "error": done.error} for done in ended if done.error]
    reports = [done.report for done in ended if not done.error]
    return {"outputs": reports, **({"errors": errors} if errors else {})}


def report_each(
    total: int, results: Iterator[TaskResult], as_json: bool, tell: Tell, verb: str
) -> int:
    """Print what became of each model, and a summary on stderr; the exit code of the command."""
    ended: list[TaskResult] = []
    with bar(of_many=True) as progress:
        for done in results:
            ended.append(done)
            if as_json:
                say_json(report_document(done))
            elif not done.error:
                passed = [f"{done.task.model}: {done.passed_over}"] if done.passed_over else []
                say_lines(passed or tell(done.report))
            progress("models", len(ended), total)
    _say_counts(ended, verb)
    return exit_code(ended)


def report_document(done: TaskResult) -> dict[str, Any]:
    """The JSON document of one model."""
    found = {"model": done.task.model, **done.report}
    if done.passed_over:
        found["passed_over"] = done.passed_over
    if done.error:
        found["error"] = done.error
    return {**found, "seconds": done.seconds}


def exit_code(ended: list[TaskResult]) -> int:
    """0 where all is well, 1 where a model is at fault, 3 where we are."""
    if any(done.bug for done in ended):
        return BUG
    return 1 if any(done.error for done in ended) else 0


def _say_counts(ended: list[TaskResult], verb: str) -> None:
    failed = [done for done in ended if done.error]
    passed = sum(bool(done.passed_over) for done in ended)
    counts = [f"{len(ended) - len(failed) - passed} {verb}"]
    counts += [f"{passed} skipped"] if passed else []
    counts += [f"{len(failed)} failed"] if failed else []
    models = "1 model" if len(ended) == 1 else f"{len(ended)} models"
    say(f"{models}: {', '.join(counts)}", err=True)
    for done in sorted(failed, key=lambda done: done.task.place):
        say_error(done.error)


def patched_lines(report: dict[str, Any]) -> list[str]:
    """One line on a model that was patched."""
    listed = (
        counted_types([match for rule in report["rules"] for match in rule["matches"]]) or "no ops"
    )
    return [f"{destination_in_words(report)}  {listed}"]


def destination_in_words(report: Mapping[str, Any]) -> str:
    """Where a model goes, or would go if this were not a dry run."""
    if report["output"]:
        replaced = " (replaced)" if report.get("replaced") else ""
        return f"{report['model']} -> {report['output']}{replaced}"
    there = f"{report['would_write']} " if report["would_write"] else ""
    replaces = ", would replace a file" if report.get("replaced") else ""
    return f"{report['model']} -> {there}(dry run, nothing written{replaces})"


def refuse_options(order: FleetOrder) -> None:
    """Raise UsageError for what does not go together."""
    if "-" in order.models and order.is_for_workers():
        raise click.UsageError("a model in a pipe goes alone; `@-` is a list of models in a pipe")
    if order.rules == "-" and "@-" in order.models:
        raise click.UsageError("the rules and the list would both come from standard input")
    if order.out == "-" and (order.is_for_workers() or len(order.models) > 1):
        raise click.UsageError("several models do not go to one standard output: name a folder")
    if order.resume and order.out is None:
        raise click.UsageError("--resume skips models that are in a folder already: give -o DIR")
    if order.resume and not order.is_into_folder():
        raise click.UsageError(
            f"--resume skips models that are in a folder already, and -o {order.out} names the "
            f"output itself; name the folder, with a / at its end: -o DIR/"
        )
    if order.resume and order.dry_run:
        raise click.UsageError("--resume and --dry-run do not go together")
    if order.resume and order.allow_python:
        raise click.UsageError(
            "--resume and --allow-python do not go together: whether Python code still does the "
            "same cannot be told from the rules"
        )
