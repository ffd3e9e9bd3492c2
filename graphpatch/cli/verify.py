"""`graphpatch verify`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from graphpatch.analysis.again import SWAPPED
from graphpatch.cli import options
from graphpatch.cli.options import Texts, option
from graphpatch.cli.say import bar, say_answer
from graphpatch.formats import load
from graphpatch.shown import and_more, plural, short

OF_EACH_KIND = 10  # lines
DIFFERS, NOT_COMPARED = 1, 4  # exit statuses

OUTPUT = {
    "original": str,
    "patched": str,
    "verdict": ("verified", "same structure", "differs", "not compared"),
    "ok": bool,
    "failures": [str],
    "not_compared": [str],
    "graphs": [{"label": str, "structure": dict}],
}


@options.command(
    "verify",
    "verify model.pb model.patched.pb",
    "verify model.pb model.patched.pb --feed inputs.npz",
)
def command(
    original: str = options.MODEL,
    patched: str = options.MODEL,
    feed: str | None = options.FEED,
    sources: Texts = options.FROM,
    targets: Texts = options.TO,
    no_run: bool = option("--no-run", "Compare the graphs alone; this needs no TensorFlow."),
    imports: Texts = option(
        "--import MODULE", "A module or .py file that registers gradients or loads ops."
    ),
    allow_unsafe_ops: bool = options.UNSAFE,
    every: bool = options.ALL,
    as_json: bool = options.JSON,
) -> int:
    """Verify PATCHED against ORIGINAL: is forward bit-equal, and which gradients changed?

    Each model runs in its own process. Exit 0: verified, or with --no-run the same structure. Exit
    1: something differs that should not. Exit 4: no difference was found, but something could not
    be compared (an override that never fired, a formula, an output).
    """
    from graphpatch.runtime.verify.compare import verify

    with bar() as progress:
        verification = verify(
            load(original, progress),
            load(patched, progress),
            feed=feed,
            sources=sources,
            targets=targets,
            run=not no_run,
            imports=imports,
            allow_unsafe_ops=allow_unsafe_ops,
            progress=progress,
        )
    document = verification.document()
    say_answer(as_json, document, _lines_of_verification(document, every))
    return 0 if verification.ok else DIFFERS if verification.failures else NOT_COMPARED


def _lines_of_verification(document: dict[str, Any], every: bool) -> Iterator[str]:
    failures, gaps = document["failures"], document["not_compared"]
    if failures and failures[0].startswith(SWAPPED):
        yield failures[0]  # all else that differs follows from it
        return
    for graph in document["graphs"]:
        if len(document["graphs"]) > 1:
            yield f"[{graph['label']}]"
        for title, lines in _sections(graph):
            for place, line in enumerate(_first_lines(lines, every)):
                yield f"{'' if place else title:<11} {line}"
    verdict = document["verdict"]
    if failures:
        verdict = f"differs: {plural(len(failures), 'failure')}"
    elif gaps:
        verdict = f"not compared: {plural(len(gaps), 'gap')}"
    elif verdict == "same structure":
        verdict = f"{verdict}; nothing was run"
    yield f"{document['patched']}: {verdict}"
    yield from (f"  {text}" for text in _first_lines(failures, every))
    prefix = "not compared: " if failures else ""
    yield from (f"  {prefix}{text}" for text in _first_lines(gaps, every))


def _first_lines(lines: Sequence[str], every: bool) -> Sequence[str]:
    """Return all lines, or the first and how many more there are."""
    if every or len(lines) <= OF_EACH_KIND:
        return lines
    return [*lines[:OF_EACH_KIND], f"{and_more(lines, OF_EACH_KIND)}; --all lists them"]


def _sections(graph: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    structure = graph["structure"]
    faults = [fault["says"] for fault in structure["faults"]]
    count = [plural(len(faults), "fault")] if faults else []
    says = [structure["says"]] if structure["says"] else []
    yield "structure", [*says, *count, *faults]
    if graph.get("settings", {}).get("tensorflow"):
        yield "settings", list(_settings(graph["settings"]))
    if "not_run" in graph:
        yield "not run", [graph["not_run"]]
    elif "forward" in graph:
        yield "fed", [", ".join(f"{n} {shape}" for n, shape in graph["fed"].items()) or "nothing"]
        yield "forward", list(_forward_lines(graph["forward"]))
        yield "branches", list(_branch_lines(graph["branches"]))
        yield "gradients", list(_gradient_lines(graph))
        yield "overrides", list(_overrides(graph["overrides"]))
        yield "formulas", list(_formulas(graph["formulas"]))


def _settings(settings: dict[str, Any]) -> Iterator[str]:
    devices = ", ".join(settings["devices"])
    onednn = "on" if settings["onednn"] else "off"
    xla = "on" if settings["auto_clustering"] else "off"
    yield f"TensorFlow {settings['tensorflow']}, {devices}, oneDNN {onednn}, XLA clustering {xla}"
    yield "op by op, and once as Grappler optimises graphs; random ops seeded by name"
    if not settings["control_flow_v2"]:
        yield "as after tf.compat.v1.disable_control_flow_v2(), which v1 TensorArrays need"
    if sets := settings.get("sets_of_values"):  # none where a model could not be imported
        yield f"{plural(len(sets), 'set')} of values: {', '.join(sets)}"


def _branch_lines(branches: dict[str, Any]) -> Iterator[str]:
    if branches["watched"]:
        yield f"both sides at {branches['reached']} of {branches['watched']} ops"
    else:
        yield "no op to watch"
    yield from (f"not reached: {op} {why}" for op, why in branches["not_reached"].items())
    for place, count in branches["not_watched"].items():
        if count:
            yield f"not watched: {count} in {place}"


def _forward_lines(forward: dict[str, Any]) -> Iterator[str]:
    compared, differing = len(forward["compared"]), forward["differing"]
    yield f"{compared - len(differing)} of {compared} tensors are bit-equal"
    for values in forward["sets"]:
        if not values["compared"] and values["not_compared"]:
            why = values["not_compared"][0]
            yield f"{values['values']} values: the model does not take them: {why}"
    yield from (f"differs: {name}: {how}" for name, how in differing.items())
    for name, how in forward["optimised_differing"].items():
        yield f"note: where TensorFlow fuses ops {name} differs: {how}"
    yield from _grouped(forward["not_compared"])


def _grouped(reasons: dict[str, str]) -> Iterator[str]:
    """Yield what was not compared: the tensors of each reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        yield f"not compared: {short(names)}: {reason}"


