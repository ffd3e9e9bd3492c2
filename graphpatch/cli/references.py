"""`graphpatch references`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from graphpatch.cli.outputs import RULES_FILE
from graphpatch.cli.say import say_lines
from graphpatch.errors import OutputError
from graphpatch.formats.output import reported


@click.command("references")
@click.argument("model")
@click.option("--feed", metavar="FILE.npz", required=True, help="The reference: a batch of one.")
@click.option(
    "-o",
    "--output",
    "out",
    metavar="FILE.json",
    type=RULES_FILE,
    default="references.json",
    show_default=True,
)
def command(model: str, feed: str, out: str) -> None:
    """Measure the input of each activation of MODEL on a reference, and write DeepLIFT's rules.

    The arrays go to a folder beside the rules file. `graphpatch apply` takes the rules.
    """
    path = Path(out)
    if path.exists() or path.with_suffix("").exists():
        raise OutputError(f"{path}, or the folder {path.with_suffix('')}, exists; not written over")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from graphpatch.runtime.references import references
    from graphpatch.runtime.values import read_feed

    found = references(model, read_feed(feed), path.with_suffix("").name)
    with reported(out):
        found.save(path)
    skipped = [f"  skipped  {name}: {why}" for name, why in found.skipped.items()]
    say_lines([f"{model}: {len(found.arrays)} activations -> {out}", *skipped])
