"""`graphpatch revert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from graphpatch.analysis.revert import revert
from graphpatch.cli import options
from graphpatch.cli.options import option
from graphpatch.cli.say import bar, noted, say_answer
from graphpatch.formats import Model, load
from graphpatch.formats.destination import refuse_inputs, replaces
from graphpatch.formats.foreign import refuse_suffix
from graphpatch.formats.model import is_written_at
from graphpatch.formats.output import sweep
from graphpatch.shown import plural

OUTPUT = {
    "model": str,
    "output": str | None,
    "rules": [str],
    "left": [str],
    "ops": {"restored": int, "dropped": int},
    "nodes": {"before": int, "after": int},
    "notes": [str],
}


@options.command(
    "revert", "revert model.patched.pb", "revert model.patched.pb --rule guided -o model.pb"
)
def command(
    model: str = options.argument("PATCHED"),
    out: str | None = options.OUTPUT,
    rule: str | None = option(
        "--rule NAME", "Take off this rule or @RECIPE: its name, or its id of several."
    ),
    allow_changed: bool = option("--allow-changed", "Revert even if the file has changed since."),
    force: bool = options.FORCE,
    dry_run: bool = options.DRY_RUN,
    as_json: bool = options.JSON,
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
        if output is not None and not piped:
            refuse_inputs(output, {"the model itself": model})
            refuse_suffix(output, patched.path)
            is_there = is_written_at(reverted.model, Path(output))  # then nothing is lost
            if is_there or replaces(output, force):
                document["replaced"] = True
            sweep([output])
        with reverted.model.writing(output, progress):
            say_answer(as_json, document, _lines_of_revert(document), err=piped)


def _output_beside(patched: Model, reverted: Model) -> str:
    if patched.path == "-":
        return "-"
    path = Path(patched.path).resolve() if patched.file else Path(patched.path)
    # A GraphDef that went into another container has a name of its own again.
    suffix = path.suffix if patched.container is reverted.container else ".pb"
    suffix = "" if reverted.file else suffix  # a folder
    stem = path.name if patched.file else path.stem
    return str(path.with_name(f"{stem.removesuffix('.patched')}.reverted{suffix}"))


def _lines_of_revert(document: dict[str, Any]) -> list[str]:
    where = options.named(
        document["output"] or "(dry run, nothing written)", "replaced" in document
    )
    lines = [f"{document['model']} -> {where}"]
    off, remaining = document["rules"], document["left"]
    for words, rules, others in (("taken off", off, remaining), ("left", remaining, off)):
        in_parts = set(map(_recipe, others))  # of the other recipes all rules are here
        names = (name if _recipe(name) in in_parts else _recipe(name) for name in rules)
        lines += [f"  {words}: {name}" for name in dict.fromkeys(names)]
    back, out = (plural(document["ops"][key], "op") for key in ("restored", "dropped"))
    lines.append(f"  {back} as before, {out} taken out")
    return [*lines, *noted(document["notes"], "  ")]


def _recipe(rule: str) -> str:
    """Return the recipe that made a rule, of the name `@NAME: ...`; the name of any other."""
    return rule.partition(": ")[0] if rule.startswith("@") else rule
