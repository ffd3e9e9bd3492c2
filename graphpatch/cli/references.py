"""`graphpatch references`."""

from __future__ import annotations

from pathlib import Path

from graphpatch.cli import options
from graphpatch.cli.say import say_lines
from graphpatch.formats.destination import replaces


@options.command(
    "references", "references model.pb --feed reference.npz", "apply references.json model.pb"
)
def command(
    model: str = options.MODEL,
    feed: str = options.option("--feed FILE.npz", "The reference: a batch of one.", required=True),
    out: str = options.option(
        "-o --output FILE.json",
        "Default: references.json.",
        type=options.RULES_FILE,
        default="references.json",
    ),
    force: bool = options.FORCE,
) -> None:
    """Measure the input of each activation of MODEL on a reference, and write DeepLIFT's rules.

    The arrays go to a folder beside the rules file. `graphpatch apply` takes the rules.
    """
    path = Path(out)
    folder = path.with_suffix("")
    where = options.checked_output(out, force, {"the model itself": model, "the feed": feed})
    for file in folder.iterdir() if folder.is_dir() else [folder]:
        replaces(str(file), force, is_marked=True)
    from graphpatch.runtime.references import references
    from graphpatch.runtime.values import read_feed

    recorded = references(model, read_feed(feed), path.with_suffix("").name)
    skipped = [f"  skipped  {name}: {why}" for name, why in recorded.skipped.items()]
    lines = [f"{model}: {len(recorded.arrays)} activations -> {where}", *skipped]
    with recorded.writing(path):
        say_lines(lines)
