"""Two models, each run in a process of its own, side by side: forward, backward, what fired."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from graphpatch.analysis.rule_words import ops_before_rules, rules_at
from graphpatch.analysis.unsafe import apart_from_savers, refuse_unsafe, refuse_unsafe_load
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.graph.functions import called_functions
from graphpatch.graph.graph import Graph, ModelGraph, Progress
from graphpatch.graph.op_types import VARIABLES
from graphpatch.graph.walk import upstream
from graphpatch.names import TensorName, op_of
from graphpatch.runtime.tf_gradients import GradientAnswer
from graphpatch.runtime.values import Values, upstream_weights
from graphpatch.runtime.verify.bits import difference_in_words, distance, same_bits
from graphpatch.runtime.verify.firing import Firing, UnfiredOverride
from graphpatch.runtime.verify.process import (
    ProcessDiedError,
    TensorFlowProcess,
    needs_control_flow_v1,
)
from graphpatch.runtime.verify.result import ComparedGradient, ComparedValues, RunResult
from graphpatch.table import plural

NOT_AMONG = "it is not among what is compared"
NOISY = "it differs from run to run in the original itself"
NOISE = 10  # times by which a gradient may differ more than it does from run to run
TARGETS = 32  # outputs whose gradients are taken, where nobody names them


def _every_third(third: int, value: float) -> Callable[[Any], Any]:
    """Put a value in place of every third element, from this one on."""

    def put(array: Any) -> Any:
        changed = np.array(array)
        changed.reshape(-1)[third::3] = value
        return changed

    return put


# Of floats; ints and booleans of seeded zeros and ones are swapped in the first of them.
SETS: dict[str, Callable[[Any], Any]] = {
    "negated": lambda array: -array,
    "zeros": np.zeros_like,
    "small": lambda array: array * np.asarray(1e-3, array.dtype),
    "large": lambda array: array * np.asarray(1e3, array.dtype),
    "huge": lambda array: array * np.asarray(np.finfo(np.float32).max / 16, array.dtype),
    "infinite": lambda array: _every_third(1, -np.inf)(_every_third(0, np.inf)(array)),
    "NaN": _every_third(0, np.nan),
}
STEERED = {"at activations": True, "at conditions": False}
PASSES = 1 + len(SETS) + len(STEERED)


def value_sets(seeded: Values, fixed: Container[str]) -> Iterator[tuple[str, Values]]:
    """Yield each set by its name, made of the seeded one; what is `fixed` stays as it is."""
    for name, change in SETS.items():
        values = {
            key: value if key in fixed else _changed_value(name, change, value)
            for key, value in seeded.items()
        }
        if any(values[key] is not value for key, value in seeded.items()):
            yield name, values


def _changed_value(name: str, change: Callable[[Any], Any], value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype.kind in "fc" or array.dtype.name == "bfloat16":
        with np.errstate(all="ignore"):
            return np.asarray(change(array)).astype(array.dtype)
    if name == "negated" and array.dtype.kind in "iub":
        return (1 - array.astype(np.int64)).astype(array.dtype)
    return value


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


@dataclass(frozen=True)
class ComparedGraph:
    """One graph of a model, by its index, and the file from which its process reads it."""

    model: Model
    index: int
    file: Path

    @property
    def graph(self) -> ModelGraph:
        """Return the graph."""
        return self.model.graphs[self.index]


def compare(original: ComparedGraph, patched: ComparedGraph, options: CompareOptions) -> RunResult:
    """Run a graph of a model and its patched copy, each in a process of its own, and compare.

    Raises UnsafeError where running it would do more than compute, ModelError for names of tensors
    that there are not, GraphpatchError where TensorFlow is missing.
    """
    for graph in (original.graph, patched.graph):
        if graph.around.is_object_based:
            refuse_unsafe_load(graph, options.allow_unsafe_ops)
        else:
            refuse_unsafe(graph, options.allow_unsafe_ops, [])  # what an import may run
    with ExitStack() as stack:
        first, second = (TensorFlowProcess(compared.model.path) for compared in (original, patched))
        for process in (first, second):
            stack.enter_context(closing(process))
            process.start()
        return _Comparison(original, patched, first, second, options).run()


@dataclass
class _Comparison:
    """The run of two processes: `left` has the original, `right` the patched model."""

    original: ComparedGraph
    patched: ComparedGraph
    left: TensorFlowProcess
    right: TensorFlowProcess
    options: CompareOptions

    def run(self) -> RunResult:
        options, ran = self.options, RunResult()
        options.say("starting TensorFlow", 0, 1)
        v2 = not needs_control_flow_v1(self.original.graph)
        ran.settings, _ = self._both(lambda process: process.keep("begin", options.imports, v2))
        registered = set[str]()
        for subject, process in ((self.original, self.left), (self.patched, self.right)):
            options.say("importing the models", int(process is self.right), 2)
            try:
                registered = process.keep(
                    "open", str(subject.file), subject.model.path, subject.index
                )
            except (ProcessDiedError, ModelError) as error:
                ran.why = str(error)
                if isinstance(error, ModelError):
                    ran.why = f"{subject.model.path}: {error}"
                ran.is_wrong = process is self.right
                return ran
        try:
            self._forward(ran, *self._tensors())
        except ProcessDiedError as error:
            return RunResult(ran.settings, why=str(error), is_wrong=error.process is self.right)
        graph = self.patched.graph
        if not graph.around.is_object_based:
            ran.unseen = list(_uncompared_ops(graph, ran.compared))
        ran.formulas = self.right.ask("formulas")
        asked = self._backward(ran)
        pairs = [(pair.source, pair.target) for pair in ran.gradients]
        firing = Firing(
            self.original.graph, self.patched.model, graph, asked, pairs, registered, v2
        )
        ran.fired, unfired = firing.sort()
        self._probe(ran, unfired)
        return ran

    def _both(self, ask: Callable[[TensorFlowProcess], Any]) -> list[Any]:
        """Return what both answer; one works while the other does."""
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(ask, (self.left, self.right)))

    def _tensors(self) -> tuple[list[str], dict[str, str]]:
        """Return the tensors to compare; and of others why they are not."""
        graph, options = self.original.graph, self.options
        touched = [f"{op}:0" for body, op in rules_at(self.patched.graph) if body == "main"]
        tensors, writing = self.left.ask("tensors", touched, options.targets)
        tensors = self.right.ask("there", tensors)
        if graph.around.is_object_based:
            return tensors, {}
        saved: list[str] = []
        if not options.allow_unsafe_ops:
            tensors, saved = apart_from_savers(graph, tensors)
        reasons = dict.fromkeys(writing, "it comes after a write to a variable")
        reasons |= dict.fromkeys(saved, "it saves variables to files, or restores them")
        tensors = [name for name in tensors if name not in reasons]
        for compared in (graph, self.patched.graph):
            refuse_unsafe(compared, options.allow_unsafe_ops, [*tensors, *_initialisers(graph)])
        return tensors, reasons

    def _forward(self, ran: RunResult, tensors: list[str], reasons: Mapping[str, str]) -> None:
        """Compare the tensors on each set of values, and watch which branches those take."""
        fed, original = self.options.feed, self.left
        self.options.say("forward pass", 0, PASSES)
        feeds, variables = original.ask("choose", tensors, fed)
        self._both(lambda process: process.keep("values", variables))
        ran.fed = {name: str(list(getattr(value, "shape", ()))) for name, value in feeds.items()}
        fixed = {name for name in feeds if {name, f"{name.partition(':')[2]}:0"} & fed.keys()}
        ran.is_seeded = bool(feeds.keys() - fixed)
        self._feed(feeds)
        first = self._on_values("seeded", tensors)
        ran.sets.append(first)
        taken, ran.hidden = self._branches()
        ran.reach(taken, by_inputs=True)
        equal = [name for name in first.compared if name not in first.differing]
        ran.fused = self._run_both(equal, optimise=True).differing
        first.uncompared |= reasons
        tensors = first.compared  # what waits for a queue that nobody fills is not run again
        for name, values in value_sets(feeds, fixed) if tensors else ():
            self.options.say("forward pass", len(ran.sets), PASSES)
            self._feed(values)
            ran.sets.append(self._on_values(name, tensors, may_die=True))
            ran.reach(self._branches()[0], by_inputs=True)
        for name, upwards in STEERED.items():
            self.options.say("forward pass", PASSES - 1, PASSES)
            ops = ran.unreached() if tensors else []
            self._feed(feeds)
            if ops and (values := original.ask("steer", ops, upwards)):
                more = list(dict.fromkeys([*tensors, *(f"{op}:0" for op in ops)]))
                present = self.right.ask("there", original.ask("there", more))
                self._feed({**feeds, **values})
                ran.sets.append(self._on_values(name, present, may_die=True))
                ran.reach(self._branches()[0], by_inputs=False)
        self._feed(feeds)

    def _feed(self, feeds: Values) -> None:
        self._both(lambda process: process.keep("feed", feeds))

    def _branches(self) -> tuple[dict[str, tuple[bool, bool]], dict[str, int]]:
        try:
            taken, hidden = self.left.ask("branches")
        except ProcessDiedError:
            return {}, {}
        return taken, hidden

    def _on_values(
        self, name: str, tensors: Sequence[str], may_die: bool = False
    ) -> ComparedValues:
        """Compare these tensors on what is fed now; with `may_die` a process may end by it."""
        try:
            compared = self._run_both(tensors, optimise=False)
        except ProcessDiedError as error:
            if not may_die:
                raise
            ended = dict.fromkeys(tensors, str(error))
            compared = ComparedValues(name, uncompared=ended)
            if error.process is self.right:
                compared = ComparedValues(name, list(tensors), differing=ended)
        compared.name = name
        return compared

    def _run_both(self, tensors: Sequence[str], optimise: bool) -> ComparedValues:
        before, reasons = self.left.ask("run", tensors, optimise)
        after, failed = self.right.ask("run", list(before), optimise)
        compared = ComparedValues(uncompared=reasons, values=before)
        unlike = [
            name for name in before if name not in after or not same_bits(before[name], after[name])
        ]
        again = self.left.ask("run", list(before), optimise)[0] if unlike else {}
        for name in unlike:
            if name not in again or not same_bits(before[name], again[name]):
                compared.uncompared[name] = NOISY
            elif name not in after:
                why = failed.get(name, "no value")
                compared.differing[name] = f"it fails in the patched model: {why}"
            else:
                compared.differing[name] = difference_in_words(before[name], after[name])
        compared.compared = [name for name in before if name not in compared.uncompared]
        return compared

    def _backward(self, ran: RunResult) -> set[tuple[str, str]]:
        """Compare the gradients of each target; return the ops that were asked for theirs."""
        graph, options, first = self.patched.graph, self.options, ran.sets[0]
        patched = [op for body, op in rules_at(graph) if body == "main"]
        read = ops_before_rules(graph.main)
        named = options.sources, options.targets
        sources, targets, trained = self.left.ask("ends", *named, patched, read, first.compared)
        if options.targets:
            missing = [name for name in targets if name not in first.values]
            ran.untaken += (
                f"of {name}: {first.uncompared.get(name, NOT_AMONG)}" for name in missing
            )
            targets = [name for name in targets if name not in missing]
        elif trained and len(trained) < len(targets):
            targets = [name for name in targets if name not in trained]
            ran.untaken.append(
                f"of {plural(len(trained), 'output')} that training computes from its gradients; "
                "--to names those that matter"
            )
        if len(targets) > TARGETS and not options.targets:
            more = len(targets) - TARGETS
            ran.untaken.append(f"of {more} more outputs; --to names those that matter")
            targets = targets[:TARGETS]
        if not sources:
            ran.untaken.append(
                "nothing is fed that is a float, and there are no float variables or constants"
            )
            return set()
        values = {name: first.values[name] for name in targets}
        ran.gradients, asked = gradients_compared(
            self.left, self.right, sources, values, options.say
        )
        return asked

    def _probe(self, ran: RunResult, unfired: Sequence[UnfiredOverride]) -> None:
        """Ask which of the overrides fired that TensorFlow differentiates in C++."""
        unseen = {
            unfired_override.override.place: unfired_override
            for unfired_override in unfired
            if unfired_override.kind == "unseen"
        }
        fired = set[tuple[str, str]]()
        if unseen:
            values, gradients = ran.sets[0].values, ran.gradients
            targets = dict.fromkeys(pair.target for pair in gradients)
            upstreams = {name: upstream_weights(name, values[name]) for name in targets}
            sources = list(dict.fromkeys(pair.source for pair in gradients))
            self.right.close()
            try:
                fired = self.right.ask("probed", list(unseen), sources, upstreams)
            except ProcessDiedError:
                fired = set()
        ran.fired += [
            unfired_override.override
            for place, unfired_override in unseen.items()
            if place in fired
        ]
        others = [
            unfired_override
            for unfired_override in unfired
            if unfired_override.override.place not in fired
        ]
        ran.unfired = [
            unfired_override for unfired_override in others if unfired_override.kind != "uncalled"
        ]
        ran.uncalled = [
            unfired_override for unfired_override in others if unfired_override.kind == "uncalled"
        ]


def gradients_compared(
    original: TensorFlowProcess,
    patched: TensorFlowProcess,
    sources: Sequence[str],
    targets: Mapping[str, Any],
    say: Progress,
) -> tuple[list[ComparedGradient], set[tuple[str, str]]]:
    """Compare the gradients of each target, which has this value, with respect to each source.

    With them come the ops of the patched graph whose gradient was asked for. What changed is run
    once more: it may differ from run to run.
    """
    pairs: list[ComparedGradient] = []
    asked = set[tuple[str, str]]()
    for place, (target, value) in enumerate(targets.items()):
        say("gradients", place, len(targets))
        dy = upstream_weights(target, value)
        before, _ = original.gradients(sources, target, dy)
        after, fired = patched.gradients(sources, target, dy)
        asked |= fired
        changes = [compare_gradient(name, target, before[name], after[name]) for name in sources]
        moved = [
            change.source for change in changes if change.state == "changed" and change.largest > 0
        ]
        again, _ = original.gradients(moved, target, dy) if moved else ({}, set())
        noise = {
            name: distance(before[name].value, answer.value)[0]
            for name, answer in again.items()
            if answer.kind == "tensor"
        }
        for change in changes:
            if 0 < change.largest <= NOISE * noise.get(change.source, 0.0):
                change.state = "same"
        pairs += changes
    return pairs, asked


def compare_gradient(
    source: str, target: str, before: GradientAnswer, after: GradientAnswer
) -> ComparedGradient:
    """Compare one gradient: `same`, `changed`, `fails` (it could be had before), `uncompared`."""
    pair = ComparedGradient(source, target, "same", str(before), str(after))
    kinds = before.kind, after.kind
    if "error" in kinds and kinds[1] == "error":
        pair.state = "uncompared" if kinds[0] == "error" else "fails"
    elif "tensor" not in kinds:
        pair.state = "same"
    elif kinds[0] != kinds[1]:
        pair.state = "changed"
    elif same_bits(before.value, after.value):
        pair.zero = not np.any(before.value)
    elif before.value.shape != after.value.shape:
        pair.state = "fails"
        pair.before, pair.after = str(list(before.value.shape)), str(list(after.value.shape))
    else:
        pair.state = "changed"
        pair.largest, pair.relative = distance(before.value, after.value)
    return pair


def _initialisers(graph: ModelGraph) -> Iterator[str]:
    """Yield what variables may be assigned first."""
    for op in VARIABLES:
        for index in graph.main.by_type.get(op, ()):
            name = f"{graph.main.heads.names[index]}/Assign"
            if name in graph.main.by_name:
                yield name


def _uncompared_ops(graph: Graph, compared: Sequence[str]) -> Iterator[str]:
    """Yield the patched ops, as their rules name them, of which nothing was compared.

    What no op of the main graph calls counts for nothing.
    """
    main = graph.main
    marks = upstream(main, [TensorName(op_of(name)) for name in compared], control=True)
    called = _functions_below(graph, [node for node in main if marks[node.index]])
    callable_ones = _functions_below(graph, list(main))
    for body, op in rules_at(graph):
        if body == main.label:
            index = main.by_name.get(op)
            if index is None or not marks[index]:
                yield repr(op)
        elif body not in called and body in callable_ones:
            yield f"{op!r} in function {body!r}"


def _functions_below(graph: Graph, todo: list[Any]) -> set[str]:
    """Return the functions that these ops call, and those that these call in their turn."""
    called: set[str] = set()
    while todo:
        for name in called_functions(todo.pop()):
            if name not in called:
                called.add(name)
                todo += graph.functions.get(name, ())
    return called
