"""`graphpatch apply`."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from graphpatch.application import Result, apply_rules, counted
from graphpatch.cli.completing import PATH
from graphpatch.cli.many import apply_to_many, goes, worker_options
from graphpatch.cli.progress import bar
from graphpatch.cli.say import say_error, say_json, say_lines
from graphpatch.cli.swapped import refuse_swapped
from graphpatch.cli.writing import write
from graphpatch.errors import GraphpatchError, OutputError
from graphpatch.fleet.order import Order, Workers
from graphpatch.fleet.search import is_plain_folder, joined, name_of
from graphpatch.formats import Export, default_output, load
from graphpatch.formats.foreign import refuse_suffix
from graphpatch.formats.model import FILES
from graphpatch.formats.output import destination, refuse_inputs, reported
from graphpatch.recipes import is_recipe
from graphpatch.rules import EMITS, Rule, read_rules

_EXPORT = "Write a TF2 SavedModel with these inputs: x,y or repeated."


@click.command("apply")
@click.argument("rules", type=PATH)
@click.argument("models", metavar="MODEL...", type=PATH, nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    "out",
    type=PATH,
    metavar="PATH",
    help="File or folder to write; `-` is standard output.",
)
@click.option("--emit", type=click.Choice(EMITS), help="How files store gradients; default: auto.")
@click.option("--inputs", multiple=True, metavar="TENSORS", help=_EXPORT)
@click.option("--outputs", multiple=True, metavar="TENSORS", help="Its outputs, in the same way.")
@click.option("--allow-python", is_flag=True, help='Let {"python": ...} gradients run code.')
@click.option(
    "--rebuild-gradients",
    is_flag=True,
    help="Build the gradients of a training graph again, for its optimizer.",
)
@click.option("--loss", multiple=True, metavar="TENSOR", help="The loss of these gradients.")
@click.option("--dry-run", is_flag=True, help="Write nothing; show where models would go.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; of many, a line.")
@click.option("--resume", is_flag=True, help="Skip models that are in -o DIR already.")
@worker_options
def command(
    rules: str,
    models: tuple[str, ...],
    out: str | None,
    emit: str | None,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    allow_python: bool,
    rebuild_gradients: bool,
    loss: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    resume: bool,
    workers: Workers,
    allow_chained: bool,
) -> int:
    """Patch each MODEL by the rules file RULES.

    Default of -o: MODEL.patched.pb beside the model. A model is never written over. MODEL may be a
    folder, a quoted glob, or @FILE, a list of models: `-o DIR` then mirrors their tree.
    """
    if allow_python and "" not in sys.path:
        sys.path.insert(0, "")  # modules of the current folder, as `python -m` finds them
    refuse_swapped("apply", rules, models)
    order = Order(rules, models, out, emit, allow_python, dry_run, resume, workers, allow_chained)
    if loss and not rebuild_gradients:
        raise click.UsageError("--loss goes with --rebuild-gradients")
    if order.is_for_workers() and not (inputs or outputs or rebuild_gradients):
        return apply_to_many(order, as_json, _summary)
    _refuse_workers(order, "--rebuild-gradients" if rebuild_gradients else "--inputs")
    export = _export(inputs, outputs, models, out)
    return _here(order, export, as_json, list(loss) if rebuild_gradients else None)


def _refuse_workers(order: Order, option: str) -> None:
    """What is done in this process alone goes into no manifest, and to no worker."""
    if order.resume:
        raise click.UsageError(f"--resume does not go with {option}: a manifest does not record it")
    if order.is_of_many() or order.is_remote():
        raise click.UsageError(f"{option} takes local files, named one by one, without -j")


def _here(order: Order, export: Export | None, as_json: bool, losses: list[str] | None) -> int:
    """Patch one model, or what comes with one in a pipe, in this process."""
    models, out, dry_run = order.models, order.out, order.dry_run
    with reported(out or "."):
        targets = _targets(models, out) if export is None or out is None else [out]
        _refuse_rules(order.rules, targets)
    for target in targets if out is not None else ():
        refuse_suffix(target)
    piped = not dry_run and "-" in (targets if out is not None else models)
    if piped and as_json:
        raise click.UsageError("--json and the model would both go to standard output")
    converts = export is not None or bool(out and out.endswith(".meta"))
    loaded = read_rules(order.rules, order.emit, order.allow_python, allow_none=converts)
    if out is not None and targets != [out] and not dry_run:
        _make_folder(out)
    reports, errors = [], []
    for model, target in zip(models, targets, strict=True):
        try:
            reports.append(_patch(loaded, model, target, dry_run, export, losses))
        except GraphpatchError as error:
            errors.append({"model": model, "error": str(error)})
            say_error(error)
        else:
            if not as_json:
                say_lines(_summary(reports[-1]), err=piped)
    if as_json:
        say_json({"outputs": reports, **({"errors": errors} if errors else {})})
    return 1 if errors else 0


def _export(
    inputs: tuple[str, ...], outputs: tuple[str, ...], models: tuple[str, ...], out: str | None
) -> Export | None:
    """What the SavedModel to be made takes and gives, if one is asked for."""
    if not inputs and not outputs:
        return None
    given, asked = (
        tuple(name.strip() for text in texts for name in text.split(",") if name.strip())
        for texts in (inputs, outputs)
    )
    if not given or not asked:
        raise click.UsageError("--inputs and --outputs go together: a SavedModel has both")
    if len(models) > 1 or out is None or out == "-" or Path(out).suffix in FILES:
        raise click.UsageError(
            "--inputs and --outputs write one model as a TF2 SavedModel: they go with -o FOLDER"
        )
    return Export(given, asked)


def _patch(
    rules: list[Rule],
    model: str,
    target: str,
    dry_run: bool,
    export: Export | None,
    losses: list[str] | None,
) -> dict[str, Any]:
    with bar() as progress:
        source = load(model, progress)
        result = apply_rules(rules, source, progress, export)
        if losses is not None:
            result = _rebuilt(result, losses)
        output = target or default_output(source)
        where = destination(output, dry_run)
        if not dry_run:
            write(result.model, output, progress)
    return result.told(model, output, where)


def _rebuilt(result: Result, losses: list[str]) -> Result:
    """The result with the gradients of its training graph built anew, which needs TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from graphpatch.analysis.training import sections
    from graphpatch.runtime.rebuild import rebuild_gradients

    found = [one for graph in result.model.graphs for one in sections(graph.main, losses)]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        model = rebuild_gradients(result.model, losses)
    stale = tuple(f"{section.scope}/** (" for section in found)
    notes = [text for text in result.report["notes"] if not text.startswith(stale)]
    notes += [str(section) for section in found]
    notes += [str(one.message) for one in told if one.category is UserWarning]
    nodes = {**result.report["nodes"], "after": model.node_count}
    return Result(model, {**result.report, "nodes": nodes, "notes": notes})


