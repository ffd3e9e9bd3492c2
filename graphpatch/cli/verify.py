"""`graphpatch verify`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphpatch.analysis.again import SWAPPED
from graphpatch.cli import options
from graphpatch.cli.options import Texts, option
from graphpatch.cli.say import bar, say_answer
from graphpatch.formats import load
from graphpatch.shown import and_more, plural, short

if TYPE_CHECKING:
    from graphpatch.runtime.verify.formulas import FormulaCheck
    from graphpatch.runtime.verify.overrides import Overrides
    from graphpatch.runtime.verify.results import (
        Branches,
        Forward,
        GradientPair,
        GraphRan,
        Verification,
        VerifiedGraph,
    )

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
    1: something differs that should not. Exit 4: no difference was found, but something that had to
    be compared was not: a patched op, a formula, a tensor that --from or --to names.
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
    lines = _lines_of_verification(verification, every)
    say_answer(as_json, verification.document(), lines)
    return 0 if verification.ok else DIFFERS if verification.failures else NOT_COMPARED


def _lines_of_verification(verification: Verification, every: bool) -> Iterator[str]:
    failures, gaps = verification.failures, verification.not_compared
    if failures and failures[0].startswith(SWAPPED):
        yield failures[0]  # all else that differs follows from it
        return
    for graph in verification.parts:
        if len(verification.parts) > 1:
            yield f"[{graph.label}]"
        for title, lines in _sections(graph):
            for place, line in enumerate(_first_lines(lines, every)):
                yield f"{'' if place else title:<11} {line}"
    verdict = verification.verdict
    if failures:
        verdict = f"differs: {plural(len(failures), 'failure')}"
    elif gaps:
        verdict = f"not compared: {plural(len(gaps), 'gap')}"
    elif verdict == "same structure":
        verdict = f"{verdict}; nothing was run"
    yield f"{verification.patched}: {verdict}"
    yield from (f"  {text}" for text in _first_lines(failures, every))
    prefix = "not compared: " if failures else ""
    yield from (f"  {prefix}{text}" for text in _first_lines(gaps, every))


def _first_lines(lines: Sequence[str], every: bool) -> Sequence[str]:
    """Return all lines, or the first and how many more there are."""
    if every or len(lines) <= OF_EACH_KIND:
        return lines
    return [*lines[:OF_EACH_KIND], f"{and_more(lines, OF_EACH_KIND)}; --all lists them"]


def _sections(graph: VerifiedGraph) -> Iterator[tuple[str, list[str]]]:
    from graphpatch.runtime.verify.results import NotRun

    made, ran = graph.made, graph.ran
    faults = [fault.says for fault in made.faults]
    count = [plural(len(faults), "fault")] if faults else []
    says = [made.says or made.why] if made.says or made.why else []
    yield "structure", [*says, *count, *faults]
    if ran is not None and ran.settings.get("tensorflow"):
        yield "settings", list(_settings(ran.settings))
    if isinstance(ran, NotRun):
        yield "not run", [ran.not_run]
    elif ran is not None:
        yield "fed", [", ".join(f"{n} {shape}" for n, shape in ran.fed.items()) or "nothing"]
        yield "forward", list(_forward_lines(ran.forward))
        yield "branches", list(_branch_lines(ran.branches))
        yield "gradients", list(_gradient_lines(ran))
        yield "overrides", list(_overrides(ran.overrides))
        yield "formulas", list(_formulas(ran.formulas))


def _settings(settings: Mapping[str, Any]) -> Iterator[str]:
    devices = ", ".join(settings["devices"])
    onednn = "on" if settings["onednn"] else "off"
    xla = "on" if settings["auto_clustering"] else "off"
    yield f"TensorFlow {settings['tensorflow']}, {devices}, oneDNN {onednn}, XLA clustering {xla}"
    yield "op by op, and once as Grappler optimises graphs; random ops seeded by name"
    if not settings["control_flow_v2"]:
        yield "as after tf.compat.v1.disable_control_flow_v2(), which v1 TensorArrays need"
    if sets := settings.get("sets_of_values"):  # none where a model could not be imported
        yield f"{plural(len(sets), 'set')} of values: {', '.join(sets)}"


def _branch_lines(branches: Branches) -> Iterator[str]:
    sides = f"both sides at {branches.reached} of {branches.watched} ops"
    yield sides if branches.watched else "no op to watch"
    yield from (f"not reached: {op} {why}" for op, why in branches.not_reached.items())
    for place, count in branches.not_watched.items():
        if count:
            yield f"not watched: {count} in {place}"


def _forward_lines(forward: Forward) -> Iterator[str]:
    compared, differing = len(forward.compared), forward.differing
    yield f"{compared - len(differing)} of {compared} tensors are bit-equal"
    for values in forward.sets:
        if values.not_compared and not values.compared:
            yield f"{values.values} values: the model does not take them: {values.not_compared[0]}"
        elif values.compared < compared:
            missing = plural(compared - values.compared, "tensor")
            yield f"{values.values} values: {missing} not compared: {short(values.not_compared)}"
    yield from (f"differs: {name}: {how}" for name, how in differing.items())
    for name, how in forward.optimised_differing.items():
        yield f"note: where TensorFlow fuses ops {name} differs: {how}"
    yield from _grouped(forward.not_compared)


def _grouped(reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield what was not compared: the tensors of each reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        yield f"not compared: {short(names)}: {reason}"


def _gradient_lines(ran: GraphRan) -> Iterator[str]:
    same = [pair for pair in ran.gradients if pair.state == "same"]
    none, zero = sum(pair.after == "None" for pair in same), sum(pair.zero for pair in same)
    both = f", {none} of these None in both" if none else ""
    both += f", {zero} of these zero in both" if zero else ""
    yield f"{len(ran.gradients)} taken, {len(same)} unchanged{both}"
    for pair in ran.gradients:
        if pair.state in ("changed", "fails"):
            yield f"{pair.state}: {pair}: {_difference_in_words(pair)}"
    yield from _grouped({str(p): p.before for p in ran.gradients if p.state == "uncompared"})
    yield from (f"not taken: {why}" for why in ran.gradients_not_taken)


def _difference_in_words(pair: GradientPair) -> str:
    if pair.before != pair.after:
        return f"{pair.before} -> {pair.after}"
    if pair.alone:
        return f"in {pair.alone} alone"
    if math.isinf(pair.max_rel) and math.isfinite(pair.max_abs):
        return f"0 everywhere -> up to {pair.max_abs:.3g}"
    return f"by up to {pair.max_abs:.3g}, {pair.max_rel:.3g} of the largest element"


def _overrides(overrides: Overrides) -> Iterator[str]:
    fired, idle, uncalled = overrides.fired, overrides.not_fired, overrides.not_called
    yield f"{len(fired)} of {len(fired) + len(idle)} fired" if fired or idle else "none"
    yield from (f"not fired: {override}: {override.why}" for override in idle)
    if uncalled:
        functions = list(dict.fromkeys(override.body for override in uncalled))
        where = f"in {plural(len(functions), 'function')}: {short(functions)}"
        yield f"{len(uncalled)} more not run: no output of what runs leads to them ({where})"


def _formulas(formulas: Iterable[FormulaCheck]) -> Iterator[str]:
    by_formula: dict[str, list[FormulaCheck]] = {}
    for check in formulas:
        by_formula.setdefault(check.formula, []).append(check)
    if not by_formula:
        yield "none"
    for formula, checks in by_formula.items():
        where = f"{formula}, {plural(sum(check.ops for check in checks), 'op')}"
        errors = [check.max_error for check in checks if check.max_error is not None]
        if errors:
            yield f"{where}: {checks[0].compared_with} differs by at most {max(errors):.2g}"
        for why in dict.fromkeys(check.not_compared for check in checks if check.not_compared):
            yield f"not compared: {formula}: {why}"
