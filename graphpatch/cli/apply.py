"""`graphpatch apply`, and what it and `check` print of many models: a line each, as each ends."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from graphpatch.application import counted_types, reported_rules
from graphpatch.cli import BUG, is_of_streams, options
from graphpatch.cli.options import Texts, option
from graphpatch.cli.say import MATCH, bar, noted, say_answer, say_error, say_json, say_lines
from graphpatch.errors import GraphpatchError
from graphpatch.fleet.run import Batch, planned
from graphpatch.fleet.work import (
    FleetOrder,
    TaskResult,
    failure_of,
    patch_model,
    patching,
    timed,
)
from graphpatch.fleet.workers import Results
from graphpatch.formats import Export
from graphpatch.formats.destination import FILES, SAVED_MODEL_FILES, is_remote
from graphpatch.gradients.spec import KEY_PREFIX
from graphpatch.rules import EMITS
from graphpatch.shown import document_of, plural

PATCHED = {
    "model": str,
    "output": str | None,
    "rules": [{"name": str, "matches": [MATCH], "emit": str}],
    "nodes": {"before": int, "after": int},
    "consumer": {"session": [str], "tape": [str]},
    "notes": [str],
    "would_write?": str | None,
    "replaced?": bool,
    "seconds?": float,
}
OUTPUT = {"outputs": [PATCHED], "errors?": [{"model": str, "error": str}]}


@options.command("apply", "apply @guided_backprop model.pb", "apply rules.json models/ -o patched/")
def command(
    rules: str = options.RULES,
    models: Texts = options.MODELS,
    out: str | None = options.OUTPUT,
    emit: str | None = option(
        "--emit", "How files store gradients; default: auto.", type=click.Choice(EMITS)
    ),
    inputs: Texts = option(
        "--inputs TENSORS", "Write a TF2 SavedModel with these inputs: x,y or repeated."
    ),
    outputs: Texts = option("--outputs TENSORS", "Its outputs, in the same way."),
    allow_python: bool = options.PYTHON,
    rebuild_gradients: bool = option(
        "--rebuild-gradients", "Build the gradients of a training graph again, for its optimizer."
    ),
    loss: Texts = option("--loss TENSOR", "The loss of these gradients."),
    force: bool = options.FORCE,
    dry_run: bool = option("--dry-run", "Write nothing; show where models would go."),
    as_json: bool = options.JSON_LINES,
    resume: bool = option("--resume", "Skip models that are in -o DIR already."),
    jobs: int | None = options.JOBS,
    scheduler: str | None = options.SCHEDULER,
    allow_chained: bool = options.CHAINED,
) -> int:
    """Patch each MODEL by the rules file RULES.

    Default of -o: MODEL.patched.pb beside the model. A model is never written over. MODEL may be a
    folder, a quoted glob, or @FILE, a list of models: `-o DIR` then mirrors their tree.
    """
    if allow_python and "" not in sys.path:
        sys.path.insert(0, "")  # modules of the current folder, as `python -m` finds them
    if loss and not rebuild_gradients:
        raise click.UsageError("--loss goes with --rebuild-gradients")
    order = FleetOrder(
        rules,
        models,
        out,
        emit,
        allow_python,
        dry_run,
        resume,
        jobs,
        scheduler,
        allow_chained,
        _export(inputs, outputs, models, out),
        loss if rebuild_gradients else None,
        force,
    )
    _refuse_options(order, as_json)
    is_of_many = order.is_of_many()
    with planned(order) as batch:
        if is_of_many:
            ended = say_each(len(batch.tasks), batch.results(), as_json, _patched_lines)
        else:
            ended = _patch_named(batch, as_json, order.is_piped())
    return say_counts(ended, "patched") if is_of_many else _say_errors(ended, as_json)


def _patch_named(batch: Batch, as_json: bool, is_piped: bool) -> list[TaskResult]:
    """Patch models that were named one by one, in this process.

    The report of each is printed before its output takes its name; several in JSON at the end.
    """
    is_alone, ended = len(batch.tasks) == 1, list[TaskResult]()
    with bar() as progress:
        for task in batch.tasks:
            start = time.perf_counter()
            try:
                with patching(batch.order, task, progress) as done:
                    if is_alone or not as_json:
                        lines = _report_lines(done.report, batch.order)
                        say_answer(as_json, {"outputs": [done.report]}, lines, err=is_piped)
            except GraphpatchError as error:
                done = TaskResult(task, error=str(error))
            except Exception as error:
                if is_alone or is_of_streams(error):
                    raise
                done = failure_of(patch_model, task, error)
            ended.append(timed(done, start))
            batch.add(ended[-1])
    return ended


def _say_errors(ended: list[TaskResult], as_json: bool) -> int:
    """Print what is wrong with models that were named one by one; the exit code of the command."""
    failed = [done for done in ended if done.error]
    for done in failed:
        say_error(done.error)
    if as_json and (failed or len(ended) > 1):
        errors = [{"model": done.task.model, "error": done.error} for done in failed]
        reports = [done.report for done in ended if not done.error]
        say_json({"outputs": reports, **({"errors": errors} if errors else {})})
    return _exit_code(ended)


def _export(
    inputs: tuple[str, ...], outputs: tuple[str, ...], models: tuple[str, ...], out: str | None
) -> Export | None:
    """Return what the SavedModel to be made takes and gives, if one is asked for."""
    if not inputs and not outputs:
        return None
    sources, targets = (tuple(options.comma_separated(texts)) for texts in (inputs, outputs))
    if not sources or not targets:
        raise click.UsageError("--inputs and --outputs go together: a SavedModel has both")
    if len(models) > 1 or out is None or out == "-" or Path(out).suffix in FILES:
        raise click.UsageError(
            "--inputs and --outputs write one model as a TF2 SavedModel: they go with -o FOLDER"
        )
    return Export(sources, targets)


def fold_notes(notes: Iterable[str]) -> list[str]:
    """Fold notes that say the same of several functions into one."""
    names_by_text: dict[str, list[str]] = {}
    for note in notes:
        of_function = re.match(r"function (\S+)(?=: )", note)
        name, text = (of_function[1], note[of_function.end() :]) if of_function else ("", note)
        names_by_text.setdefault(text, []).append(name)
    return [
        f"function{'s' if names[1:] else ''} {', '.join(names)}{text}" if names[0] else text
        for text, names in names_by_text.items()
    ]


def _report_lines(report: dict[str, Any], order: FleetOrder) -> list[str]:
    lines = [destination_in_words(report)]
    reported = reported_rules(report)
    width = max((len(rule["name"]) for rule in reported), default=0)
    for rule in reported:
        types = counted_types(rule["matches"]) or "no ops"
        lines.append(f"  {rule['name']:{width}}  {types}  ({rule['emit'] or 'nothing'})")
    path = report["output"] or report["would_write"]
    lines += _to_register(report["consumer"]["session"], path)
    lines += noted(fold_notes(report["notes"]), "  ")
    model = Path(report["model"])
    is_file = not (is_remote(path) or model.is_dir() or model.name in SAVED_MODEL_FILES)
    has_no_end = not (path.endswith("/") or Path(path).suffix)
    if report["output"] not in (None, "-") and is_file and has_no_end and not order.export:
        lines.append(f"  note: {path} is a file; a / at its end would make it a folder")
    return lines


def _to_register(keys: Sequence[str], path: str) -> Iterator[str]:
    """Yield which gradients who loads the file must register, ours and others apart."""
    by_function = f": graphpatch.register_gradients({'FILE' if path == '-' else repr(path)})"
    for is_ours, how in ((True, by_function), (False, ", by tf.RegisterGradient:")):
        if named := [f"    {key}" for key in keys if key.startswith(KEY_PREFIX) == is_ours]:
            yield f"  the program that loads it must register these gradients first{how}"
            yield from named


def say_each(
    total: int, results: Results, as_json: bool, lines_of: Callable[[dict[str, Any]], list[str]]
) -> list[TaskResult]:
    """Print what became of each model, as each ends, and return the results."""
    ended: list[TaskResult] = []
    with bar(of_many=True) as progress, closing(results):
        for done in results:
            ended.append(done)
            if as_json:
                result = document_of(done, "passed_over? error? seconds")
                say_json({"model": done.task.model, **done.report, **result})
            elif not done.error:
                passed = [f"{done.task.model}: {done.passed_over}"] if done.passed_over else []
                say_lines(passed or lines_of(done.report))
            progress("models", len(ended), total)
    return ended


def _exit_code(ended: list[TaskResult]) -> int:
    """Return 0 where all is well, 1 where a model is at fault, 3 where we are."""
    return max((BUG if done.bug else bool(done.error) for done in ended), default=0)


def say_counts(ended: list[TaskResult], verb: str) -> int:
    """Print a summary of many models on stderr; the exit code of the command."""
    failed = [done for done in ended if done.error]
    passed = sum(bool(done.passed_over) for done in ended)
    counts = [f"{len(ended) - len(failed) - passed} {verb}"]
    counts += [f"{passed} skipped"] if passed else []
    counts += [f"{len(failed)} failed"] if failed else []
    models: dict[str, list[str]] = {}
    for done in ended:
        for note in fold_notes(done.report.get("notes", ())):
            models.setdefault(note, []).append(done.task.model)
    notes = (f"{f'{len(m)} models' if m[1:] else m[0]}: {note}" for note, m in models.items())
    say_lines([f"{plural(len(ended), 'model')}: {', '.join(counts)}", *noted(notes)], err=True)
    for done in sorted(failed, key=lambda done: done.task.model):
        say_error(done.error)
    return _exit_code(ended)


def _patched_lines(report: dict[str, Any]) -> list[str]:
    """Return one line on a model that was patched."""
    types = counted_types([match for rule in report["rules"] for match in rule["matches"]])
    return [f"{destination_in_words(report)}  {types or 'no ops'}"]


def destination_in_words(report: Mapping[str, Any]) -> str:
    """Return where a model goes, or would go if this were not a dry run."""
    if report["output"]:
        return f"{report['model']} -> {options.named(report['output'], 'replaced' in report)}"
    target = f"{report['would_write']} " if report["would_write"] else ""
    replaces = ", would replace a file" if report.get("replaced") else ""
    return f"{report['model']} -> {target}(dry run, nothing written{replaces})"


def _refuse_options(order: FleetOrder, as_json: bool) -> None:
    """Raise UsageError for what does not go together."""
    options.refuse_both(order.jobs, order.scheduler)
    if order.export is not None or order.losses is not None:
        option = "--inputs" if order.losses is None else "--rebuild-gradients"
        if order.resume:
            raise click.UsageError(
                f"--resume does not go with {option}: a manifest does not record it"
            )
        paths = (order.rules, *order.models, order.out or "")
        if order.is_of_many() or any(map(is_remote, paths)):
            raise click.UsageError(f"{option} takes local files, named one by one, without -j")
    if "-" in order.models and order.is_of_many():
        raise click.UsageError("a model in a pipe goes alone; `@-` is a list of models in a pipe")
    if order.rules == "-" and "@-" in order.models:
        raise click.UsageError("the rules and the list would both come from standard input")
    if order.out == "-" and (order.is_of_many() or len(order.models) > 1):
        raise click.UsageError("several models do not go to one standard output: name a folder")
    if order.is_piped() and as_json:
        raise click.UsageError("--json and the model would both go to standard output")
    if not order.resume:
        return
    if order.out is None:
        raise click.UsageError("--resume skips models that are in a folder already: give -o DIR")
    if not order.is_into_folder():
        raise click.UsageError(
            f"--resume skips models that are in a folder already, and -o {order.out} names the "
            f"output itself; name the folder, with a / at its end: -o DIR/"
        )
    if order.dry_run:
        raise click.UsageError("--resume and --dry-run do not go together")
    if order.allow_python:
        raise click.UsageError(
            "--resume and --allow-python do not go together: whether Python code still does the "
            "same cannot be told from the rules"
        )