def _refuse_rules(rules: str, targets: list[str]) -> None:
    """The rules file is nobody's output."""
    for target in filter(None, targets):
        refuse_inputs(target, {"the rules file": rules})


def _targets(models: tuple[str, ...], out: str | None) -> list[str]:
    """Where each model goes, as far as -o says it; nothing where it is silent."""
    if out is None:
        return [""] * len(models)
    folder = Path(out)
    if len(models) == 1 and not (out.endswith("/") or is_plain_folder(folder)):
        return [out]
    if out == "-":
        raise click.UsageError("several models do not go to one standard output: name a folder")
    from graphpatch.fleet.plan import refuse_file

    refuse_file(out)
    targets = [joined(out, name_of(model)) for model in models]
    twice = [target for target, count in Counter(targets).items() if count > 1]
    if twice:
        raise OutputError(f"two models would be written to {twice[0]}; patch them into two folders")
    return targets


def _make_folder(out: str) -> None:
    with reported(out):
        Path(out).mkdir(parents=True, exist_ok=True)


def folded(notes: Iterable[str]) -> list[str]:
    """Notes that say the same of several functions as one."""
    found: dict[str, list[str]] = {}
    for note in notes:
        function = re.match(r"function \S+(?=: )", note)
        label = function[0].removeprefix("function ") if function else ""
        found.setdefault(note[function.end() :] if function else note, []).append(label)
    return [
        f"{'functions' if labels[1:] else 'function'} {', '.join(labels)}{text}"
        if labels[0]
        else text
        for text, labels in found.items()
    ]


def _summary(report: dict[str, Any]) -> list[str]:
    lines = [goes(report)]
    told = [rule for rule in report["rules"] if rule["matches"] or not is_recipe(rule["name"])]
    width = max((len(rule["name"]) for rule in told), default=0)
    for rule in told:  # a recipe has rules for what few models have; that one matches is checked
        listed = counted(rule["matches"])
        lines.append(
            f"  {rule['name']:{width}}  {listed or 'no ops'}  ({rule['emit'] or 'nothing'})"
        )
    if report["consumer"]["session"]:
        path = report["output"] or report["would_write"]
        lines.append("  the program that loads it must register these gradients first; for ours:")
        lines.append(f"  graphpatch.register_gradients({path!r})")
        lines += [f"    {key}" for key in report["consumer"]["session"]]
    return lines + [f"  note: {text}" for text in folded(report["notes"])]
