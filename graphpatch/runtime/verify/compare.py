"""A patched model beside its original, each run in a process of its own, and compared.

First the patch is made again, then both run: forward on several sets of values, and backward.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import to_builtins

from graphpatch.analysis.again import SWAPPED, MadeAgain, make_again
from graphpatch.analysis.rule_words import ops_before_rules, rules_at
from graphpatch.analysis.unsafe import apart_from_savers, refuse_unsafe, refuse_unsafe_load
from graphpatch.application import page_part
from graphpatch.differentiation.bodies import Bodies
from graphpatch.errors import ModelError, check_progress, tensor_names
from graphpatch.formats.before import opened_again
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.formats.model import Model
from graphpatch.graph.graph import ModelGraph, Progress
from graphpatch.graph.op_types import VARIABLES
from graphpatch.graph.walk import upstream
from graphpatch.names import OpKey, TensorName, op_of
from graphpatch.runtime.tf_gradients import GradientAnswer
from graphpatch.runtime.values import (
    Values,
    difference_in_words,
    distance,
    fed_values,
    finite,
    same_bits,
    upstream_weights,
)
from graphpatch.runtime.verify.overrides import (
    FIRED,
    IDLE,
    IGNORED,
    UNCALLED,
    all_callers,
    sorted_overrides,
)
from graphpatch.runtime.verify.process import ProcessDiedError, SideBySide, TensorFlowProcess
from graphpatch.shown import Document, beside, html_table, plural, short

if TYPE_CHECKING:
    from graphpatch.runtime.graph_run import Ran
    from graphpatch.runtime.verify.session import Plan

VERIFIED, DIFFERS, NOT_COMPARED = "verified", "differs", "not compared"
SAME_STRUCTURE = "same structure"
MOST_REASONS = 3
FEED = "--feed FILE.npz gives inputs that it takes (in Python: feed={...})"
NOT_AMONG = "it is not among what is compared"
NOISY = "it differs from run to run in the original itself"
SLOW = "DeadlineExceededError"
EMPTY = "it has no elements on these values"
LATE = "it did not end in time, which is limited where there are queues, iterators or loops"
WRITING = "it differs, and comes after a write to a variable, which other ops may read before it"
NOISE = 10  # times by which a gradient may differ more than it does from run to run
TARGETS = 32  # outputs whose gradients are taken, where nobody names them


@dataclass
class VerifiedGraph:
    """One graph of a model: how it was made again, and what running it showed.

    `ran` is what `verify --json` prints of the run. `failures` say what differs that should not,
    `gaps` what should have been compared, and was not.
    """

    label: str
    made: MadeAgain
    ran: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    def stop(self, why: str, is_wrong: bool) -> None:
        """Say why it was not run; `is_wrong`: the original runs, and the patched one does not."""
        self.ran = {"settings": self.ran.get("settings", {}), "not_run": why}
        self.failures = [fault.says for fault in self.made.faults] + [why] * is_wrong
        self.gaps = [] if is_wrong else [f"nothing could be compared: {why}"]


@dataclass(frozen=True, repr=False)
class Verification(Document):
    """What `verify` found. `ok` where nothing differs that should not, and nothing was left out.

    Example:
        >>> found = graphpatch.verify("model.pb", "patched.pb", run=False)
        >>> found.verdict, found.failures
        ('same structure', [])
    """

    keys = "original patched verdict ok failures not_compared graphs"
    original: str
    patched: str
    parts: Sequence[VerifiedGraph]
    around: Sequence[str]
    models: tuple[()] | tuple[Model, Model] = field(default=(), compare=False)

    @property
    def failures(self) -> list[str]:
        """Return what differs that should not, in words."""
        return [*self.around, *self._labelled("failures")]

    @property
    def not_compared(self) -> list[str]:
        """Return what should have been compared, and was not, in words."""
        return self._labelled("gaps")

    @property
    def graphs(self) -> list[dict[str, Any]]:
        """Return each graph as `verify --json` prints it: how it was made again, what was run."""
        return [{"label": p.label, "structure": p.made.document(), **p.ran} for p in self.parts]

    @property
    def verdict(self) -> str:
        """Return `verified`, `differs`, `not compared`; `same structure`: nothing was to be run.

        `not compared`: nothing that was compared differs, and something was left out.
        """
        if self.failures:
            return DIFFERS
        if self.not_compared:
            return NOT_COMPARED
        return VERIFIED if any(part.ran for part in self.parts) else SAME_STRUCTURE

    @property
    def ok(self) -> bool:
        """Return whether the verdict is `verified`, or `same structure`."""
        return self.verdict in (VERIFIED, SAME_STRUCTURE)

    def _labelled(self, what: str) -> list[str]:
        many = len(self.parts) > 1
        labels = ((f"[{part.label}] " if many else "", part) for part in self.parts)
        return [f"{label}{text}" for label, part in labels for text in getattr(part, what)]

    def __repr__(self) -> str:
        why = short([*self.failures, *self.not_compared])
        return f"<Verification: {self.patched}, {self.verdict}{f': {why}' if why else ''}>"

    def _repr_html_(self) -> str:
        rows = [row for part in self.parts for row in _compared_rows(part.ran)]
        rows += [("failure", text) for text in self.failures]
        rows += [("not compared", text) for text in self.not_compared]
        title = f"{self.patched} against {self.original}: {self.verdict}"
        table = html_table(title, ("", ""), rows)
        return beside(table, page_part(*self.models, (), ())) if self.models else table


def _compared_rows(ran: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what was compared of a graph, in short."""
    if "forward" not in ran:
        yield "run", ran.get("not_run", "not run")
        return
    forward, pairs, overrides = ran["forward"], ran["gradients"], ran["overrides"]
    compared = len(forward["compared"])
    changed = sum(pair["state"] == "changed" for pair in pairs)
    equal = compared - len(forward["differing"])
    yield "forward", f"{equal} of {plural(compared, 'tensor')} bit-equal"
    yield "gradients", f"{len(pairs)} taken, {changed} changed"
    yield "overrides", f"{len(overrides['fired'])} fired, {len(overrides['not_fired'])} not"


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
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        models = {"original": before, "patched": after} if run else {}
        files = [model.file_in(Path(folder, name)) for name, model in models.items()]
        for index, (graph, graph_after) in enumerate(zip(before.graphs, after.graphs, strict=True)):
            part = VerifiedGraph(graph_after.around.tags, made[index])
            part.failures += (fault.says for fault in part.made.faults)
            parts.append(part)
            if run:
                comparison = _Comparison(
                    part,
                    *(graph, graph_after),
                    *(TensorFlowProcess(before.path), TensorFlowProcess(after.path)),
                    fed,
                    *ends,
                    allow_unsafe_ops,
                    imports,
                    progress or (lambda *_: None),
                )
                comparison.run(files, index)
            elif part.made.why:
                part.gaps.append(f"structure: {part.made.why}, and nothing was run")
    return Verification(str(before.path), str(after.path), parts, around, (before, after))


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


