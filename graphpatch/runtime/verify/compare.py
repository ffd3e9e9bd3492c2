"""Two models, each run in a process of its own, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from graphpatch.analysis.rule_words import ops_before_rules, rules_at
from graphpatch.analysis.soundness.overrides import UnfiredReasons
from graphpatch.analysis.soundness.undone import uncompared_ops
from graphpatch.analysis.unsafe import apart_from_savers, refuse_unsafe, refuse_unsafe_load
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.graph.heads import Progress
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.graph.op_types import VARIABLES
from graphpatch.runtime.values import Values, upstream_weights
from graphpatch.runtime.verify.backward import backward
from graphpatch.runtime.verify.firing import sort_out
from graphpatch.runtime.verify.forward import (
    SEEDED,
    SETS,
    ComparedForward,
    ComparedValues,
    compare_on_values,
    compare_optimised,
    value_sets,
)
from graphpatch.runtime.verify.process import ProcessDiedError
from graphpatch.runtime.verify.reached_branches import ReachedBranches
from graphpatch.runtime.verify.result import RunResult
from graphpatch.runtime.verify.side import RunningModel
from graphpatch.runtime.verify.start import needs_control_flow_v1
from graphpatch.table import plural


@dataclass(frozen=True)
class CompareOptions:
    """Feeds by tensor name; the tensors by which, and of which, gradients are taken.

    `imports` are modules, or .py files, that the processes import before they read a model.
    `progress` is called with what is done, how much of it, and of how much.
    """

    feed: Values = field(default_factory=dict)
    sources: Sequence[str] = ()
    targets: Sequence[str] = ()
    allow_unsafe_ops: bool = False
    imports: Sequence[str] = ()
    progress: Progress | None = None

    def say(self, what: str, done: int, total: int) -> None:
        """Say how far a stage has come, to whoever wants to know."""
        if self.progress is not None:
            self.progress(what, done, total)


T = TypeVar("T")

NOT_AMONG = "it is not among what is compared"
TARGETS = 32  # outputs whose gradients are taken, where nobody names them
PASSES = len(SETS) + 3  # sets of values, at most: seeded, changed, at activations and conditions


@dataclass(frozen=True)
class ComparedGraph:
    """One graph of a model, and the file from which its process reads it."""

    model: Model
    graph: ModelGraph
    file: Path

    @property
    def place(self) -> int:
        """Which of the model's graphs it is."""
        return next(n for n, graph in enumerate(self.model.graphs) if graph is self.graph)


def compare(one: ComparedGraph, other: ComparedGraph, options: CompareOptions) -> RunResult:
    """Run a graph of a model and its patched copy, each in a process of its own, and compare.

    Raises UnsafeError where running it would do more than compute, ModelError for names of tensors
    that there are not, GraphpatchError where TensorFlow is missing.
    """
    _refuse_unsafe(one.graph, other.graph, options)
    with ExitStack() as stack:
        sides = RunningModel(one.model.path), RunningModel(other.model.path)
        for side in sides:
            stack.enter_context(closing(side.process))
            side.process.start()
        return _compare_started(one, other, *sides, options)


def _refuse_unsafe(left: ModelGraph, right: ModelGraph, options: CompareOptions) -> None:
    for graph in (left, right):
        if graph.around.is_object_based:
            refuse_unsafe_load(graph, options.allow_unsafe_ops)
        else:
            refuse_unsafe(graph, options.allow_unsafe_ops, [])  # what an import may run


def _compare_started(
    one: ComparedGraph,
    other: ComparedGraph,
    left: RunningModel,
    right: RunningModel,
    options: CompareOptions,
) -> RunResult:
    options.say("starting TensorFlow", 0, 1)
    v2 = not needs_control_flow_v1(one.graph)
    settings, _ = _ask_both(left, right, lambda it: it.process.keep("begin", options.imports, v2))
    ran = RunResult(settings=settings)
    for subject, side in ((one, left), (other, right)):
        options.say("importing the models", int(side is right), 2)
        if why := _import_failure(subject, side):
            return replace(ran, why=why, is_wrong=side is right)
    tensors, reasons = _tensors_to_compare(one.graph, other.graph, left, right, options)
    try:
        ran.forward = _compare_forward(ran, tensors, left, right, options)
    except ProcessDiedError as error:
        return RunResult(settings=settings, why=str(error), is_wrong=error.process is right.process)
    ran.forward.first.uncompared |= reasons
    if not other.graph.around.is_object_based:
        ran.unseen = list(uncompared_ops(other.graph, ran.forward.compared))
    ran.formulas = right.formulas()
    _compare_backward(ran, other.graph, left, right, options)
    pairs = [(pair.source, pair.target) for pair in ran.backward.pairs]
    values = ran.forward.first.values
    upstream = {target: upstream_weights(target, values[target]) for _, target in pairs}
    sources = list(dict.fromkeys(source for source, _ in pairs))
    sort_out(
        one.graph,
        UnfiredReasons(other.model, other.graph, pairs, v2),
        right.registered(),
        lambda places: right.probed(places, sources, upstream),
        ran,
    )
    return ran


def _import_failure(subject: ComparedGraph, side: RunningModel) -> str:
    """Why the process of a side cannot open its model; nothing where it can."""
    try:
        side.process.keep("open", str(subject.file), subject.model.path, subject.place)
    except ProcessDiedError as error:
        return str(error)
    except ModelError as error:
        return f"{subject.model.path}: {error}"
    return ""


