"""`graphpatch view`."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from graphpatch.cli import options
from graphpatch.cli.options import Texts, option
from graphpatch.cli.say import bar, noted, say_error, say_json, say_lines
from graphpatch.errors import OutputError
from graphpatch.formats import load
from graphpatch.page.events import write_events
from graphpatch.page.view import View, refuse_model, view
from graphpatch.shown import plural, short

MOST_PAIRS_SHOWN = 5  # of a model
NOWHERE = "; graphpatch match MODEL --pattern PATTERN says why"
VERDICTS = {"flows": "flows", "zero": "zeros", "none": "None", "error": "an error"}

OUTPUT = {
    "graphpatch": str,
    "document": int,
    "models": [{"path": str, "format": str, "ops": int}],
    "rules": [dict],
    "graphs": [dict],
    "bodies": [dict],
    "run": dict | None,
    "notes": [str],
    "defaults": {str: int},
    "tables": dict,
}


@options.command(
    "view", "view model.pb --from x --to loss", "view model.pb model.patched.pb --open"
)
def command(
    model: str = options.MODEL,
    patched: str | None = options.argument(required=False),
    sources: Texts = options.FROM,
    targets: Texts = options.TO,
    rules: str | None = option("--rules RULES", "Show the model before and after these rules."),
    pattern: str | None = option("--pattern PATTERN", "Mark where this small graph is."),
    run: bool = options.RUN,
    feed: str | None = options.FEED,
    allow_unsafe_ops: bool = options.UNSAFE,
    no_control_flow_v2: bool = options.NO_V2,
    output: str | None = option(
        "-o PAGE.html",
        "Default: MODEL.html, beside the model; `-` is standard output.",
        type=options.PAGE,
    ),
    force: bool = options.FORCE,
    tensorboard: str | None = option(
        "--tensorboard LOGDIR", "Write the graph for TensorBoard instead."
    ),
    is_opened: bool = option("--open", "Open the page in the browser."),
    as_json: bool = option("--json", "Print the page's data; write no page."),
) -> int:
    """Write a page that shows what flows back through MODEL: where it ends, what rules change.

    The page is one HTML file that loads nothing. With PATCHED, both models stand beside each other;
    a patched model alone stands beside its original.
    """
    if sum(map(bool, (patched, rules, pattern))) > 1:
        raise click.UsageError("give PATCHED, --rules or --pattern; one of them")
    if feed and not run:
        raise click.UsageError("--feed is what the gradients are run with; give --run too")
    if as_json and (output or tensorboard or is_opened):
        raise click.UsageError("--json prints the page's data, and writes no file")
    if tensorboard and (output or is_opened):
        raise click.UsageError("--tensorboard writes event files, and no page")
    path = output or ("-" if model == "-" else options.beside(model, ".html"))
    if is_opened and path == "-":
        raise click.UsageError("--open opens a page in a file; name one with -o PAGE.html")
    is_page = not (as_json or tensorboard)
    inputs = {"the rules file": rules, "the file of --feed": feed}
    written = options.checked_output(path, force, inputs) if is_page else path
    with bar() as progress:
        models = [load(each, progress) for each in (model, patched) if each]
        for loaded in models:
            refuse_model(Path(path), loaded)
        shown = view(
            *models,
            rules={"pattern": pattern} if pattern else rules,
            sources=list(sources),
            targets=list(targets),
            run=run,
            feed=feed,
            allow_unsafe_ops=allow_unsafe_ops,
            control_flow_v2=not no_control_flow_v2,
        )
    if as_json:
        say_json(shown.document())
    elif tensorboard and not shown.errors:
        say_lines(map(str, write_events(shown, Path(tensorboard))))
    elif not shown.errors:  # no page of rules that failed
        _write_page(shown, path, written, is_opened)
    for error in shown.errors:
        say_error(f"{model}: {error}")
    return 0 if shown.ok else 1


def _write_page(shown: View, path: str, written: str, is_opened: bool) -> None:
    if path == "-":
        sys.stdout.write(shown.html)
        return
    with shown.writing(Path(path)):
        say_lines(_lines_of_view(shown.document(), written))
    if is_opened and not webbrowser.open(Path(path).resolve().as_uri()):
        raise OutputError(f"no browser to open {path} in was found; the page is written")


def _lines_of_view(document: dict[str, Any], path: str) -> Iterator[str]:
    graphs, bodies = document["graphs"], document["bodies"]
    lines = sum(len(bodies[graph["body"]]["names"]) for graph in graphs)
    yield f"{path}: {plural(lines, 'line')}"
    for rule in document["rules"]:
        if rule["rule"] is None:  # what --pattern marks
            yield f"  marked: {plural(rule['ops'], 'op')}{'' if rule['ops'] else NOWHERE}"
    for graph in graphs:
        for pair in graph["pairs"][:MOST_PAIRS_SHOWN]:
            yield f"  {pair['from']} -> {pair['to']}: {_flow_in_words(pair)}"
        more = len(graph["pairs"]) + graph["pairs_left_out"] - MOST_PAIRS_SHOWN
        if more > 0:
            yield f"  ... {plural(more, 'more pair')}"
        yield from noted(graph["notes"], "  ")
    for graph in (document["run"] or {"graphs": []})["graphs"]:
        yield f"  {graph['note']}"


def _flow_in_words(pair: dict[str, Any]) -> str:
    """Return what flows between two ends, before and after, and which rules change it."""
    words = [_side_verdict(side) for side in pair["sides"]]
    if len(set(words)) > 1:
        return " -> ".join(words)
    if len(words) == 1 or pair["sides"][-1]["verdict"] != "flows":
        return words[0] + (", before and after" if len(words) > 1 else "")
    rules = [f"{name} at {plural(ops, 'op')}" for name, ops in pair["changed"].items()]
    return f"{words[0]}, {f'changed by {short(rules)}' if rules else 'not changed'}"


def _side_verdict(side: dict[str, Any]) -> str:
    words = VERDICTS[side["verdict"]] if side["connected"] else "not connected"
    blocked = [f"{finding['type']} {finding['op']}" for finding in side["findings"]]
    return f"{words}, at {blocked[0]}" if blocked and side["verdict"] != "flows" else words