def _gradient_lines(graph: dict[str, Any]) -> Iterator[str]:
    pairs = graph["gradients"]
    same = [pair for pair in pairs if pair["state"] == "same"]
    none = sum(pair["after"] == "None" for pair in same)
    zero = sum(pair["zero"] for pair in same)
    both = f", {none} of these None in both" if none else ""
    both += f", {zero} of these zero in both" if zero else ""
    yield f"{len(pairs)} taken, {len(same)} unchanged{both}"
    for pair in pairs:
        if pair["state"] in ("changed", "fails"):
            yield f"{pair['state']}: {_ends(pair)}: {_difference_in_words(pair)}"
    lost = {_ends(pair): pair["before"] for pair in pairs if pair["state"] == "uncompared"}
    yield from _grouped(lost)
    yield from (f"not taken: {why}" for why in graph["gradients_not_taken"])


def _ends(pair: dict[str, Any]) -> str:
    return f"{pair['to']} with respect to {pair['from']}"


def _difference_in_words(pair: dict[str, Any]) -> str:
    if pair["before"] != pair["after"]:
        return f"{pair['before']} -> {pair['after']}"
    largest, relative = float(pair["max_abs"]), float(pair["max_rel"])
    if math.isinf(relative) and math.isfinite(largest):
        return f"0 everywhere -> up to {largest:.3g}"
    return f"by up to {largest:.3g}, {relative:.3g} of the largest element"


def _overrides(overrides: dict[str, Any]) -> Iterator[str]:
    fired, idle = overrides["fired"], overrides["not_fired"]
    yield f"{len(fired)} of {len(fired) + len(idle)} fired" if fired or idle else "none"
    for op in idle:
        place = "" if op["body"] == "main" else f" in function {op['body']}"
        yield f"not fired: {op['type']} {op['op']}{place}: {op['why']}"
    uncalled = overrides["not_called"]
    if uncalled:
        functions = list(dict.fromkeys(op["body"] for op in uncalled))
        yield (
            f"{len(uncalled)} more not run: no output of what runs leads to them (in "
            f"{plural(len(functions), 'function')}: {short(functions)})"
        )


def _formulas(formulas: Iterable[dict[str, Any]]) -> Iterator[str]:
    by_formula: dict[str, list[dict[str, Any]]] = {}
    for comparison in formulas:
        by_formula.setdefault(comparison["formula"], []).append(comparison)
    if not by_formula:
        yield "none"
    for formula, some in by_formula.items():
        ops = sum(comparison["ops"] for comparison in some)
        where = f"{formula}, {plural(ops, 'op')}"
        errors = [float(ran["max_error"]) for ran in some if "max_error" in ran]
        if errors:
            by = some[0]["compared_with"]
            yield f"{where}: {by} differs by at most {max(errors):.2g}"
        for why in dict.fromkeys(
            skipped["not_compared"] for skipped in some if "not_compared" in skipped
        ):
            yield f"not compared: {formula}: {why}"