def _tensors_to_compare(
    one: ModelGraph,
    other: ModelGraph,
    left: RunningModel,
    right: RunningModel,
    options: CompareOptions,
) -> tuple[list[str], dict[str, str]]:
    """What is compared; and of other tensors why they are not."""
    touched = [f"{op}:0" for body, op in rules_at(other) if body == "main"]
    tensors = right.there(left.tensors(touched, options.targets))
    if one.around.is_object_based:
        return tensors, {}
    saved: list[str] = []
    if not options.allow_unsafe_ops:
        tensors, saved = apart_from_savers(one, tensors)
    written = left.writing(tensors)
    tensors = [name for name in tensors if name not in written]
    for graph in (one, other):
        refuse_unsafe(graph, options.allow_unsafe_ops, [*tensors, *_initialisers(one)])
    reasons = dict.fromkeys(written, "it comes after a write to a variable")
    reasons |= dict.fromkeys(saved, "it saves variables to files, or restores them")
    return tensors, reasons


def _initialisers(graph: ModelGraph) -> Iterator[str]:
    """What variables may be assigned first."""
    for op in VARIABLES:
        for index in graph.main.by_type.get(op, ()):
            name = f"{graph.main.heads.names[index]}/Assign"
            if name in graph.main.by_name:
                yield name


def _compare_forward(
    ran: RunResult,
    tensors: Sequence[str],
    left: RunningModel,
    right: RunningModel,
    options: CompareOptions,
) -> ComparedForward:
    """Compare the tensors on each set of values, and watch which branches those take."""
    options.say("forward pass", 0, PASSES)
    feeds, variables = left.choose(tensors, options.feed)
    left.values(variables)
    right.values(variables)
    ran.fed = {name: str(list(getattr(value, "shape", ()))) for name, value in feeds.items()}
    found, reached = ComparedForward(), ReachedBranches(left.unwatched())
    _feed_both(feeds, left, right)
    found.first = compare_on_values(SEEDED, left, right, tensors)
    reached.add(left.branches())
    found.fused = compare_optimised(left, right, _sound(found.first))
    tensors = found.first.compared  # what waits for a queue that nobody fills is not run again
    for name, values in value_sets(feeds, left.names(list(options.feed))) if tensors else ():
        options.say("forward pass", 1 + len(found.others), PASSES)
        found.others.append(_compare_or_died(name, values, left, right, tensors))
        reached.add(left.branches())
    for word, upwards in (("at activations", True), ("at conditions", False)):
        options.say("forward pass", PASSES - 1, PASSES)
        names = reached.missing() if tensors else []
        _feed_both(feeds, left, right)
        values = left.steered(names, upwards) if names else {}
        if values:
            more = [*tensors, *(name for name in reached.outputs(names) if name not in tensors)]
            there = right.there(left.there(more))
            found.others.append(_compare_or_died(word, {**feeds, **values}, left, right, there))
            reached.steer(left.branches())
    _feed_both(feeds, left, right)
    ran.reached = reached
    return found


def _sound(found: ComparedValues) -> list[str]:
    return [name for name in found.compared if name not in found.differing]


def _compare_or_died(
    name: str, feeds: Values, left: RunningModel, right: RunningModel, tensors: Sequence[str]
) -> ComparedValues:
    _feed_both(feeds, left, right)
    try:
        return compare_on_values(name, left, right, tensors)
    except ProcessDiedError as error:
        ended = dict.fromkeys(tensors, str(error))
        if error.process is right.process:
            return ComparedValues(name, list(tensors), differing=ended)
        return ComparedValues(name, uncompared=ended)


def _feed_both(feeds: Values, left: RunningModel, right: RunningModel) -> None:
    _ask_both(left, right, lambda side: side.feed(feeds))


def _ask_both(left: RunningModel, right: RunningModel, ask: Callable[[RunningModel], T]) -> list[T]:
    """What both answer; one works while the other does."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(ask, (left, right)))


def _compare_backward(
    ran: RunResult,
    graph: ModelGraph,
    left: RunningModel,
    right: RunningModel,
    options: CompareOptions,
) -> None:
    patched = [op for body, op in rules_at(graph) if body == "main"]
    sources = left.names(options.sources)
    sources = sources or left.sources([*patched, *ops_before_rules(graph.main)])
    targets = _targets(ran, left, patched, options)
    if not sources:
        ran.untaken.append(
            "nothing is fed that is a float, and there are no float variables or constants"
        )
    if sources and targets:
        values: Mapping[str, Any] = {name: ran.forward.first.values[name] for name in targets}
        ran.backward = backward(left, right, sources, values, options.say)


def _targets(
    ran: RunResult, left: RunningModel, patched: Sequence[str], options: CompareOptions
) -> list[str]:
    """The float outputs of which gradients are taken; first those behind patched ops."""
    first = ran.forward.first
    named = left.names(options.targets)
    if named:
        missing = (name for name in named if name not in first.values)
        ran.untaken += (f"of {one}: {first.uncompared.get(one, NOT_AMONG)}" for one in missing)
        return [name for name in named if name in first.values]
    floats = left.targets(first.compared, patched)
    trained = set(left.trained(floats))
    others = [name for name in floats if name not in trained]
    if trained and others:
        floats = others
        ran.untaken.append(
            f"of {plural(len(trained), 'output')} that training computes from its gradients; "
            "--to names those that matter"
        )
    if len(floats) > TARGETS:
        ran.untaken.append(f"of {len(floats) - TARGETS} more outputs; --to names those that matter")
    return floats[:TARGETS]
