"""`graphpatch revert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from graphpatch.analysis.revert import revert
from graphpatch.cli import options
from graphpatch.cli.json_forms import INTEGER, NODES, TEXT, TEXT_OR_NULL, TEXTS, json_object
from graphpatch.cli.progress import bar
from graphpatch.cli.say import noted, say_json, say_lines
from graphpatch.formats import Model, load
from graphpatch.formats.destination import Destination, refuse_inputs
from graphpatch.formats.foreign import refuse_suffix
from graphpatch.formats.model import is_written_at, write_to_stdout
from graphpatch.formats.output import sweep

OUTPUT = json_object(
    {
        "model": TEXT,
        "output": TEXT_OR_NULL,
        "rules": TEXTS,
        "left": TEXTS,
        "ops": json_object({"restored": INTEGER, "dropped": INTEGER}),
        "nodes": NODES,
        "notes": TEXTS,
    }
)


@options.command(
    "revert", "revert model.patched.pb", "revert model.patched.pb --rule guided -o model.pb"
)
@options.argument("model", "PATCHED")
@options.OUTPUT
@options.value("--rule", "NAME", "Take off this rule or @RECIPE: its name, or its id of several.")
@options.flag("--allow-changed", "Revert even if the file has changed since.")
@options.FORCE
@options.DRY_RUN
@options.JSON
def command(
    model: str,
    out: str | None,
    rule: str | None,
    allow_changed: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Restore the original of the model PATCHED, byte for byte, from the records in the file.

    Default of -o: NAME.reverted.pb beside NAME.patched.pb. A model is never written over.
    """
    with bar() as progress:
        patched = load(model, progress)
        reverted = revert(patched, rule, allow_changed=allow_changed)
        output = None if dry_run else out or _output_beside(patched, reverted.model)
        piped = output == "-"
        if piped and as_json:
            raise click.UsageError("--json and the model would both go to standard output")
        document = {**reverted.document(), "model": model, "output": output}

        def tell() -> None:
            if as_json:
                say_json(document)
            else:
                say_lines(_lines_of_revert(document), err=piped)

        if output is None:
            tell()
        elif piped:
            write_to_stdout(reverted.model, progress)
            tell()
        else:
            refuse_inputs(output, {"the model itself": model})
            refuse_suffix(output, patched.path)
            is_there = is_written_at(reverted.model, Path(output))  # then nothing is lost
            if is_there or Destination(output, force).replaces():
                document["replaced"] = True
            sweep([output])
            reverted.model.write(output, progress, tell)


def _output_beside(patched: Model, reverted: Model) -> str:
    if patched.path == "-":
        return "-"
    path = Path(patched.path).resolve() if patched.file else Path(patched.path)
    if patched.file and reverted.file:
        return str(path.with_name(f"{path.name.removesuffix('.patched')}.reverted"))
    # A GraphDef that went into another container has a name of its own again.
    suffix = path.suffix if patched.container is reverted.container else ".pb"
    stem = path.name if patched.file else path.stem
    return str(path.with_name(f"{stem.removesuffix('.patched')}.reverted{suffix}"))


def _lines_of_revert(document: dict[str, Any]) -> list[str]:
    where = document["output"] or "(dry run, nothing written)"
    lines = [f"{document['model']} -> {where}{options.replaced('replaced' in document)}"]
    lines += [f"  taken off: {name}" for name in document["rules"]]
    lines += [f"  left: {name}" for name in document["left"]]
    ops = document["ops"]
    back, out = ops["restored"], ops["dropped"]
    lines.append(f"  {back} op{'s'[: back != 1]} as before, {out} op{'s'[: out != 1]} taken out")
    return [*lines, *noted(document["notes"], "  ")]
