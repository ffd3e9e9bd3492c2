"""`graphpatch split`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from graphpatch.cli.progress import bar
from graphpatch.cli.say import say_json, say_lines
from graphpatch.errors import OutputError
from graphpatch.formats import load
from graphpatch.formats.output import write_new_folder
from graphpatch.graph.wire import piece_bytes

PARTS = "parts.json"


@click.command("split")
@click.argument("model")
@click.option("--cut", "cuts", metavar="T,...", multiple=True, required=True)
@click.option("--loss", metavar="L", required=True, help="The tensor that is differentiated.")
@click.option("--wrt", metavar="W,...", multiple=True, required=True)
@click.option("-o", "--output", "out", help="Folder to write; MODEL.parts where silent.")
@click.option("--allow-unsafe-ops", is_flag=True, help="Import ops too that touch files or Python.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    model: str,
    cuts: tuple[str, ...],
    loss: str,
    wrt: tuple[str, ...],
    out: str | None,
    allow_unsafe_ops: bool,
    as_json: bool,
) -> None:
    """Split the gradient of L at W in parts, joined at the tensors T.

    Writes a graph for each part, and parts.json, which says what to feed and to fetch. Several
    tensors with commas between them are one cut; several --cut give three and more parts.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from graphpatch.runtime.split import split

    folder = out if out is not None else _beside(model)
    _refuse(folder, model)
    with bar() as progress:
        loaded = load(model, progress)
        listed = [_listed([cut]) for cut in cuts]
        found = split(loaded, loss, listed, _listed(wrt), allow_unsafe_ops)
        document = found.document()
        files = {name: b"".join(map(piece_bytes, some)) for name, some in found.files().items()}
        text = (json.dumps(document, indent=2) + "\n").encode()
        write_new_folder(Path(folder), PARTS, [text], files)
    if as_json:
        say_json({"output": folder, **document})
    else:
        say_lines(_summary(folder, document))


def _listed(texts: tuple[str, ...] | list[str]) -> list[str]:
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def _beside(model: str) -> str:
    if model == "-":
        raise click.UsageError("a model from standard input is split to -o FOLDER")
    path = Path(model)
    named = path if path.name not in {"", ".."} else path.resolve()
    return str(named.with_name(f"{named.stem}.parts"))


def _refuse(folder: str, model: str) -> None:
    """The folder is new, or holds parts that were written before."""
    path = Path(folder)
    if folder == "-" or (path.exists() and not path.is_dir()):
        raise OutputError(f"{folder} is no folder, and the parts are several files")
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {folder}: there is no folder {path.parent}")
    if path.is_dir() and any(path.iterdir()) and not (path / PARTS).exists():
        raise OutputError(f"{folder} is a folder of other things; name one that is not there yet")
    if model != "-" and path.resolve() in Path(model).resolve().parents:
        raise OutputError(f"{folder} holds the model itself; a model is never written over")


def _summary(folder: str, document: dict[str, Any]) -> list[str]:
    lines = [f"{document['model']} -> {folder}"]
    for part in document["parts"]:
        held = f", {len(part['variables'])} variables" if part["variables"] else ""
        lines.append(f"  {part['file']}  {part['nodes']} ops{held}")
    lines.append("run in this order (parts.json has it for programs)")
    for number, step in enumerate(document["steps"], 1):
        given, found = (", ".join(step[key]) or "nothing" for key in ("feed", "fetch"))
        lines.append(f"  {number}. {step['part']}: feed {given}; fetch {found}")
    return lines
