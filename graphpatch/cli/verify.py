"""`graphpatch verify`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from graphpatch.cli.progress import bar
from graphpatch.cli.say import say_json, say_lines
from graphpatch.formats import load

SHOWN = 10

# Before TensorFlow is imported: kernels that compute the same bits fused or not, and no chatter.
SETTINGS = {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


@click.command("verify")
@click.argument("original")
@click.argument("patched")
@click.option("--feed", metavar="FILE.npz", help="Arrays by tensor name; other inputs are seeded.")
@click.option("--from", "sources", multiple=True, metavar="X", help="Gradients by this tensor.")
@click.option("--to", "targets", multiple=True, metavar="Y", help="Gradients of this tensor.")
@click.option("--no-run", is_flag=True, help="Look at the graph alone; this needs no TensorFlow.")
@click.option("--allow-unsafe-ops", is_flag=True, help="Run ops too that touch files or Python.")
@click.option("--all", "every", is_flag=True, help=f"List all, not {SHOWN} of each kind.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    original: str,
    patched: str,
    feed: str | None,
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    no_run: bool,
    allow_unsafe_ops: bool,
    every: bool,
    as_json: bool,
) -> int:
    """Verify PATCHED against ORIGINAL: forward bit-equal, and which gradients changed.

    Exit 1 where something differs that should not: a broken graph, a name or weight that is lost,
    an output that is not bit-equal, a gradient that cannot be had any more, an override that
    TensorFlow ignores, a formula that is not what its rule says; or where nothing could be run.
    """
    if not no_run:
        _start_tensorflow()
    from graphpatch.runtime.verify.verification import verify

    with bar() as progress:
        found = verify(
            load(original, progress),
            load(patched, progress),
            feed=feed,
            sources=sources,
            targets=targets,
            run=not no_run,
            allow_unsafe_ops=allow_unsafe_ops,
        )
    document = found.document()
    if as_json:
        say_json(document)
    else:
        say_lines(_text(document, every))
    return 0 if found.ok else 1


def _start_tensorflow() -> None:
    """Import TensorFlow, without what it says of devices that are not there."""
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    from graphpatch.runtime.verify.start import start

    start(quietly=True)


def _text(found: dict[str, Any], every: bool) -> Iterator[str]:
    for graph in found["graphs"]:
        if len(found["graphs"]) > 1:
            yield f"[{graph['label']}]"
        for title, lines in _sections(graph):
            shown = lines if every else lines[:SHOWN]
            if len(shown) < len(lines):
                shown = [*shown, f"and {len(lines) - len(shown)} more; --all lists them"]
            for place, line in enumerate(shown):
                yield f"{'' if place else title:<11} {line}"
    if found["ok"]:
        yield f"{found['patched']}: verified"
    else:
        yield f"{found['patched']}: {_count(found['failures'], 'failure')}"
        yield from (f"  {one}" for one in found["failures"])


def _sections(graph: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    yield "structure", list(_structure(graph["structure"]))
    if "not_run" in graph:
        yield "not run", [graph["not_run"]]
    elif "forward" in graph:
        yield "fed", [", ".join(f"{n} {shape}" for n, shape in graph["fed"].items()) or "nothing"]
        yield "forward", list(_forward(graph["forward"]))
        yield "gradients", list(_gradients(graph))
        yield "overrides", list(_overrides(graph["overrides"]))
        yield "formulas", list(_formulas(graph["formulas"]))


def _structure(found: dict[str, Any]) -> Iterator[str]:
    yield _count(found["faults"], "fault") if found["faults"] else "sound"
    yield from (fault["says"] for fault in found["faults"])
    yield from (f"as in the original: {fault['says']}" for fault in found["as_in_the_original"])
    yield from (f"note: {text}" for text in found["changed_without_a_rule"])


def _forward(found: dict[str, Any]) -> Iterator[str]:
    compared, differing = len(found["compared"]), found["differing"]
    yield f"{compared - len(differing)} of {compared} tensors are bit-equal"
    yield from (f"differs: {name}: {how}" for name, how in differing.items())
    for name, how in found["optimised_differing"].items():
        yield f"note: where TensorFlow fuses ops {name} differs: {how}"
    yield from _grouped(found["not_compared"])


def _grouped(reasons: dict[str, str]) -> Iterator[str]:
    """What was not compared: the tensors of each reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        yield f"not compared: {_some(names)}: {reason}"


def _count(some: Sequence[Any], word: str) -> str:
    return f"{len(some)} {word}{'' if len(some) == 1 else 's'}"


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _gradients(graph: dict[str, Any]) -> Iterator[str]:
    pairs = graph["gradients"]
    same = [pair for pair in pairs if pair["state"] == "same"]
    none = sum(pair["after"] == "None" for pair in same)
    both = f", {none} of these None in both" if none else ""
    yield f"{len(pairs)} taken, {len(same)} unchanged{both}"
    for pair in pairs:
        if pair["state"] in ("changed", "fails"):
            yield f"{pair['state']}: {pair['to']} by {pair['from']}: {_apart(pair)}"
    lost = {f"{p['to']} by {p['from']}": p["before"] for p in pairs if p["state"] == "uncompared"}
    yield from _grouped(lost)
    yield from (f"not taken: {why}" for why in graph["gradients_not_taken"])


def _apart(pair: dict[str, Any]) -> str:
    if pair["before"] != pair["after"]:
        return f"{pair['before']} -> {pair['after']}"
    largest, relative = float(pair["max_abs"]), float(pair["max_rel"])
    return f"by up to {largest:.3g}, {relative:.3g} of the largest element"


def _overrides(found: dict[str, Any]) -> Iterator[str]:
    fired, others = found["fired"], found["not_fired"]
    yield f"{len(fired)} of {len(fired) + len(others)} fired" if fired or others else "none"
    for one in others:
        place = "" if one["body"] == "main" else f" in function {one['body']}"
        yield f"not fired: {one['type']} {one['op']}{place}: {one['why']}"


def _formulas(found: Iterable[dict[str, Any]]) -> Iterator[str]:
    by_formula: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        by_formula.setdefault(one["formula"], []).append(one)
    if not by_formula:
        yield "none"
    for formula, some in by_formula.items():
        ops = sum(one["ops"] for one in some)
        where = f"{formula}, {ops} op{'' if ops == 1 else 's'}"
        errors = [float(one["max_error"]) for one in some if "max_error" in one]
        if errors:
            yield f"{where}: numpy differs by at most {max(errors):.2g}"
        for why in dict.fromkeys(one["not_compared"] for one in some if "not_compared" in one):
            yield f"not compared: {formula}: {why}"
