"""A patched model beside its original, each run in a process of its own, and compared.

First the patch is made again, then both run: forward on several sets of values, and backward.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from graphpatch.analysis.again import SWAPPED, make_again
from graphpatch.analysis.rule_words import ops_before_rules, rules_at
from graphpatch.analysis.unsafe import apart_from_savers, refuse_unsafe, refuse_unsafe_load
from graphpatch.arguments import check_progress, tensor_names
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.formats.before import opened_again
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.graph.functions import called_functions
from graphpatch.graph.graph import Graph, ModelGraph, Progress
from graphpatch.graph.op_types import VARIABLES
from graphpatch.graph.walk import upstream
from graphpatch.names import OpKey, TensorName, op_of
from graphpatch.runtime.tf_gradients import GradientAnswer
from graphpatch.runtime.values import (
    Values,
    difference_in_words,
    distance,
    full_tensor_name,
    read_feed,
    same_bits,
    upstream_weights,
)
from graphpatch.runtime.verify.process import (
    ProcessDiedError,
    TensorFlowProcess,
    needs_control_flow_v1,
)
from graphpatch.runtime.verify.result import (
    BranchesTaken,
    ComparedGradient,
    ComparedValues,
    Firing,
    RunResult,
    UnfiredOverride,
    Verification,
    VerifiedGraph,
)
from graphpatch.table import plural

NOT_AMONG = "it is not among what is compared"
NOISY = "it differs from run to run in the original itself"
NOISE = 10  # times by which a gradient may differ more than it does from run to run
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
    values: Mapping[str, Any] = {}
    if run and feed is not None:
        values = feed if isinstance(feed, Mapping) else read_feed(feed)
    fed = {full_tensor_name(name): value for name, value in values.items()}
    options = CompareOptions(fed, *ends, allow_unsafe_ops, imports, progress) if run else None
    counts = len(before.graphs), len(after.graphs)
    if counts[0] != counts[1]:
        raise ModelError(f"{before.path} has {counts[0]} graphs, and {after.path} {counts[1]}")
    made, around = make_again(before, after)
    if any(text.startswith(SWAPPED) for text in around):
        options = None  # all that a run would find follows from it
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("original", "patched")]
        if options is not None:
            files = [
                model.file_in(file) for model, file in zip((before, after), files, strict=True)
            ]
        for index, graph in enumerate(after.graphs):
            ran = None if options is None else _compare((before, after), files, index, options)
            parts.append(VerifiedGraph(graph.around.tags, made[index], ran))
    return Verification(str(before.path), str(after.path), parts, around, (before, after))


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
    for name in SETS:
        values = {
            key: value if key in fixed else _changed_value(name, value)
            for key, value in seeded.items()
        }
        if any(values[key] is not value for key, value in seeded.items()):
            yield name, values


def _changed_value(name: str, value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype.kind in "fc" or array.dtype.name == "bfloat16":
        with np.errstate(all="ignore"):
            return np.asarray(SETS[name](array)).astype(array.dtype)
    if name == "negated" and array.dtype.kind in "iub":
        return (1 - array.astype(np.int64)).astype(array.dtype)
    return value


@dataclass(frozen=True)
class CompareOptions:
    """Feeds by tensor name; the tensors between which gradients are taken, and what runs.

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


def _compare(
    models: Sequence[Model], files: Sequence[Path], index: int, options: CompareOptions
) -> RunResult:
    """Run a graph of a model and its patched copy, each in a process of its own, and compare."""
    original, patched = graphs = [model.graphs[index] for model in models]
    if original.around.is_object_based != patched.around.is_object_based:
        says = "one of them is a TF2 SavedModel, with other names for inputs and outputs"
        return RunResult(why=says)
    for graph in graphs:
        if graph.around.is_object_based:
            refuse_unsafe_load(graph, options.allow_unsafe_ops)
        else:
            refuse_unsafe(graph, options.allow_unsafe_ops, [])  # what an import may run
    with ExitStack() as stack:
        before, after = (TensorFlowProcess(model.path) for model in models)
        for process in (before, after):
            stack.enter_context(closing(process))
            process.start()
        comparison = _Comparison(original, patched, before, after, options)
        return comparison.run(models[1], files, index)


