"""`graphpatch split`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import click

from graphpatch.analysis.split_parts import is_part, refuse_folder
from graphpatch.cli import options
from graphpatch.cli.options import Texts, option
from graphpatch.cli.say import bar, noted, say_answer
from graphpatch.errors import OutputError
from graphpatch.formats.destination import replaces

OUTPUT = {
    "output": str,
    "version": int,
    "model": str,
    "loss": str,
    "wrt": [str],
    "cuts": [[str]],
    "parts": [{"file": str, "nodes": int, "variables": [str]}],
    "steps": [dict],
    "inputs": [str],
    "gradients": {str: str},
    "tensors": {str: dict},
    "notes": [str],
}


@options.command(
    "split",
    "split model.pb --cut features --loss loss --wrt x",
    "split model.pb --cut a,b --cut c --loss loss --wrt x -o parts",
)
def command(
    model: str = options.MODEL,
    cuts: Texts = option("--cut T,...", "The tensors of a cut.", required=True),
    loss: str = option("--loss L", "The gradient of this tensor.", required=True),
    wrt: Texts = option("--wrt W,...", "The gradient with respect to these.", required=True),
    out: str | None = option("-o --output PATH", "Folder to write; default: MODEL.parts."),
    force: bool = options.FORCE,
    allow_unsafe_ops: bool = options.UNSAFE,
    as_json: bool = options.JSON,
) -> None:
    """Split the gradient of L at W in parts, joined at the tensors T.

    Writes a graph for each part, and parts.json, which says what to feed and to fetch. Several
    tensors with commas between them are one cut; several --cut give three and more parts.
    """
    from graphpatch.runtime.parts import split

    if model == "-" and out is None:
        raise click.UsageError("a model from standard input is split to -o FOLDER")
    folder = options.beside(model, ".parts") if out is None else out
    if folder == "-":
        raise OutputError("- is not a folder, and the parts are several files")
    refuse_folder(Path(folder), model)
    where = options.named(folder, replaces(folder, force, is_marked=True, parts=is_part))
    with bar() as progress:
        listed = [options.comma_separated((cut,)) for cut in cuts]
        by = options.comma_separated(wrt)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            parts = split(model, loss, listed, by, progress, allow_unsafe_ops)
    notes = [str(warning.message) for warning in caught if warning.category is UserWarning]
    document = {"output": folder, **parts.document(), "notes": notes}
    lines = [*_steps_in_words(where, document), *noted(notes)]
    with parts.writing(Path(folder)):
        say_answer(as_json, document, lines)


def _steps_in_words(folder: str, document: dict[str, Any]) -> list[str]:
    lines = [f"{document['model']} -> {folder}"]
    for part in document["parts"]:
        variables = f", {len(part['variables'])} variables" if part["variables"] else ""
        lines.append(f"  {part['file']}  {part['nodes']} ops{variables}")
    lines.append("run in this order (parts.json has it for programs)")
    for number, step in enumerate(document["steps"], 1):
        fed, fetched = (", ".join(step[key]) or "nothing" for key in ("feed", "fetch"))
        lines.append(f"  {number}. {step['part']}: feed {fed}; fetch {fetched}")
    return lines