@dataclass
class _ComparedValues:
    """One set of values: what was compared on it, how far what differs, and why not the others.

    `values` are those of the original.
    """

    name: str
    compared: list[str] = field(default_factory=list)
    differing: dict[str, str] = field(default_factory=dict)
    uncompared: dict[str, str] = field(default_factory=dict)
    values: Values = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the set as `verify --json` prints it."""
        return {
            "values": self.name,
            "compared": len(self.compared),
            "differing": self.differing,
            "not_compared": list(dict.fromkeys(self.uncompared.values())),
        }


@dataclass
class _Comparison:
    """The run of two processes: `before` has the original, `after` the patched model."""

    part: VerifiedGraph
    original: ModelGraph
    patched: ModelGraph
    before: TensorFlowProcess
    after: TensorFlowProcess
    fed: Values  # by tensor name
    sources: Sequence[str]
    targets: Sequence[str]
    allow_unsafe_ops: bool
    imports: Sequence[str]
    say: Progress
    sets: list[_ComparedValues] = field(default_factory=list)
    taken: dict[str, tuple[bool, bool]] = field(default_factory=dict)  # by ops that take branches
    writing: Set[str] = frozenset()  # tensors that come after a write to a variable

    def __post_init__(self) -> None:
        self.sides = SideBySide([self.before, self.after])

    def run(self, files: Sequence[Path], index: int) -> None:
        """Compare these graphs, which the processes read from files."""
        if self.original.around.is_object_based != self.patched.around.is_object_based:
            says = "one of them is a TF2 SavedModel, with other names for inputs and outputs"
            self.part.stop(says, is_wrong=False)
            return
        for graph in (self.original, self.patched):
            if graph.around.is_object_based:
                refuse_unsafe_load(graph, self.allow_unsafe_ops)
            else:
                refuse_unsafe(graph, self.allow_unsafe_ops, [])  # what an import may run
        with self.sides:
            try:
                self._compare(files, index)
            except ProcessDiedError as error:
                self.part.stop(str(error), is_wrong=error.process is self.after)

    def _compare(self, files: Sequence[Path], index: int) -> None:
        part = self.part
        self.say("starting TensorFlow", 0, 1)
        settings = self.sides.begin(self.imports, self.original)
        more = {"seeds": "by name of the op or tensor", "processes": "one for each model"}
        part.ran["settings"] = {**settings, "graph_optimiser": ["off", "on"], **more}
        registered = set[str]()
        for number, process in enumerate(self.sides.processes):
            self.say("importing the models", number, 2)
            try:
                registered = process.keep("open", str(files[number]), process.name, index)
            except ModelError as error:
                part.stop(f"{process.name}: {error}", is_wrong=process is self.after)
                return
        named = list(self.fed), self.sources, self.targets
        patched = [op for body, op in rules_at(self.patched) if body == "main"]
        plan = self.before.ask("plan", *named, patched, ops_before_rules(self.patched.main))
        self.writing = frozenset(plan.writing)
        first = self._forward(*self._tensors(plan))
        formulas = self.after.ask("formulas")
        asked, failed = self._backward(plan, first)
        graphs = self.original, self.patched
        overrides = sorted_overrides(*graphs, asked, registered, failed)
        part.failures += (f"override of {o}: {o.why}" for o in overrides if o.is_wrong)
        part.gaps += (f"override of {o} did not fire: {o.why}" for o in overrides if o.is_gap)
        part.failures += (failure for check in formulas if (failure := check.failure))
        if part.made.why or part.made.faults:  # else they are what the rules write
            gaps = (check for check in formulas if check.not_compared)
            part.gaps += (f"{check.place}: {check.not_compared}" for check in gaps)
        states = {"fired": [FIRED], "not_fired": [IGNORED, IDLE], "not_called": [UNCALLED]}
        by_state = {
            key: [override.document() for override in overrides if override.state in some]
            for key, some in states.items()
        }
        part.ran |= {"overrides": by_state, "formulas": list(map(to_builtins, formulas))}

    def _tensors(self, plan: Plan) -> tuple[list[str], dict[str, str]]:
        """Return the tensors to compare; and of others why they are not."""
        graph, main = self.original, self.original.main
        tensors = self.after.ask("there", plan.tensors)
        if graph.around.is_object_based:
            return tensors, {}
        saved: list[str] = []
        if not self.allow_unsafe_ops:
            tensors, saved = apart_from_savers(graph, tensors)
        reasons = dict.fromkeys(saved, "it saves variables to files, or restores them")
        tensors = [name for name in tensors if name not in reasons]
        variables = (i for op in VARIABLES for i in main.by_type.get(op, ()))
        assigns = (f"{main.heads.names[index]}/Assign" for index in variables)
        initialisers = [name for name in assigns if name in main.by_name]
        for compared in (graph, self.patched):
            refuse_unsafe(compared, self.allow_unsafe_ops, [*tensors, *initialisers])
        return tensors, reasons

    def _forward(self, tensors: list[str], reasons: Mapping[str, str]) -> _ComparedValues:
        """Compare the tensors on each set of values; return the first of these.

        It watches which branches the values take.
        """
        self.say("forward pass", 0, 1 + len(SETS))
        feeds = self.sides.choose(tensors, self.fed)
        spelled = {name: {name, f"{name.partition(':')[2]}:0"} for name in feeds}
        fixed = {name for name in feeds if spelled[name] & self.fed.keys()}
        first = self._run_both("seeded", tensors)
        self.sets.append(first)
        hidden = self._watch()
        equal = [name for name in first.compared if name not in first.differing]
        fused = self._run_both("optimised", equal, optimise=True).differing
        first.uncompared |= reasons
        # What waits for a queue that nobody fills is not run again.
        for name, values in value_sets(feeds, fixed) if first.compared else ():
            self.say("forward pass", len(self.sets), 1 + len(SETS))
            self.sides.all("feed", values)
            self.sets.append(self._run_or_end(name, first.compared))
            self._watch()
        self.sides.all("feed", feeds)
        self._note_forward(first, fused, is_seeded=bool(feeds.keys() - fixed))
        shapes = {name: str(list(getattr(value, "shape", ()))) for name, value in feeds.items()}
        branches = {
            "watched": len(self.taken),
            "reached": sum(map(all, self.taken.values())),
            "not_reached": {
                op: _unread(sides) for op, sides in self.taken.items() if not all(sides)
            },
            "not_watched": hidden,
        }
        self.part.ran |= {"fed": shapes, "branches": branches}
        return first

    def _note_forward(
        self, first: _ComparedValues, fused: Mapping[str, str], is_seeded: bool
    ) -> None:
        """Write down what all sets of values showed."""
        part, differing = self.part, dict[str, str]()
        compared = list(dict.fromkeys(name for item in self.sets for name in item.compared))
        for item in self.sets:
            where = "" if item is first else f" ({item.name} values)"
            for name, how in item.differing.items():
                differing.setdefault(name, f"{how}{where}")
        missing = {n: why for n, why in first.uncompared.items() if n not in set(compared)}
        part.failures += (f"forward: {tensor}: {how}" for tensor, how in differing.items())
        hint = f"; {FEED}" if is_seeded and missing else ""
        if not compared:
            says = "; ".join(list(dict.fromkeys(missing.values()))[:MOST_REASONS])
            says = says or "there is no output to compare"
            part.gaps.append(f"nothing could be compared: {says}{hint}")
        ops = list(_uncompared_ops(self.patched, compared))
        if ops and not self.patched.around.is_object_based:
            without = f"no tensor was compared that is computed of {short(ops)}"
            part.gaps.append(f"forward: {without}{hint if compared else ''}")
        part.ran["settings"]["sets_of_values"] = [item.name for item in self.sets]
        part.ran["forward"] = {
            "compared": compared,
            "differing": differing,
            "optimised_differing": fused,
            "not_compared": missing,
            "sets": [item.document() for item in self.sets],
        }

    def _watch(self) -> dict[str, int]:
        """Note the branches that the values took; return how many nobody can watch, by place."""
        try:
            taken, hidden = self.before.ask("branches")
        except ProcessDiedError:
            return {}
        for name, (below, above) in taken.items():
            known = self.taken.get(name, (False, False))
            self.taken[name] = known[0] or below, known[1] or above
        return dict(hidden)

    def _run_or_end(self, name: str, tensors: Sequence[str]) -> _ComparedValues:
        """Compare these tensors on one more set of values, by which a process may end."""
        try:
            return self._run_both(name, tensors)
        except ProcessDiedError as error:
            ended = dict.fromkeys(tensors, str(error))
            if error.process is self.after:
                return _ComparedValues(name, list(tensors), differing=ended)
            return _ComparedValues(name, uncompared=ended)

    def _run_both(
        self, name: str, tensors: Sequence[str], optimise: bool = False
    ) -> _ComparedValues:
        before, reasons = self._run(self.before, tensors, optimise)
        after, failed = self._run(self.after, list(before), optimise)
        compared = _ComparedValues(name, uncompared=reasons, values=before)
        unlike = [
            name for name in before if name not in after or not same_bits(before[name], after[name])
        ]
        again = self._run(self.before, list(before), optimise)[0] if unlike else {}
        for tensor in unlike:
            if tensor not in again or not same_bits(before[tensor], again[tensor]):
                compared.uncompared[tensor] = NOISY
            elif tensor not in after and (why := failed.get(tensor, "no value")).startswith(SLOW):
                compared.uncompared[tensor] = LATE
            elif tensor in after and tensor in self.writing:
                compared.uncompared[tensor] = WRITING
            elif tensor not in after:
                compared.differing[tensor] = f"it fails in the patched model: {why}"
            else:
                compared.differing[tensor] = difference_in_words(before[tensor], after[tensor])
        empty = (name for name in before if not np.size(before[name]) and name not in unlike)
        compared.uncompared |= dict.fromkeys(empty, EMPTY)
        compared.compared = [tensor for tensor in before if tensor not in compared.uncompared]
        return compared

    def _run(self, side: TensorFlowProcess, tensors: Sequence[str], optimise: bool) -> Ran:
        """Run the tensors; apart from the others those that write to variables before they are."""
        values, reasons = dict[str, Any](), dict[str, str]()
        for is_writing in (False, True):
            if some := [name for name in tensors if (name in self.writing) is is_writing]:
                more, failed = side.ask("run", some, optimise)
                values, reasons = values | more, reasons | failed
        return values, reasons

    def _backward(
        self, plan: Plan, first: _ComparedValues
    ) -> tuple[dict[OpKey, bool], dict[str, str]]:
        """Compare the gradients of each target; return the ops that were asked for theirs.

        With them come the targets whose gradients cannot be taken, each with the reason.
        """
        part, untaken = self.part, list[str]()
        present = first.values.keys() if self.targets else set(first.compared)
        targets = [name for name in plan.targets if name in present]
        if self.targets:
            missing = [name for name in plan.targets if name not in targets]
            untaken += (f"of {n}: {first.uncompared.get(n, NOT_AMONG)}" for n in missing)
        elif rest := [name for name in targets if name not in plan.trained]:
            if trained := len(targets) - len(rest):
                untaken.append(
                    f"of {plural(trained, 'output')} that training computes from its gradients; "
                    "--to names those that matter"
                )
            targets = rest
        if len(targets) > TARGETS and not self.targets:
            more = len(targets) - TARGETS
            untaken.append(f"of {more} more outputs; --to names those that matter")
            targets = targets[:TARGETS]
        if not plan.sources:
            untaken.append(
                "nothing is fed that is a float, and there are no float variables or constants"
            )
        values = {name: first.values[name] for name in targets if plan.sources}
        sides = self.before, self.after
        pairs, asked = gradients_compared(*sides, plan.sources, values, self.say)
        for pair in pairs:
            if pair["state"] == "fails":
                ends_of = f"{pair['to']} with respect to {pair['from']}"
                part.failures.append(f"gradient of {ends_of}: {pair['before']} -> {pair['after']}")
        part.ran |= {"gradients": pairs, "gradients_not_taken": untaken}
        states = ("fails", "uncompared")
        return asked, {pair["to"]: pair["after"] for pair in pairs if pair["state"] in states}


def _unread(taken: tuple[bool, bool]) -> str:
    sides = zip(taken, ("below 0, or false", "above 0, or true"), strict=True)
    return f"never reads what is {'; nor '.join(words for is_read, words in sides if not is_read)}"


def gradients_compared(
    original: TensorFlowProcess,
    patched: TensorFlowProcess,
    sources: Sequence[str],
    targets: Mapping[str, Any],
    say: Progress,
) -> tuple[list[dict[str, Any]], dict[OpKey, bool]]:
    """Compare the gradients of each target, which has this value, with respect to each source.

    Returns them as `verify --json` prints them, and the ops of the patched graph whose gradient was
    asked for, with whether one that came of it was run. What changed is run once more: it may
    differ from run to run.
    """
    pairs: list[dict[str, Any]] = []
    asked = dict[OpKey, bool]()
    for number, (target, value) in enumerate(targets.items()):
        say("gradients", number, len(targets))
        dy = upstream_weights(target, value)
        before, _ = original.gradients(sources, target, dy)
        after, fired = patched.gradients(sources, target, dy)
        has_run = any(answer.kind == "tensor" for answer in after.values())
        asked |= {op: has_run or asked.get(op, False) for op in fired}
        changes = {name: _compare_gradient(before[name], after[name]) for name in sources}
        moved = [name for name, pair in changes.items() if float(pair["max_abs"]) > 0]
        again, _ = original.gradients(moved, target, dy) if moved else ({}, set())
        for name, answer in again.items():
            noise = distance(before[name].value, answer.value)[0] if answer.kind == "tensor" else 0
            if float(changes[name]["max_abs"]) <= NOISE * noise:
                changes[name]["state"] = "same"
        pairs += ({"from": name, "to": target, **pair} for name, pair in changes.items())
    return pairs, asked


def _compare_gradient(before: GradientAnswer, after: GradientAnswer) -> dict[str, Any]:
    """Compare one gradient: `same`, `changed`, `fails` (it could be had before), `uncompared`.

    `zero`: it is the same, and every element is 0: these values tell nothing of the two models.
    """
    state, is_zero, largest, relative = "same", False, 0.0, 0.0
    texts = [str(before), str(after)]
    if after.kind == "error":
        state = "uncompared" if before.kind == "error" else "fails"
    elif before.kind != after.kind:
        state = "changed"
    elif before.kind == "tensor" and same_bits(before.value, after.value):
        is_zero = not np.any(before.value)
    elif before.kind == "tensor" and before.value.shape != after.value.shape:
        state, texts = "fails", [str(list(before.value.shape)), str(list(after.value.shape))]
    elif before.kind == "tensor":
        state = "changed"
        largest, relative = distance(before.value, after.value)
    sizes = {"max_abs": finite(largest), "max_rel": finite(relative)}
    return {"state": state, "before": texts[0], "after": texts[1], **sizes, "zero": is_zero}


def _uncompared_ops(graph: ModelGraph, compared: Sequence[str]) -> Iterator[str]:
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
