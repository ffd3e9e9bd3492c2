"""`graphpatch doctor`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphpatch.analysis.doctor.causes import TRUE, Finding
from graphpatch.analysis.doctor.diagnosis import PairDiagnosis
from graphpatch.analysis.doctor.survey import FixResult, fix, missing_end
from graphpatch.cli import options
from graphpatch.cli.options import Texts, option
from graphpatch.cli.say import bar, noted, say_answer
from graphpatch.formats import load
from graphpatch.runtime.diagnose import VERDICT_WORDS, Diagnosis, diagnose
from graphpatch.shown import one_line, path_in_words, plural, short

if TYPE_CHECKING:
    from graphpatch.runtime.doctor_run import NotFinite

PAIRS_SHOWN = 10
ALIKE_SHOWN = 2  # ops that block alike and are printed
PATH_SHOWN = 8  # tensors of a path that are printed

RanPair = dict[str, Any] | None

OUTPUT = {"model": str, "graphs": [{"pairs": [dict], "notes?": Any, "not_finite?": [dict]}]}


@options.command("doctor", "doctor model.pb --from x --to loss", "doctor model.pb --fix rules.json")
def command(
    model: str = options.MODEL,
    sources: Texts = options.FROM,
    targets: Texts = options.TO,
    rules: str | None = option(
        "--fix RULES.json", "Write the rules that fix it.", type=options.RULES_FILE
    ),
    force: bool = options.FORCE,
    run: bool = options.RUN,
    feed: str | None = options.FEED,
    allow_unsafe_ops: bool = options.UNSAFE,
    no_control_flow_v2: bool = options.NO_V2,
    every: bool = options.ALL,
    as_json: bool = options.JSON,
) -> None:
    """Say why the gradient of LOSS with respect to X in MODEL is None, zero or an error.

    It names what blocks it, and what fixes it.

    Default of --from: all placeholders, and the floats that iterators, queues and parsers of
    Examples give. Default of --to: the outputs that nothing reads and that may be a loss, and the
    floats that signatures give. Of more than 10 pairs it prints one of each kind; --json lists all.
    With --run --feed it names the first op whose output or gradient is NaN or infinite.
    """
    if feed and not run:
        raise click.UsageError("--feed is what the gradients are run with; give --run too")
    saved_as = ""
    if rules:
        inputs = {"the model itself": model, "the file of --feed": feed}
        saved_as = options.checked_output(rules, force, inputs)
    with bar() as progress:
        loaded = load(model, progress)
        diagnosis = diagnose(
            loaded,
            sources,
            targets,
            run=run,
            feed=feed,
            every=every or as_json,
            allow_unsafe_ops=allow_unsafe_ops,
            control_flow_v2=not no_control_flow_v2,
        )
        if rules:  # the same ones, however they are printed
            fixed = fix(loaded, sources, targets, not no_control_flow_v2, every)
            diagnosis = replace(diagnosis, fixed=fixed)

    document = {**diagnosis.document(rules), "model": model}
    lines = list(_lines_of_survey(diagnosis, saved_as, every))
    converts = diagnosis.fixed is not None and diagnosis.fixed.needs_contexts
    if converts:
        lines.append(
            f"next: graphpatch apply {rules} {model} -o {Path(model).stem}.meta, which holds the "
            f"loops' contexts; import it after tf.compat.v1.disable_control_flow_v2()"
        )
    is_written = converts or (diagnosis.fixed is not None and diagnosis.rules)
    fixes = {"version": 1, "rules": diagnosis.rules}
    with options.writing_rules(rules if is_written else None, fixes):
        say_answer(as_json, document, lines)


def _lines_of_survey(diagnosis: Diagnosis, rules: str, every: bool) -> Iterator[str]:
    for place, graph in enumerate(diagnosis.seen):
        if len(diagnosis.seen) > 1:
            yield f"{diagnosis.model} [{graph.graph.around.tags}]"
        results = diagnosis.ran[place] if diagnosis.ran else [None] * len(graph.diagnoses)
        if not graph.diagnoses:
            yield f"no pair to look at: {missing_end(graph.graph)}"
        yield from _lines_of_pairs(graph.diagnoses, results, every)
        for start in diagnosis.not_finite[place] if diagnosis.not_finite else ():
            yield from _not_finite_lines(start)
        yield from noted(note.text() for note in graph.notes)
    if diagnosis.fixed is not None:
        yield from _fix_lines(diagnosis, diagnosis.fixed, rules)


def _lines_of_pairs(
    pairs: Sequence[PairDiagnosis], results: Sequence[RanPair], every: bool
) -> Iterator[str]:
    """Yield the pairs that are connected; of many, the first of each kind.

    What was said of an op is not said again.
    """
    groups: dict[Hashable, list[tuple[PairDiagnosis, RanPair]]] = {}
    both = zip(pairs, results, strict=True)
    connected = [(pair, ran) for pair, ran in both if pair.connected or len(pairs) == 1]
    is_whole = every or len(connected) <= PAIRS_SHOWN
    for number, (pair, ran) in enumerate(connected):
        kind = number if is_whole else _kind(pair, ran)
        groups.setdefault(kind, []).append((pair, ran))
    explained: set[tuple[str, str]] = set()
    shown = list(groups.values())[: None if every else PAIRS_SHOWN]
    for alike in shown:
        yield from _pair_lines(*alike[0], explained, every)
        if alike[1:]:
            yield f"  ... {plural(len(alike) - 1, 'more pair')} like this; --all shows them"
    if others := len(connected) - sum(map(len, shown)):
        yield f"... {plural(others, 'more pair')} of other kinds; --all shows them"
    if apart := len(pairs) - len(connected):
        are = "pair is" if apart == 1 else "pairs are"
        yield f"{apart} more {are} not connected by any tensor"


def _kind(pair: PairDiagnosis, result: RanPair) -> Hashable:
    """Return what pairs have in common that are alike: verdicts, and the last op that blocks."""
    blocker = [(last.kind, last.node.body.label, last.node.name) for last in pair.findings[-1:]]
    ran = result and (result["gradient"], result["ran"], result["zero"])
    return pair.verdict, pair.tape, pair.says, *blocker, ran


def _pair_lines(
    pair: PairDiagnosis, result: RanPair, explained: set[tuple[str, str]], every: bool
) -> Iterator[str]:
    words = VERDICT_WORDS[pair.verdict]
    if not pair.connected:
        words += ": no tensor leads from the one to the other"
    yield f"{pair.source} -> {pair.target}: {words}"
    alone = [finding for finding in pair.findings if finding.is_of_tape]
    taped = [f"  on a tape: {_on_a_tape(pair)}"] if alone or pair.tape != pair.verdict else []
    is_last = bool(alone and pair.of_session)
    yield from [] if is_last else taped
    if pair.says and (pair.verdict == "flows" or not pair.findings):
        yield f"  {pair.says}"
    if pair.findings and pair.path:
        yield f"  path     {path_in_words(pair.path, PATH_SHOWN)}"
    yield from _finding_lines(pair.of_session, explained, every)
    yield from taped if is_last else []
    yield from _finding_lines(alone, explained, every)
    if result is not None:
        yield f"  run      {result['says']}"


def _on_a_tape(pair: PairDiagnosis) -> str:
    if pair.tape != "error":
        too = " too, and besides:" if pair.tape == pair.verdict else ""
        return f"{VERDICT_WORDS[pair.tape]}{too}"
    return "it raises" if pair.of_session else "it raises, by design"


def _op_in_words(op_type: str, name: str, body: str, slot: int | None) -> str:
    place = "" if body == "main" else f" in function {one_line(body)}"
    return f"{op_type} {name}{place}{'' if slot is None else f', input {slot}'}"


def _finding_lines(
    findings: Sequence[Finding], explained: set[tuple[str, str]], every: bool
) -> Iterator[str]:
    """Yield what blocks; of ops of which the same is said, the first, with the words said once."""
    groups: dict[Hashable, list[Finding]] = {}
    for finding in findings:
        words = finding.what, finding.consequence, finding.remedy
        groups.setdefault(words, []).append(finding)
    for alike in groups.values():
        shown = alike if every else alike[:ALIKE_SHOWN]
        places = [(finding.node.body.label, finding.node.name) for finding in alike]
        for (body, name), finding in zip(places, shown, strict=False):
            yield f"  blocked  {_op_in_words(finding.op_type, name, body, finding.slot)}"
        if rest := len(alike) - len(shown):
            yield f"           and {rest} more like these; --all lists them"
        if not explained.issuperset(places):
            yield f"           {alike[0].what}"
            yield f"           {alike[0].consequence}"
            yield f"    fix    {alike[0].remedy}"
        explained.update(places)


def _not_finite_lines(start: NotFinite) -> Iterator[str]:
    """Yield where NaN starts in what one target is computed of."""
    yield f"{start.target} as it is fed: {start.says}"
    if start.op:
        yield f"  starts   {_op_in_words(start.type, start.op, start.body, start.slot)}"
        yield from (f"           {line}" for line in start.values)
    if start.remedy:
        yield f"    fix    {start.remedy}"
    if start.seeded:
        yield f"  {short(start.seeded)} seeded, not real data: give --feed FILE.npz"


def _fix_lines(diagnosis: Diagnosis, fixed: FixResult, rules: str) -> Iterator[str]:
    blocked = bool(diagnosis.pairs) and not diagnosis.ok
    if diagnosis.rules:
        count, flowing = len(diagnosis.rules), len(fixed.flowing)
        partial = sum("stop_gradient" in rule["patch"] for rule in fixed.rules)
        true = sum(rule["name"].startswith(TRUE) for rule in fixed.rules)
        kinds = {
            "that stops a gradient beside the path": partial,
            "with a stand-in gradient": len(fixed.rules) - partial - true,
            "with the true gradient": true,
            "against NaN": count - len(fixed.rules),
        }
        are = ", ".join(f"{number} {kind}" for kind, number in kinds.items() if number)
        flow = "1 more pair flows" if flowing == 1 else f"{flowing} more pairs flow"
        more = f"; with {'it' if count == 1 else 'them'} {flow}" if fixed.rules else ""
        yield f"{rules}: {plural(count, 'rule')} ({are}){more}"
    elif fixed.needs_contexts:
        yield f"{rules}: no rule, as what blocks is a v1 loop without its control-flow context"
    elif fixed.left or blocked:
        yield "no rule written: no single op can be fixed"
    else:
        yield "nothing to fix; nothing was written"
    if hopeless := [pair for pair in fixed.left if not pair.lacks_contexts]:
        stay = "stays as it is" if len(hopeless) == 1 else "stay as they are"
        yield f"{plural(len(hopeless), 'pair')} {stay}"
