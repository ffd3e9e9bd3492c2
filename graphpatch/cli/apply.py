"""`graphpatch apply`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from graphpatch.application import Result, counted_types
from graphpatch.cli.completing import PATH
from graphpatch.cli.json_forms import (
    MATCH,
    NODES,
    NUMBER,
    TEXT,
    TEXT_OR_NULL,
    TEXTS,
    YES,
    json_object,
    listed,
)
from graphpatch.cli.many import apply_to, destination_in_words, worker_options
from graphpatch.cli.outputs import force_option
from graphpatch.cli.say import noted, notes_of_warnings
from graphpatch.cli.swapped import refuse_swapped
from graphpatch.fleet.order import FleetOrder, Workers
from graphpatch.formats import Export
from graphpatch.formats.destination import SAVED_MODEL_FILES, is_remote
from graphpatch.formats.target import FILES
from graphpatch.gradients.spec import KEY_PREFIX
from graphpatch.recipes import is_recipe
from graphpatch.rules import EMITS

_EXPORT_HELP = "Write a TF2 SavedModel with these inputs: x,y or repeated."

PATCHED = json_object(
    {
        "model": TEXT,
        "output": TEXT_OR_NULL,
        "rules": listed(json_object({"name": TEXT, "matches": listed(MATCH), "emit": TEXT})),
        "nodes": NODES,
        "consumer": json_object({"session": TEXTS, "tape": TEXTS}),
        "notes": TEXTS,
    },
    {"would_write": TEXT_OR_NULL, "replaced": YES, "seconds": NUMBER},
)
OUTPUT = json_object(
    {"outputs": listed(PATCHED)}, {"errors": listed(json_object({"model": TEXT, "error": TEXT}))}
)


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
@click.option("--inputs", multiple=True, metavar="TENSORS", help=_EXPORT_HELP)
@click.option("--outputs", multiple=True, metavar="TENSORS", help="Its outputs, in the same way.")
@click.option("--allow-python", is_flag=True, help='Let {"python": ...} gradients run code.')
@click.option(
    "--rebuild-gradients",
    is_flag=True,
    help="Build the gradients of a training graph again, for its optimizer.",
)
@click.option("--loss", multiple=True, metavar="TENSOR", help="The loss of these gradients.")
@force_option
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
    force: bool,
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
    order = FleetOrder(
        rules, models, out, emit, allow_python, dry_run, resume, workers, allow_chained, force=force
    )
    if loss and not rebuild_gradients:
        raise click.UsageError("--loss goes with --rebuild-gradients")
    if inputs or outputs or rebuild_gradients:
        _refuse_workers(order, "--rebuild-gradients" if rebuild_gradients else "--inputs")
        export = _export(inputs, outputs, models, out)
        order = replace(order, export=export, in_process=True)
    finish = partial(_with_rebuilt_gradients, losses=list(loss)) if rebuild_gradients else None
    tell = partial(_report_lines, is_export=order.export is not None)
    return apply_to(order, as_json, tell, finish)


def _refuse_workers(order: FleetOrder, option: str) -> None:
    """What is done in this process alone goes into no manifest, and to no worker."""
    if order.resume:
        raise click.UsageError(f"--resume does not go with {option}: a manifest does not record it")
    if order.is_of_many() or order.is_remote():
        raise click.UsageError(f"{option} takes local files, named one by one, without -j")


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


def _with_rebuilt_gradients(result: Result, losses: list[str]) -> Result:
    """The result with the gradients of its training graph built anew, which needs TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from graphpatch.analysis.training import gradient_sections
    from graphpatch.runtime.rebuild import rebuild_gradients

    found = [one for graph in result.model.graphs for one in gradient_sections(graph.main, losses)]
    with notes_of_warnings() as told:
        model = rebuild_gradients(result.model, losses)
    stale = tuple(f"{section.scope}/** (" for section in found)
    notes = [text for text in result.report["notes"] if not text.startswith(stale)]
    notes += [str(section) for section in found]
    notes += told
    nodes = {**result.report["nodes"], "after": model.node_count}
    return Result(model, {**result.report, "nodes": nodes, "notes": notes})


def fold_notes(notes: Iterable[str]) -> list[str]:
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


def _report_lines(report: dict[str, Any], is_export: bool = False) -> list[str]:
    lines = [destination_in_words(report)]
    told = [rule for rule in report["rules"] if rule["matches"] or not is_recipe(rule["name"])]
    width = max((len(rule["name"]) for rule in told), default=0)
    for rule in told:  # a recipe has rules for what few models have; that one matches is checked
        listed = counted_types(rule["matches"])
        lines.append(
            f"  {rule['name']:{width}}  {listed or 'no ops'}  ({rule['emit'] or 'nothing'})"
        )
    path = report["output"] or report["would_write"]
    lines += _to_register(report["consumer"]["session"], path)
    lines += noted(fold_notes(report["notes"]), "  ")
    if report["output"] and not is_export and _is_file_without_suffix(report["model"], path):
        lines.append(f"  note: {path} is a file; a / at its end would make it a folder")
    return lines


def _is_file_without_suffix(model: str, output: str) -> bool:
    """Return whether an output whose name has no ending becomes a file, as the model is one."""
    is_folder = Path(model).is_dir() or Path(model).name in SAVED_MODEL_FILES
    return not (is_folder or output.endswith("/") or Path(output).suffix or is_remote(output))


def _to_register(keys: Sequence[str], path: str) -> list[str]:
    """Which gradients whoever loads the file must register, those of ours and others apart."""
    must = "  the program that loads it must register these gradients first"
    ours = [key for key in keys if key.startswith(KEY_PREFIX)]
    others = [key for key in keys if key not in ours]
    lines = [f"{must}: graphpatch.register_gradients({path!r})"] if ours else []
    lines += [f"    {key}" for key in ours]
    lines += [f"{must}, by tf.RegisterGradient:"] if others else []
    return lines + [f"    {key}" for key in others]