@dataclass
class _Comparison:
    """The run of two processes: `before` has the original, `after` the patched model."""

    original: ModelGraph
    patched: ModelGraph
    before: TensorFlowProcess
    after: TensorFlowProcess
    options: CompareOptions

    def run(self, model: Model, files: Sequence[Path], index: int) -> RunResult:
        """Compare these graphs, which the processes read from files; `model` is the patched one."""
        options, ran, graph = self.options, RunResult(), self.patched
        options.say("starting TensorFlow", 0, 1)
        v2 = not needs_control_flow_v1(self.original)
        ran.settings, _ = self._both("begin", options.imports, v2)
        registered = set[str]()
        for number, process in enumerate((self.before, self.after)):
            options.say("importing the models", number, 2)
            name = process.name
            try:
                registered = process.keep("open", str(files[number]), name, index)
            except (ProcessDiedError, ModelError) as error:
                ran.why = f"{name}: {error}" if isinstance(error, ModelError) else str(error)
                ran.is_wrong = process is self.after
                return ran
        try:
            self._forward(ran, *self._tensors())
        except ProcessDiedError as error:
            return RunResult(ran.settings, why=str(error), is_wrong=error.process is self.after)
        if not graph.around.is_object_based:
            ran.unseen = list(_uncompared_ops(graph, ran.compared))
        ran.formulas = self.after.ask("formulas")
        asked = self._backward(ran)
        ends = [(pair.source, pair.target) for pair in ran.gradients]
        firing = Firing(self.original, model, graph, asked, ends, registered, v2)
        ran.fired, unfired = firing.sort()
        self._probe(ran, unfired)
        return ran

    def _both(self, method: str, *arguments: Any) -> list[Any]:
        """Return what both answer; one works while the other does."""
        with ThreadPoolExecutor(2) as pool:
            return list(
                pool.map(lambda each: each.keep(method, *arguments), (self.before, self.after))
            )

    def _tensors(self) -> tuple[list[str], dict[str, str]]:
        """Return the tensors to compare; and of others why they are not."""
        graph, options = self.original, self.options
        touched = [f"{op}:0" for body, op in rules_at(self.patched) if body == "main"]
        tensors, writing = self.before.ask("tensors", touched, options.targets)
        tensors = self.after.ask("there", tensors)
        if graph.around.is_object_based:
            return tensors, {}
        saved: list[str] = []
        if not options.allow_unsafe_ops:
            tensors, saved = apart_from_savers(graph, tensors)
        reasons = dict.fromkeys(writing, "it comes after a write to a variable")
        reasons |= dict.fromkeys(saved, "it saves variables to files, or restores them")
        tensors = [name for name in tensors if name not in reasons]
        variables = (i for op in VARIABLES for i in graph.main.by_type.get(op, ()))
        assigns = (f"{graph.main.heads.names[index]}/Assign" for index in variables)
        initialisers = [name for name in assigns if name in graph.main.by_name]
        for compared in (graph, self.patched):
            refuse_unsafe(compared, options.allow_unsafe_ops, [*tensors, *initialisers])
        return tensors, reasons

    def _forward(self, ran: RunResult, tensors: list[str], reasons: Mapping[str, str]) -> None:
        """Compare the tensors on each set of values, and watch which branches those take."""
        options, fed = self.options, self.options.feed
        options.say("forward pass", 0, PASSES)
        feeds, variables = self.before.ask("choose", tensors, fed)
        self._both("values", variables)
        ran.fed = {name: str(list(getattr(value, "shape", ()))) for name, value in feeds.items()}
        fixed = {name for name in feeds if {name, f"{name.partition(':')[2]}:0"} & fed.keys()}
        ran.is_seeded = bool(feeds.keys() - fixed)
        self._both("feed", feeds)
        first = self._run_both(tensors, optimise=False)
        first.name = "seeded"
        ran.sets.append(first)
        taken, ran.hidden = self._branches()
        ran.reach(taken, by_inputs=True)
        equal = [name for name in first.compared if name not in first.differing]
        ran.fused = self._run_both(equal, optimise=True).differing
        first.uncompared |= reasons
        tensors = first.compared  # what waits for a queue that nobody fills is not run again
        for name, values in value_sets(feeds, fixed) if tensors else ():
            options.say("forward pass", len(ran.sets), PASSES)
            self._more(ran, name, values, tensors, by_inputs=True)
        for name, upwards in STEERED.items():
            options.say("forward pass", PASSES - 1, PASSES)
            ops = ran.unreached() if tensors else []
            self._both("feed", feeds)
            if ops and (values := self.before.ask("steer", ops, upwards)):
                asked = list(dict.fromkeys([*tensors, *(f"{op}:0" for op in ops)]))
                present = self.after.ask("there", self.before.ask("there", asked))
                self._more(ran, name, {**feeds, **values}, present, by_inputs=False)
        self._both("feed", feeds)

    def _more(
        self, ran: RunResult, name: str, feeds: Values, tensors: Sequence[str], by_inputs: bool
    ) -> None:
        """Compare these tensors on one more set of values, by which a process may end."""
        self._both("feed", feeds)
        try:
            compared = self._run_both(tensors, optimise=False)
        except ProcessDiedError as error:
            ended = dict.fromkeys(tensors, str(error))
            compared = ComparedValues(uncompared=ended)
            if error.process is self.after:
                compared = ComparedValues(compared=list(tensors), differing=ended)
        compared.name = name
        ran.sets.append(compared)
        ran.reach(self._branches()[0], by_inputs)

    def _branches(self) -> tuple[dict[str, BranchesTaken], dict[str, int]]:
        try:
            taken, hidden = self.before.ask("branches")
        except ProcessDiedError:
            return {}, {}
        return taken, hidden

    def _run_both(self, tensors: Sequence[str], optimise: bool) -> ComparedValues:
        before, reasons = self.before.ask("run", tensors, optimise)
        after, failed = self.after.ask("run", list(before), optimise)
        compared = ComparedValues(uncompared=reasons, values=before)
        unlike = [
            name for name in before if name not in after or not same_bits(before[name], after[name])
        ]
        again = self.before.ask("run", list(before), optimise)[0] if unlike else {}
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

    def _backward(self, ran: RunResult) -> set[OpKey]:
        """Compare the gradients of each target; return the ops that were asked for theirs."""
        graph, options, first = self.patched, self.options, ran.sets[0]
        patched = [op for body, op in rules_at(graph) if body == "main"]
        read = ops_before_rules(graph.main)
        named = options.sources, options.targets
        sources, targets, trained = self.before.ask("ends", *named, patched, read, first.compared)
        if options.targets:
            missing = [name for name in targets if name not in first.values]
            whys = (first.uncompared.get(name, NOT_AMONG) for name in missing)
            ran.untaken += map("of {}: {}".format, missing, whys)
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
            self.before, self.after, sources, values, options.say
        )
        return asked

    def _probe(self, ran: RunResult, unfired: Sequence[UnfiredOverride]) -> None:
        """Ask which of the overrides fired that TensorFlow differentiates in C++."""
        unseen = {item.override.place: item.override for item in unfired if item.kind == "unseen"}
        fired = set[OpKey]()
        if unseen:
            values, pairs = ran.sets[0].values, ran.gradients
            targets = dict.fromkeys(pair.target for pair in pairs)
            dys = {name: upstream_weights(name, values[name]) for name in targets}
            sources = list(dict.fromkeys(pair.source for pair in pairs))
            self.after.close()
            try:
                fired = self.after.ask("probed", list(unseen), sources, dys)
            except ProcessDiedError:
                fired = set()
        ran.fired += [override for place, override in unseen.items() if place in fired]
        others = [item for item in unfired if item.override.place not in fired]
        ran.unfired = [item for item in others if item.kind != "uncalled"]
        ran.uncalled = [item for item in others if item.kind == "uncalled"]


