"""`graphpatch doctor`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from graphpatch.analysis.doctor.causes import TRUE, Finding
from graphpatch.analysis.doctor.diagnosis import PairDiagnosis
from graphpatch.analysis.doctor.fix import FixResult, fix
from graphpatch.analysis.doctor.survey import missing_end
from graphpatch.cli import options
from graphpatch.cli.options import Texts, option
from graphpatch.cli.progress import bar
from graphpatch.cli.say import noted, say_answer
from graphpatch.formats import load
from graphpatch.runtime.diagnose import VERDICT_WORDS, diagnose
from graphpatch.runtime.diagnose import Diagnosis as Found
from graphpatch.shown import one_line
from graphpatch.table import path_in_words, plural, short

if TYPE_CHECKING:
    from graphpatch.runtime.not_finite import NotFinite

PAIRS_SHOWN = 10

RanPair = dict[str, Any] | None
ShownPair = tuple[PairDiagnosis, RanPair, int]


def _pairs_to_show(
    pairs: Sequence[PairDiagnosis], results: Sequence[RanPair], every: bool
) -> tuple[list[ShownPair], int]:
    """Return the pairs to print, each with how many more are like it; and how many are left out.

    Alike are those of one verdict, in a Session and on a tape, that one op blocks next to where
    they start.
    """
    whole = [(pair, result, 0) for pair, result in zip(pairs, results, strict=True)]
    whole = [entry for entry in whole if entry[0].connected or len(pairs) == 1]
    if every or len(whole) <= PAIRS_SHOWN:
        return whole, 0
    kinds: dict[Hashable, list[ShownPair]] = {}
    for entry in whole:
        kinds.setdefault(_alike_by(*entry[:2]), []).append(entry)
    some = [(*alike[0][:2], len(alike) - 1) for alike in list(kinds.values())[:PAIRS_SHOWN]]
    return some, len(whole) - sum(1 + more for _, _, more in some)


def _alike_by(pair: PairDiagnosis, result: RanPair) -> Hashable:
    blocker = [(last.kind, last.node.body.label, last.node.name) for last in pair.findings[-1:]]
    ran = result and (result["gradient"], result["ran"], result["zero"])
    return pair.verdict, pair.tape, pair.says, *blocker, ran


def _pairs_left_out_line(more: int) -> Iterator[str]:
    """Yield the line for pairs that are not printed."""
    if more:
        yield f"... {plural(more, 'more pair')} of other kinds; --all shows them"


PATH_SHOWN = 8  # tensors of a path that are printed

OUTPUT = {
    "model": str,
    "graphs": [{"pairs": [dict], "notes?": Any, "not_finite?": [dict]}],
}


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
    no_control_flow_v2: bool = option(
        "--no-control-flow-v2", "As after disable_control_flow_v2()."
    ),
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
        saved_as = options.refuse_rules_file(rules, force, inputs)
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

    def tell() -> None:
        document = {**diagnosis.document(rules), "model": model}
        say_answer(as_json, document, _lines_of_survey(diagnosis, saved_as, every))

    fixes = diagnosis.fixed
    is_written = fixes is not None and (diagnosis.rules or fixes.needs_contexts)
    document = {"version": 1, "rules": diagnosis.rules}
    options.write_rules_file(rules if is_written else None, document, tell)


def _lines_of_survey(diagnosis: Found, rules: str, every: bool) -> Iterator[str]:
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
    pairs: Sequence[PairDiagnosis], results: Sequence[dict[str, Any] | None], every: bool
) -> Iterator[str]:
    """Yield the pairs, blocked ones in full; what was said of an op is not said again."""
    explained: set[tuple[str, str]] = set()
    some, others = _pairs_to_show(pairs, results, every)
    for pair, result, more in some:
        yield from _pair_lines(pair, result, explained)
        if more:
            yield f"  ... {plural(more, 'more pair')} like this; --all shows them"
    yield from _pairs_left_out_line(others)
    apart = [pair for pair in pairs if not pair.connected]
    if apart and len(pairs) > 1:
        are = "pair is" if len(apart) == 1 else "pairs are"
        yield f"{len(apart)} more {are} not connected by any tensor"


def _pair_lines(
    pair: PairDiagnosis, result: dict[str, Any] | None, explained: set[tuple[str, str]]
) -> Iterator[str]:
    words = VERDICT_WORDS[pair.verdict]
    if not pair.connected:
        words += ": no tensor leads from the one to the other"
    yield f"{pair.source} -> {pair.target}: {words}"
    alone = [finding for finding in pair.findings if finding.is_of_tape]
    taped = [f"  on a tape: {_on_a_tape(pair)}"] if alone or pair.tape != pair.verdict else []
    if not (alone and pair.of_session):
        yield from taped
    if pair.says and (pair.verdict == "flows" or not pair.findings):
        yield f"  {pair.says}"
    if pair.findings and pair.path:
        yield f"  path     {path_in_words(pair.path, PATH_SHOWN)}"
    for finding in pair.of_session:
        yield from _finding_lines(finding, explained)
    if alone and pair.of_session:
        yield from taped
    for finding in alone:
        yield from _finding_lines(finding, explained)
    if result is not None:
        yield f"  run      {result['says']}"


def _on_a_tape(pair: PairDiagnosis) -> str:
    if pair.tape != "error":
        too = " too, and besides:" if pair.tape == pair.verdict else ""
        return f"{VERDICT_WORDS[pair.tape]}{too}"
    return "it raises" if pair.of_session else "it raises, by design"


def _finding_lines(finding: Finding, explained: set[tuple[str, str]]) -> Iterator[str]:
    node = finding.node
    place = "" if node.body.is_main else f" in function {node.body.label}"
    slot = "" if finding.slot is None else f", input {finding.slot}"
    yield f"  blocked  {finding.op_type} {node.name}{place}{slot}"
    if (node.body.label, node.name) in explained:
        return
    explained.add((node.body.label, node.name))
    yield f"           {finding.what}"
    yield f"           {finding.consequence}"
    yield f"    fix    {finding.remedy}"


def _not_finite_lines(start: NotFinite) -> Iterator[str]:
    """Yield where NaN starts in what one target is computed of."""
    yield f"{start.target} as it is fed: {start.says}"
    if start.op:
        slot = "" if start.slot is None else f", input {start.slot}"
        place = "" if start.body == "main" else f" in function {one_line(start.body)}"
        yield f"  starts   {start.type} {start.op}{slot}{place}"
        yield from (f"           {line}" for line in start.values)
    if start.remedy:
        yield f"    fix    {start.remedy}"
    if start.seeded:
        yield f"  {short(start.seeded)} seeded, not real data: give --feed FILE.npz"


def _fix_lines(diagnosis: Found, fixed: FixResult, rules: str) -> Iterator[str]:
    blocked = bool(diagnosis.pairs) and not diagnosis.ok
    if diagnosis.rules:
        count, flowing = len(diagnosis.rules), len(fixed.flowing)
        them = "it" if count == 1 else "them"
        flow = "more pair flows" if flowing == 1 else "more pairs flow"
        partial = sum("stop_gradient" in rule["patch"] for rule in fixed.rules)
        true = sum(rule["name"].startswith(TRUE) for rule in fixed.rules)
        stand_ins = len(fixed.rules) - partial - true
        kinds = (
            *((partial, "partial"), (stand_ins, "stand-in")),
            *((true, "true"), (count - len(fixed.rules), "finite")),
        )
        are = ", ".join(f"{number} {kind}" for number, kind in kinds if number)
        more = f"; with {them} {flowing} {flow}" if fixed.rules else ""
        yield f"{rules}: {plural(count, 'rule')} ({are}){more}"
    elif fixed.needs_contexts:
        yield f"{rules}: written without a rule, as loops need none"
    elif fixed.left or blocked:
        yield "no rule written: no single op can be fixed"
    else:
        yield "nothing to fix; nothing was written"
    if fixed.needs_contexts:
        yield f"next: graphpatch apply {rules} MODEL -o model.meta, which holds the loops' contexts"
    if fixed.left:
        stay = "stays as it is" if len(fixed.left) == 1 else "stay as they are"
        yield f"{plural(len(fixed.left), 'pair')} {stay}"
