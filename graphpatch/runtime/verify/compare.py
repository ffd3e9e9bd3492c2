"""A patched model beside its original, each run in a process of its own, and compared.

First the patch is made again, then both run: forward on several sets of values, and backward.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphpatch.analysis.again import SWAPPED, make_again
from graphpatch.analysis.rule_words import ops_before_rules, rules_at
from graphpatch.analysis.unsafe import apart_from_savers, refuse_unsafe, refuse_unsafe_load
from graphpatch.differentiation.bodies import Bodies
from graphpatch.errors import ModelError, check_progress, tensor_names
from graphpatch.formats.before import opened_again
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.formats.model import Model
from graphpatch.graph.graph import ModelGraph, Progress
from graphpatch.graph.op_types import VARIABLES
from graphpatch.graph.walk import upstream
from graphpatch.names import OpKey, TensorName, op_of
from graphpatch.runtime.graph_run import Ran
from graphpatch.runtime.tf_gradients import GradientAnswer
from graphpatch.runtime.values import (
    Values,
    difference_in_words,
    distance,
    fed_values,
    same_bits,
    unlike_bits,
    upstream_weights,
)
from graphpatch.runtime.verify.overrides import all_callers, sorted_overrides
from graphpatch.runtime.verify.process import (
    CannotRunError,
    SideBySide,
    TensorFlowProcess,
    may_be_rewritten,
)
from graphpatch.runtime.verify.results import (
    Branches,
    Forward,
    GradientPair,
    GraphRan,
    NotRun,
    SetOfValues,
    VerifiedGraph,
)
from graphpatch.runtime.verify.results import Verification as Verification
from graphpatch.runtime.verify.session import SIDES, Plan, without_signature
from graphpatch.shown import plural, short

MOST_REASONS = 3
FEED = "--feed FILE.npz gives inputs that it takes (in Python: feed={...})"
NOT_AMONG = "it is not among what is compared"
NOISY = "it differs from run to run in the original itself"
SLOW = "DeadlineExceededError"
EMPTY = "it has no elements on these values"
LATE = "it did not end in time, which is limited where there are queues, iterators or loops"
WRITING = "it differs, and comes after a write to a variable, which other ops may read before it"
SAVING = "it saves variables to files, or restores them"
OTHER_NAMES = "one of them is a TF2 SavedModel, with other names for inputs and outputs"
TEXT = "it is a text, which has no gradient"
NO_SOURCES = "nothing is fed that is a float, and there are no float variables or constants"
ALWAYS = {"seeds": "by name of the op or tensor", "processes": "one for each model"}
NOISE = 10  # times by which a gradient may differ more than it does from run to run
NAME_THEM = "--to names those that matter"
TARGETS = 32  # outputs whose gradients are taken, where nobody names them


def verify(
    original: ModelLike,
    patched: ModelLike,
    *,
    feed: str | Path | Mapping[str, Any] | None = None,
    sources: str | Sequence[str] = (),
    targets: str | Sequence[str] = (),
    run: bool = True,
    allow_unsafe_ops: bool = False,
    imports: Sequence[str] = (),
    progress: Progress | None = None,
) -> Verification:
    """Verify a patched model against its original, each run in a process of its own.

    Forward, each op must compute what it did, and all outputs be bit-equal on several sets of
    values. Backward, the result tells which gradients changed and which overrides fired. Its
    `verdict` is `verified`, `differs`, `not compared`, or `same structure` (`run=False`);
    `failures` and `not_compared` say why. See docs/verify.md.

    Args:
        original: The model before it was patched: what `load` takes.
        patched: The model after.
        feed: Arrays by tensor name, each of the dtype and shape of its tensor, or a .npz file;
            other placeholders get seeded values.
        sources: Take gradients with respect to these tensors. Default: by the floats that are fed.
        targets: Take gradients of these tensors. Default: of all outputs that are floats.
        run: False compares the graphs alone, which needs no TensorFlow.
        allow_unsafe_ops: Run ops too that touch files, the network or Python.
        imports: Modules or .py files that both processes import first.
        progress: Called with what is done, how much of it, and of how much.

    Raises:
        ModelError: A model or feed cannot be read, or there is no tensor of such a name.
        UnsafeError: A model would do more than compute when it runs.
        GraphpatchError: TensorFlow is missing.
        TypeError: `original` or `patched` is not a model, or one of the ends is not a name.

    When not to use it: for a model that is not trusted.

    Example:
        >>> graphpatch.verify("model.pb", "patched.pb", run=False).ok
        True
    """
    check_progress(progress)
    # What is in memory has edits that no file tells of.
    before = opened_again(model_from("original", original))
    after = opened_again(model_from("patched", patched))
    ends = tensor_names("sources", sources), tensor_names("targets", targets)
    fed = fed_values(feed if run else None)
    counts = len(before.graphs), len(after.graphs)
    if counts[0] != counts[1]:
        raise ModelError(f"{before.path} has {counts[0]} graphs, and {after.path} {counts[1]}")
    made, around = make_again(before, after)
    if any(text.startswith(SWAPPED) for text in around):
        run = False  # all that a run would find follows from it
    options = RunOptions(fed, *ends, allow_unsafe_ops, imports, progress or (lambda *_: None))
    parts, failures, gaps = list[VerifiedGraph](), list(around), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        models = {"original": before, "patched": after}
        files = [model.file_in(Path(folder, name)) for name, model in models.items() if run]
        for index, again in enumerate(made):
            faults, why = [fault.says for fault in again.faults], again.why
            outcome: Outcome = None, [], [f"structure: {why}, and nothing was run"] if why else []
            if run:
                outcome = run_graph((before, after), files, index, options, not (why or faults))
            ran, failing, missing = outcome
            parts.append(VerifiedGraph(after.graphs[index].around.tags, again, ran))
            label = f"[{parts[-1].label}] " if len(made) > 1 else ""
            failures += (f"{label}{text}" for text in (*faults, *failing))
            gaps += (f"{label}{text}" for text in missing)
    return Verification(before.path, after.path, parts, failures, gaps, (before, after))


@dataclass(frozen=True)
class RunOptions:
    """What the caller of `verify` says of the run; what is fed is by tensor name."""

    fed: Values
    sources: Sequence[str]
    targets: Sequence[str]
    allow_unsafe_ops: bool
    imports: Sequence[str]
    say: Progress


Outcome = tuple[GraphRan | NotRun | None, list[str], list[str]]
"""What a run showed, what differs that should not, and what should have been compared."""


def run_graph(
    models: Sequence[Model], files: Sequence[Path], index: int, options: RunOptions, is_sound: bool
) -> Outcome:
    """Run a graph of both models, which the processes read from files, and compare.

    `is_sound`: the structure is what the rules make, and so are all formulas.
    """
    original, patched = (model.graphs[index] for model in models)
    settings, why, is_wrong = dict[str, Any](), OTHER_NAMES, False
    if original.around.is_object_based == patched.around.is_object_based:
        for graph in (original, patched):
            if graph.around.is_object_based:
                refuse_unsafe_load(graph, options.allow_unsafe_ops)
            else:
                refuse_unsafe(graph, options.allow_unsafe_ops, [])  # what an import may run
        processes = [TensorFlowProcess(m.path, may_be_rewritten(m.graphs[index])) for m in models]
        with SideBySide(processes) as sides:
            try:
                options.say("starting TensorFlow", 0, 1)
                settings |= sides.begin(options.imports, original)
                settings |= {"graph_optimiser": ["off", "on"], **ALWAYS}
                registered = set[str]()
                for number, (process, file) in enumerate(zip(sides.processes, files, strict=True)):
                    options.say("importing the models", number, 2)
                    try:
                        registered = process.keep("open", str(file), process.name, index)
                    except ModelError as error:
                        raise CannotRunError(process, str(error)) from None
                return _compare(original, patched, sides, registered, settings, options, is_sound)
            except CannotRunError as error:
                why, is_wrong = str(error), error.process is sides.processes[1]
    if is_wrong:  # the original runs, and the patched one does not
        return NotRun(settings, why), [why], []
    return NotRun(settings, why), [], [f"nothing could be compared: {why}"]


def _compare(
    original: ModelGraph,
    patched: ModelGraph,
    sides: SideBySide,
    registered: Set[str],
    settings: dict[str, Any],
    options: RunOptions,
    is_sound: bool,
) -> Outcome:
    """Compare the graphs that both processes have opened."""
    first, second = sides.processes
    patched_ops = [op for body, op in rules_at(patched) if body == "main"]
    ends = list(options.fed), options.sources, options.targets
    plan = first.ask("plan", *ends, patched_ops, ops_before_rules(patched.main))
    plan = plan._replace(tensors=second.ask("there", plan.tensors))
    if not original.around.is_object_based:
        plan = _without_unsafe(plan, original, patched, options.allow_unsafe_ops)
    options.say("forward pass", 0, 1 + len(SETS))
    feeds = sides.choose(plan.tensors, options.fed)
    fed_as = without_signature if original.around.is_object_based else str
    fixed = {name for name in feeds if {name, fed_as(name)} & options.fed.keys()}
    forward, branches, values = compare_forward(sides, plan, feeds, fixed, options.say)
    settings["sets_of_values"] = [item.values for item in forward.sets]
    formulas = second.ask("formulas")
    targets, untaken = choose_targets(plan, forward, values, bool(options.targets))
    pairs, asked = compare_gradients(first, second, plan.sources, targets, options.say)
    failed = {pair.target: pair.after for pair in pairs if pair.state in ("fails", "uncompared")}
    overrides, unproven = sorted_overrides(original, patched, asked, registered, failed)
    shapes = {name: str(list(getattr(value, "shape", ()))) for name, value in feeds.items()}
    ran = GraphRan(settings, forward, shapes, branches, pairs, untaken, overrides, formulas)
    failures = [
        *(f"forward: {name}: {how}" for name, how in forward.differing.items()),
        *(f"gradient of {p}: {p.before} -> {p.after}" for p in pairs if p.state == "fails"),
        *(f"override of {each}: {each.why}" for each in overrides.not_fired if each.fails),
        *(check.failure for check in formulas if check.failure),
    ]
    unchecked = [] if is_sound else [check for check in formulas if check.not_compared]
    gaps = [
        *_forward_gaps(forward, patched, is_seeded=bool(feeds.keys() - fixed)),
        *unproven,
        *_gradient_gaps(ran, options),
        *(f"{check}: {check.not_compared}" for check in unchecked),
    ]
    return ran, failures, gaps


def _forward_gaps(forward: Forward, patched: ModelGraph, is_seeded: bool) -> Iterator[str]:
    """Yield what should have been compared of the forward pass, and was not."""
    hint = f"; {FEED}" if is_seeded and forward.not_compared else ""
    if not forward.compared:
        says = "; ".join(list(dict.fromkeys(forward.not_compared.values()))[:MOST_REASONS])
        yield f"nothing could be compared: {says or 'there is no output to compare'}{hint}"
    ops = [] if patched.around.is_object_based else list(_unseen_ops(patched, forward.compared))
    if ops:
        without = f"no tensor was compared that is computed of {short(ops)}"
        yield f"forward: {without}{hint if forward.compared else ''}"


def _gradient_gaps(ran: GraphRan, options: RunOptions) -> Iterator[str]:
    """Yield what should have been compared of the targets and their gradients, and was not.

    That is all of the targets that the user named, and something with respect to each source.
    """
    pairs, reasons = ran.gradients, ran.forward.not_compared
    compared = {pair.source for pair in pairs if pair.state != "uncompared"}
    sources: dict[tuple[str, str], list[str]] = {}
    for pair in pairs:
        if pair.state == "uncompared" and (options.targets or pair.source not in compared):
            sources.setdefault((pair.target, pair.before), []).append(pair.source)
    for (target, why), names in sources.items():
        yield f"gradient of {target} with respect to {short(names)}: {why}"
    if options.targets:
        targets = dict.fromkeys(pair.target for pair in pairs if pair.target in reasons)
        yield from (f"forward: {name}: {reasons[name]}" for name in targets)
        yield from (f"gradient not taken: {why}" for why in ran.gradients_not_taken)
    elif options.sources and not pairs:
        by = short(options.sources)
        yield f"no gradient with respect to {by} was taken: no output of floats was compared"


def _without_unsafe(
    plan: Plan, original: ModelGraph, patched: ModelGraph, allow_unsafe_ops: bool
) -> Plan:
    """Leave out what touches files as a Saver does; raise UnsafeError for all else that does."""
    tensors, saved = plan.tensors, list[str]()
    if not allow_unsafe_ops:
        tensors, saved = apart_from_savers(original, tensors)
    tensors = [name for name in tensors if name not in saved]
    main = original.main
    variables = (i for op in VARIABLES for i in main.by_type.get(op, ()))
    assigns = (f"{main.heads.names[index]}/Assign" for index in variables)
    initialisers = [name for name in assigns if name in main.by_name]
    for graph in (original, patched):
        refuse_unsafe(graph, allow_unsafe_ops, [*tensors, *initialisers])
    return plan._replace(tensors=tensors, left_out=dict.fromkeys(saved, SAVING))


def _spotted(array: Any, *values: float) -> Any:
    """Put these values in place of the first elements, and again in each third from there on."""
    changed = np.array(array, order="C")  # else what is reshaped would be a copy
    for place, value in enumerate(values):
        changed.reshape(-1)[place::3] = value
    return changed


# Of floats; ints and booleans of seeded zeros and ones are swapped in the first of them.
SETS: dict[str, Callable[[Any], Any]] = {
    "negated": lambda array: -array,
    "zeros": np.zeros_like,
    "small": lambda array: array * np.asarray(1e-3, array.dtype),
    "large": lambda array: array * np.asarray(1e3, array.dtype),
    "huge": lambda array: array * np.asarray(np.finfo(np.float32).max / 16, array.dtype),
    "infinite": lambda array: _spotted(array, np.inf, -np.inf),
    "NaN": lambda array: _spotted(array, np.nan),
}


def value_sets(seeded: Values, fixed: Set[str]) -> Iterator[tuple[str, Values]]:
    """Yield each set by its name, made of the seeded one; what is `fixed` stays as it is."""
    for name, change in SETS.items():
        values = dict(seeded)
        for key in seeded.keys() - fixed:
            array = np.asarray(seeded[key])
            if array.dtype.kind in "fc" or array.dtype.name == "bfloat16":
                with np.errstate(all="ignore"):
                    values[key] = np.asarray(change(array)).astype(array.dtype)
            elif name == "negated" and array.dtype.kind in "iub":
                values[key] = (1 - array.astype(np.int64)).astype(array.dtype)
        if any(values[key] is not value for key, value in seeded.items()):
            yield name, values


class ComparedValues(NamedTuple):
    """What was compared on a set of values, how far what differs, and why not the others."""

    compared: Sequence[str]
    differing: Mapping[str, str]
    uncompared: Mapping[str, str]

    def result(self, name: str) -> SetOfValues:
        """Return the set, which has this name, as `verify --json` prints it."""
        reasons = list(dict.fromkeys(self.uncompared.values()))
        return SetOfValues(name, len(self.compared), self.differing, reasons)


def compare_forward(
    sides: SideBySide, plan: Plan, feeds: Values, fixed: Set[str], say: Progress
) -> tuple[Forward, Branches, Values]:
    """Compare the tensors of the plan on each set of values, and watch which branches these take.

    Returns with that what the original computes of the first set.
    """
    seeded, values = _compare_values(sides, plan.tensors, plan.writing)
    taken = dict[str, set[str]]()
    hidden = _watch(sides, taken)
    equal = [name for name in seeded.compared if name not in seeded.differing]
    optimised, _ = _compare_values(sides, equal, plan.writing, optimise=True)
    seeded = seeded._replace(uncompared={**seeded.uncompared, **plan.left_out})
    sets, differing = [seeded.result("seeded")], dict(seeded.differing)
    # What waits for a queue that nobody fills is not run again.
    for name, changed in value_sets(feeds, fixed) if seeded.compared else ():
        say("forward pass", len(sets), 1 + len(SETS))
        sides.all("feed", changed)
        try:
            compared, _ = _compare_values(sides, seeded.compared, plan.writing)
        except CannotRunError as error:
            ended = dict.fromkeys(seeded.compared, str(error))
            compared = ComparedValues([], {}, ended)
            if error.process is sides.processes[1]:
                compared = ComparedValues(seeded.compared, ended, {})
        sets.append(compared.result(name))
        for tensor, how in compared.differing.items():
            differing.setdefault(tensor, f"{how} ({name} values)")
        _watch(sides, taken)
    sides.all("feed", feeds)
    missed = {op: [side for side in SIDES if side not in read] for op, read in taken.items()}
    not_reached = {op: f"never reads what is {'; nor '.join(s)}" for op, s in missed.items() if s}
    branches = Branches(len(taken), len(taken) - len(not_reached), not_reached, hidden)
    forward = seeded.compared, differing, optimised.differing, seeded.uncompared, sets
    return Forward(*forward), branches, values


def _watch(sides: SideBySide, taken: dict[str, set[str]]) -> dict[str, int]:
    """Note the branches that the values took; return how many nobody can watch, by place."""
    try:
        branches, hidden = sides.processes[0].ask("branches")
    except CannotRunError:
        return {}
    for op, reached in branches.items():
        taken.setdefault(op, set()).update(reached)
    return dict(hidden)


def _compare_values(
    sides: SideBySide, tensors: Sequence[str], writing: Set[str], optimise: bool = False
) -> tuple[ComparedValues, Values]:
    """Compare these tensors on the values that are fed; return what the original computes too."""
    original, patched = sides.processes
    before, reasons = _run(original, tensors, writing, optimise)
    after, failed = _run(patched, list(before), writing, optimise)
    differing, uncompared = dict[str, str](), dict(reasons)
    unlike = [
        name for name in before if name not in after or not same_bits(before[name], after[name])
    ]
    again = _run(original, list(before), writing, optimise)[0] if unlike else {}
    for tensor in unlike:
        if tensor not in again or not same_bits(before[tensor], again[tensor]):
            uncompared[tensor] = NOISY
        elif tensor in after and tensor in writing:
            uncompared[tensor] = WRITING
        elif tensor in after:
            differing[tensor] = difference_in_words(before[tensor], after[tensor])
        elif (why := failed.get(tensor, "no value")).startswith(SLOW):
            uncompared[tensor] = LATE
        else:
            differing[tensor] = f"it fails in the patched model: {why}"
    empty = (name for name in before if not np.size(before[name]) and name not in unlike)
    uncompared |= dict.fromkeys(empty, EMPTY)
    compared = [tensor for tensor in before if tensor not in uncompared]
    return ComparedValues(compared, differing, uncompared), before


def _run(
    process: TensorFlowProcess, tensors: Sequence[str], writing: Set[str], optimise: bool
) -> Ran:
    """Run the tensors; apart from the others those that write to variables before they are."""
    values, reasons = dict[str, Any](), dict[str, str]()
    for is_writing in (False, True):
        if some := [name for name in tensors if (name in writing) is is_writing]:
            more, failed = process.ask("run", some, optimise)
            values, reasons = values | more, reasons | failed
    return values, reasons


def choose_targets(
    plan: Plan, forward: Forward, values: Values, is_named: bool
) -> tuple[Values, list[str]]:
    """Return the targets, which the user may have named, with their values, and why not others."""
    texts = {name for name in values if np.asarray(values[name]).dtype.kind in "OS"}
    present = values.keys() - texts if is_named else set(forward.compared)
    targets, untaken = [name for name in plan.targets if name in present], list[str]()
    if is_named:
        reasons = {**dict.fromkeys(texts, TEXT), **forward.not_compared}
        missing = [name for name in plan.targets if name not in present]
        untaken += (f"of {name}: {reasons.get(name, NOT_AMONG)}" for name in missing)
    else:
        if rest := [name for name in targets if name not in plan.trained]:
            if trained := len(targets) - len(rest):
                outputs = f"{plural(trained, 'output')} that training computes from its gradients"
                untaken.append(f"of {outputs}; {NAME_THEM}")
            targets = rest
        if (more := len(targets) - TARGETS) > 0:
            untaken.append(f"of {more} more outputs; {NAME_THEM}")
            targets = targets[:TARGETS]
    if not plan.sources:
        untaken.append(NO_SOURCES)
    return {name: values[name] for name in targets if plan.sources}, untaken


def compare_gradients(
    original: TensorFlowProcess,
    patched: TensorFlowProcess,
    sources: Sequence[str],
    targets: Values,
    say: Progress,
) -> tuple[list[GradientPair], dict[OpKey, bool]]:
    """Compare the gradients of each target, which has this value, with respect to each source.

    Returns with them the ops of the patched graph whose gradient was asked for, with whether one
    that came of it was run. What changed is run once more: it may differ from run to run.
    """
    pairs, asked = list[GradientPair](), dict[OpKey, bool]()
    for number, (target, value) in enumerate(targets.items()):
        say("gradients", number, len(targets))
        dy = upstream_weights(target, value)
        before, _ = original.gradients(sources, target, dy)
        after, fired = patched.gradients(sources, target, dy)
        has_run = any(answer.kind == "tensor" for answer in after.values())
        asked |= {op: has_run or asked.get(op, False) for op in fired}
        changes = {name: _pair(name, target, before[name], after[name]) for name in sources}
        moved = [name for name, pair in changes.items() if pair.max_abs > 0]
        again, _ = original.gradients(moved, target, dy) if moved else ({}, set())
        for name, answer in again.items():
            noise = distance(before[name].value, answer.value)[0] if answer.kind == "tensor" else 0
            if changes[name].max_abs <= NOISE * noise:
                changes[name].state = "same"
        pairs += changes.values()
    return pairs, asked


def _pair(source: str, target: str, before: GradientAnswer, after: GradientAnswer) -> GradientPair:
    """Compare one gradient."""
    state, is_zero, alone, sizes = "same", False, "", (0.0, 0.0)
    texts, old, new = (str(before), str(after)), before.value, after.value
    if after.kind == "error":
        state = "uncompared" if before.kind == "error" else "fails"
    elif before.kind != after.kind:
        state = "changed"
    elif before.kind == "tensor" and same_bits(old, new):
        is_zero = not np.any(old)
    elif before.kind == "tensor" and old.shape != new.shape:
        state, texts = "fails", (str(list(old.shape)), str(list(new.shape)))
    elif before.kind == "tensor":
        state, sizes = "changed", distance(old, new)
        alone = "" if sizes[0] else unlike_bits(old)
    return GradientPair(source, target, state, *texts, *sizes, is_zero, alone)


def _unseen_ops(graph: ModelGraph, compared: Sequence[str]) -> Iterator[str]:
    """Yield the patched ops, as their rules name them, of which nothing was compared.

    What no op of the main graph calls counts for nothing.
    """
    main, bodies = graph.main, Bodies(graph)
    marks = upstream(main, [TensorName(op_of(name)) for name in compared], control=True)
    for body, op in rules_at(graph):
        if body == main.label:
            index = main.by_name.get(op)
            if index is None or not marks[index]:
                yield repr(op)
        else:
            calls = [caller.index for caller in all_callers(bodies, body) if caller.body.is_main]
            if calls and not any(marks[index] for index in calls):
                yield f"{op!r} in function {body!r}"
