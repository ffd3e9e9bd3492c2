"""`graphpatch references`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click

from graphpatch.cli.outputs import RULES_FILE, force_option, refuse_rules_file, replaced
from graphpatch.cli.say import say_lines
from graphpatch.formats.destination import Destination


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
@force_option
def command(model: str, feed: str, out: str, force: bool) -> None:
    """Measure the input of each activation of MODEL on a reference, and write DeepLIFT's rules.

    The arrays go to a folder beside the rules file. `graphpatch apply` takes the rules.
    """
    path = Path(out)
    folder = path.with_suffix("")
    is_replaced = refuse_rules_file(out, force, {"the model itself": model, "the feed": feed})
    if folder.exists() and not is_replaced:
        Destination(str(folder), force, is_marked=True).replaces()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from graphpatch.runtime.references import references
    from graphpatch.runtime.values import read_feed

    found = references(model, read_feed(feed), path.with_suffix("").name)
    where = f"{out}{replaced(is_replaced)}"
    skipped = [f"  skipped  {name}: {why}" for name, why in found.skipped.items()]
    lines = [f"{model}: {len(found.arrays)} activations -> {where}", *skipped]
    found.save(path, partial(say_lines, lines))