def gradients_compared(
    original: TensorFlowProcess,
    patched: TensorFlowProcess,
    sources: Sequence[str],
    targets: Mapping[str, Any],
    say: Progress,
) -> tuple[list[ComparedGradient], set[OpKey]]:
    """Compare the gradients of each target, which has this value, with respect to each source.

    With them come the ops of the patched graph whose gradient was asked for. What changed is run
    once more: it may differ from run to run.
    """
    pairs: list[ComparedGradient] = []
    asked = set[OpKey]()
    for number, (target, value) in enumerate(targets.items()):
        say("gradients", number, len(targets))
        dy = upstream_weights(target, value)
        before, _ = original.gradients(sources, target, dy)
        after, fired = patched.gradients(sources, target, dy)
        asked |= fired
        changes = [_compare_gradient(name, target, before[name], after[name]) for name in sources]
        moved = [pair.source for pair in changes if pair.state == "changed" and pair.largest > 0]
        again, _ = original.gradients(moved, target, dy) if moved else ({}, set())
        noise = {
            name: distance(before[name].value, answer.value)[0]
            for name, answer in again.items()
            if answer.kind == "tensor"
        }
        for pair in changes:
            if 0 < pair.largest <= NOISE * noise.get(pair.source, 0.0):
                pair.state = "same"
        pairs += changes
    return pairs, asked


def _compare_gradient(
    source: str, target: str, before: GradientAnswer, after: GradientAnswer
) -> ComparedGradient:
    """Compare one gradient: `same`, `changed`, `fails` (it could be had before), `uncompared`."""
    pair = ComparedGradient(source, target, "same", str(before), str(after))
    kinds = before.kind, after.kind
    if kinds[1] == "error":
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
