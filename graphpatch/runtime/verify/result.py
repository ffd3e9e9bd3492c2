"""What `verify` found: which overrides fired, of each graph, and whether it is all right."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from graphpatch import names
from graphpatch.analysis.again import MadeAgain
from graphpatch.analysis.doctor.diagnosis import doctors
from graphpatch.application import page_part
from graphpatch.differentiation import flow
from graphpatch.differentiation.bodies import Bodies
from graphpatch.differentiation.hidden import hidden_ops
from graphpatch.differentiation.override_keys import CUSTOM, override_key
from graphpatch.formats.model import Model
from graphpatch.gradients.attach import PASS, is_guard
from graphpatch.graph import provenance
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import op_type_in_model
from graphpatch.graph.walk import downstream, upstream
from graphpatch.names import OpKey, op_of
from graphpatch.runtime.values import Values, finite
from graphpatch.runtime.verify.formulas import FormulaCheck
from graphpatch.table import beside, html_table, plural, short

MOST_REASONS = 3
FEED = "--feed FILE.npz gives inputs that it takes (in Python: feed={...})"

VERIFIED, DIFFERS, NOT_COMPARED = "verified", "differs", "not compared"
SAME_STRUCTURE = "same structure"


LOADED_BODY = re.compile(r"^__inference_(.*)_\d+$")


@dataclass(frozen=True, slots=True)
class Override:
    """An op with another gradient than its type's: by a key, or by a function of the library."""

    node: Node
    key: str
    is_function: bool

    @property
    def place(self) -> OpKey:
        """Return the body and the name of the op."""
        return self.node.body.label, self.node.name

    def __str__(self) -> str:
        body = "" if self.node.body.is_main else f" in function {self.node.body.label}"
        return f"{op_type_in_model(self.node)} {self.node.name}{body}"

    def document(self) -> dict[str, Any]:
        """Return the override as `verify --json` prints it."""
        return {"body": self.node.body.label, "op": self.node.name, "key": self.key}


@dataclass(frozen=True, slots=True)
class UnfiredOverride:
    """An override whose op was not asked for its gradient.

    `is_new`: the original does not have it. `kind`: TensorFlow ignores it (`ignored`), its op is in
    a function that is differentiated in C++ (`unseen`), nothing that runs calls that function or
    reads the op in it (`uncalled`), or no gradient came to it (`idle`).
    """

    override: Override
    why: str
    is_new: bool
    kind: str

    @property
    def is_wrong(self) -> bool:
        """Return whether the patch added it in vain, wherever gradients are taken."""
        return self.is_new and self.kind == "ignored"

    def document(self) -> dict[str, Any]:
        """Return the override as `verify --json` prints it."""
        op = {**self.override.document(), "type": op_type_in_model(self.override.node)}
        return {**op, "why": self.why, "fails": self.is_wrong}


def overrides(graph: ModelGraph) -> Iterator[Override]:
    """Yield the ops that have one, in functions too, in the order of the file.

    Left out are keys that are for tf.saved_model.load alone, the guards that go with overrides, and
    functions that rules only keep from being differentiated.
    """
    gradients = graph.library.gradients
    for body in graph.bodies:
        for node in () if body.is_ours else body:
            key = override_key(node)
            if key is not None and (key.startswith(PASS) or is_guard(key)):
                continue
            if key is not None:
                yield Override(node, key, node.op in gradients)
            elif node.op in gradients and provenance.original_type(node) == node.op:
                yield Override(node, gradients[node.op], True)


@dataclass(eq=False)
class Firing:
    """Sorts the overrides of a patched graph by what happened when gradients were taken.

    `asked` are the ops that TensorFlow asked for their gradient, `pairs` the sources and targets of
    the gradients, `registered` the keys for which its process has gradients.
    """

    before: ModelGraph
    model: Model
    graph: ModelGraph
    asked: Collection[OpKey]
    pairs: Sequence[tuple[str, str]]
    registered: Collection[str]
    control_flow_v2: bool
    _read: dict[Body, set[int]] = field(default_factory=dict)

    def sort(self) -> tuple[list[Override], list[UnfiredOverride]]:
        """Return the overrides that fired, and those that did not."""
        fired, unfired = [], []
        is_loaded = self.graph.around.is_object_based
        passed = {
            (body.label, body.heads.names[index]): Node(body, custom)
            for body in self.graph.bodies
            for index, custom in hidden_ops(body).items()
        }
        known = {(override.place, override.key) for override in overrides(self.before)}
        for override in overrides(self.graph):
            key, is_new = override.key, (override.place, override.key) not in known
            is_unknown = not override.is_function and key not in self.registered and not is_loaded
            if is_unknown and not key.startswith(CUSTOM):
                kind = "ignored"
                why = (
                    f"no program registers the key {key!r}: name the module or .py file that does "
                    "with --import (in Python: imports=[...])"
                )
            elif is_new and override.place in passed:
                says = "has a gradient of its own, which passes it by (tf.custom_gradient)"
                kind, why = "idle", f"{passed[override.place]} {says}"
            elif self._has_fired(override):
                fired.append(override)
                continue
            else:
                kind, why = self._why(override)
            unfired.append(UnfiredOverride(override, why, is_new, kind))
        return fired, unfired

    def _has_fired(self, override: Override) -> bool:
        if not self.graph.around.is_object_based:
            return override.place in self.asked
        body, name = override.place
        # Of most names of functions the loader leaves but the middle; others get a longer one.
        return any(
            op == name and (part in body or LOADED_BODY.sub(r"\1", part) == body)
            for part, op in self.asked
        )

    def _why(self, override: Override) -> tuple[str, str]:
        """Return the kind of an override that did not fire, and why it did not, in words."""
        node, label = override.node, override.node.body.label
        if node.body.is_main:
            return "idle", self._blocked(node)
        if not self._is_called(label):
            return "uncalled", f"nothing that runs calls function {label}"
        if node.index not in self._read_ops(node.body):
            return "uncalled", f"no output of function {label} is computed of it"
        came = f"no gradient that was taken comes to it in function {label}"
        if self.graph.around.is_object_based:
            return "idle", came
        caller = self._bodies.place_of(node).ignoring
        if caller is None:
            return "idle", f"no gradient that was taken comes to function {label}"
        if not override.is_function:
            says = f"function {label} is called by {caller}, where a Session ignores it"
            return "ignored", says
        return "unseen", came

    @cached_property
    def _bodies(self) -> Bodies:
        return Bodies(self.graph)

    def _is_called(self, function: str) -> bool:
        """Return whether an op of the main graph calls a function, or calls one that does."""
        todo, met = [function], {function}
        while todo:
            callers = self._bodies.callers.get(todo.pop(), ())
            if any(caller.body.is_main for caller in callers):
                return True
            labels = {caller.body.label for caller in callers} - met
            met |= labels
            todo += labels
        return False

    def _read_ops(self, body: Body) -> set[int]:
        """Return the ops that outputs of a function are computed of, not by their shapes alone."""
        if body not in self._read:
            todo = [body.by_name.get(op_of(text)) for text in body.ret.values()]
            read = self._read[body] = set()
            while todo:
                index = todo.pop()
                if index is not None and index not in read:
                    read.add(index)
                    if not flow.reads_shape_alone(body.heads.ops[index]):
                        inputs = body.heads.inputs[index]
                        todo += [body.by_name.get(op_of(text)) for text in inputs]
        return self._read[body]

    def _blocked(self, node: Node) -> str:
        """Say what keeps the gradients of the targets from the op."""
        before, behind = self._reached
        if not before[node.index]:
            return "none of the tensors whose gradients are taken is computed of it"
        if not behind[node.index]:
            return "it is not on the way from what the gradients are taken by"
        wiring = self._doctor.session.wiring(self.graph.main)
        for target in dict.fromkeys(target for _, target in self.pairs):
            diagnosis = self._doctor.diagnose((node.index, 0), wiring.tensor(target))
            is_blocked = diagnosis.connected and diagnosis.verdict != "flows"
            if is_blocked and diagnosis.of_session:
                first = diagnosis.of_session[0]
                return f"no gradient of {target} comes to it: {first.node}: {first.what}"
        return "no gradient that was taken comes to it"

    @cached_property
    def _reached(self) -> tuple[bytearray, bytearray]:
        """Mark the ops from which the targets are computed, and those computed from the sources."""
        sources = {names.parse(source) for source, _ in self.pairs}
        targets = {names.parse(target) for _, target in self.pairs}
        return upstream(self.graph.main, targets), downstream(self.graph.main, sources)

    @cached_property
    def _doctor(self) -> Any:
        tags = [graph.around.tags for graph in self.model.graphs]
        return doctors(self.model, self.control_flow_v2)[tags.index(self.graph.around.tags)]


@dataclass
class ComparedValues:
    """One set of values: what was compared on it, and the reason for each tensor that was not.

    `differing` has how far each differs. `values` are those of the original.
    """

    name: str = ""
    compared: list[str] = field(default_factory=list)
    differing: dict[str, str] = field(default_factory=dict)
    uncompared: dict[str, str] = field(default_factory=dict)
    values: Values = field(default_factory=dict)


@dataclass
class ComparedGradient:
    """The gradient of one pair before and after.

    `state` is `same`, `changed`, `fails` (it could be had before) or `uncompared`. `zero`: it is
    the same, and every element is 0, so that these values tell nothing of the two models.
    """

    source: str
    target: str
    state: str
    before: str
    after: str
    largest: float = 0.0
    relative: float = 0.0
    zero: bool = False

    def document(self) -> dict[str, Any]:
        """Return the pair as `verify --json` prints it."""
        return {
            "from": self.source,
            "to": self.target,
            "state": self.state,
            "before": self.before,
            "after": self.after,
            "max_abs": finite(self.largest),
            "max_rel": finite(self.relative),
            "zero": self.zero,
        }


BranchesTaken = tuple[bool, bool]  # below zero, or false; above zero, or true


@dataclass
class RunResult:
    """What running a graph and its original showed. `why` is set where they were not run.

    `fused`: tensors that differ only where TensorFlow optimises the graphs, as by fusing ops. `fed`
    has shapes, `hidden` how many ops that take branches nobody can watch, by where they are.
    `uncalled` are overrides in functions that nothing which runs calls, `untaken` says why
    gradients were not taken, `unseen` names patched ops of which nothing was compared.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    sets: list[ComparedValues] = field(default_factory=list)
    fused: dict[str, str] = field(default_factory=dict)
    fed: Mapping[str, str] = field(default_factory=dict)
    is_seeded: bool = False  # not all that is fed is what the user gave
    hidden: Mapping[str, int] = field(default_factory=dict)
    by_inputs: dict[str, BranchesTaken] = field(default_factory=dict)
    reached: dict[str, BranchesTaken] = field(default_factory=dict)
    gradients: list[ComparedGradient] = field(default_factory=list)
    fired: list[Override] = field(default_factory=list)
    unfired: list[UnfiredOverride] = field(default_factory=list)
    uncalled: list[UnfiredOverride] = field(default_factory=list)
    formulas: list[FormulaCheck] = field(default_factory=list)
    untaken: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    why: str = ""
    is_wrong: bool = False  # the original runs, and the patched one does not

    @property
    def compared(self) -> list[str]:
        """Return what was compared on any of the sets."""
        return list(dict.fromkeys(name for values in self.sets for name in values.compared))

    @property
    def differing(self) -> dict[str, str]:
        """Return what differs on any of the sets, and how far on the first where it does."""
        differing: dict[str, str] = {}
        for values in self.sets:
            for name, how in values.differing.items():
                says = how if values is self.sets[0] else f"{how} ({values.name} values)"
                differing.setdefault(name, says)
        return differing

    @property
    def uncompared(self) -> dict[str, str]:
        """Return what was compared on none of the sets, and why not on the first."""
        compared, first = set(self.compared), self.sets[0].uncompared if self.sets else {}
        return {name: why for name, why in first.items() if name not in compared}

    def reach(self, taken: Mapping[str, BranchesTaken], by_inputs: bool) -> None:
        """Note the branches that values took: of the inputs, or fed right at the ops."""
        for reached in (self.by_inputs, self.reached) if by_inputs else (self.reached,):
            for name, (below, above) in taken.items():
                known = reached.get(name, (False, False))
                reached[name] = known[0] or below, known[1] or above

    def unreached(self) -> list[str]:
        """Return the ops that have a branch which no value took."""
        return [name for name, taken in self.reached.items() if not all(taken)]

    def failures(self) -> Iterator[str]:
        """Yield what differs that should not."""
        if self.why and self.is_wrong:
            yield self.why
        for tensor, how in self.differing.items():
            yield f"forward: {tensor}: {how}"
        for pair in self.gradients:
            if pair.state == "fails":
                ends = f"{pair.target} with respect to {pair.source}"
                yield f"gradient of {ends}: {pair.before} -> {pair.after}"
        for unfired in self.unfired:
            if unfired.is_wrong:
                yield f"override of {unfired.override}: {unfired.why}"
        for formula in self.formulas:
            if formula.is_wrong:
                sides = "TensorFlow and numpy differ"
                if formula.by != "numpy":
                    sides = "the file and the rule's formula, as TensorFlow computes it, differ"
                yield (
                    f"formula {formula.label}, at {formula.example}: {sides} by "
                    f"{formula.error:.3g} of the largest element"
                )

    def gaps(self) -> Iterator[str]:
        """Yield what should have been compared, and was not."""
        if self.why:
            if not self.is_wrong:
                yield f"nothing could be compared: {self.why}"
            return
        hint = f"; {FEED}" if self.is_seeded and self.uncompared else ""
        if not self.compared:
            reasons = list(dict.fromkeys(self.uncompared.values()))[:MOST_REASONS]
            says = "; ".join(reasons) or "there is no output to compare"
            yield f"nothing could be compared: {says}{hint}"
        for op in self.unseen:
            yield f"forward: no tensor was compared that is computed of {op}"
        for unfired in self.unfired:
            if unfired.is_new and not unfired.is_wrong:
                yield f"override of {unfired.override} did not fire: {unfired.why}"
        for formula in self.formulas:
            if formula.why:
                yield f"formula {formula.label}, at {formula.example}: {formula.why}"

    def document(self) -> dict[str, Any]:
        """Return the run as `verify --json` prints it."""
        settings = {
            **self.settings,
            "graph_optimiser": ["off", "on"],
            "sets_of_values": [item.name for item in self.sets],
            "seeds": "by name of the op or tensor",
            "processes": "one for each model",
        }
        if self.why:
            return {"settings": settings, "not_run": self.why}
        return {
            "settings": settings,
            "fed": dict(self.fed),
            "branches": {
                "watched": len(self.by_inputs),
                "reached_by_inputs": sum(map(all, self.by_inputs.values())),
                "reached": sum(map(all, self.reached.values())),
                "not_reached": {op: _unread(self.reached[op]) for op in self.unreached()},
                "not_watched": dict(self.hidden),
            },
            "forward": {
                "compared": self.compared,
                "differing": self.differing,
                "optimised_differing": self.fused,
                "not_compared": self.uncompared,
                "sets": [
                    {
                        "values": item.name,
                        "compared": len(item.compared),
                        "differing": item.differing,
                        "not_compared": list(dict.fromkeys(item.uncompared.values())),
                    }
                    for item in self.sets
                ],
            },
            "gradients": [pair.document() for pair in self.gradients],
            "gradients_not_taken": self.untaken,
            "overrides": {
                "fired": [item.document() for item in self.fired],
                "not_fired": [item.document() for item in self.unfired],
                "not_called": [item.document() for item in self.uncalled],
            },
            "formulas": [item.document() for item in self.formulas],
        }


def _unread(taken: BranchesTaken) -> str:
    below, above = taken
    words = [*([] if below else ["below 0, or false"]), *([] if above else ["above 0, or true"])]
    return f"never reads what is {'; nor '.join(words)}"


@dataclass(frozen=True)
class VerifiedGraph:
    """One graph of a model; `ran` is None where it was not to be run."""

    label: str
    made: MadeAgain
    ran: RunResult | None

    def failures(self) -> list[str]:
        """Return what differs that should not, in words."""
        ran = [] if self.ran is None else list(self.ran.failures())
        return [fault.says for fault in self.made.faults] + ran

    def gaps(self) -> list[str]:
        """Return what should have been compared, and was not, in words."""
        if self.ran is not None:
            return list(self.ran.gaps())
        return [f"structure: {self.made.why}, and nothing was run"] if self.made.why else []


@dataclass(frozen=True, repr=False)
class Verification:
    """What `verify` found. `ok` where nothing differs that should not, and nothing was left out.

    Example:
        >>> found = graphpatch.verify("model.pb", "patched.pb", run=False)
        >>> found.verdict, found.failures
        ('same structure', [])
    """

    original: str
    patched: str
    parts: Sequence[VerifiedGraph]
    around: Sequence[str]
    models: tuple[()] | tuple[Model, Model] = field(default=(), compare=False)

    @property
    def failures(self) -> list[str]:
        """Return what differs that should not, in words."""
        return [*self.around, *self._labelled(VerifiedGraph.failures)]

    @property
    def not_compared(self) -> list[str]:
        """Return what should have been compared, and was not, in words."""
        return self._labelled(VerifiedGraph.gaps)

    @property
    def verdict(self) -> str:
        """`verified`, `differs`, `not compared`; or `same structure` where nothing was to be run.

        `not compared`: nothing that was compared differs, and something was left out.
        """
        if self.failures:
            return DIFFERS
        if self.not_compared:
            return NOT_COMPARED
        ran = any(part.ran is not None for part in self.parts)
        return VERIFIED if ran else SAME_STRUCTURE

    @property
    def ok(self) -> bool:
        """Return whether the verdict is `verified`, or `same structure`."""
        return self.verdict in (VERIFIED, SAME_STRUCTURE)

    def _labelled(self, texts: Any) -> list[str]:
        many = len(self.parts) > 1
        return [
            f"[{part.label}] {text}" if many else text
            for part in self.parts
            for text in texts(part)
        ]

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

    def document(self) -> dict[str, Any]:
        """Return what `verify --json` prints."""
        return {
            "original": self.original,
            "patched": self.patched,
            "verdict": self.verdict,
            "ok": self.ok,
            "failures": self.failures,
            "not_compared": self.not_compared,
            "graphs": [
                {
                    "label": part.label,
                    "structure": part.made.document(),
                    **(part.ran.document() if part.ran is not None else {}),
                }
                for part in self.parts
            ],
        }


def _compared_rows(ran: RunResult | None) -> Iterator[tuple[str, str]]:
    """Yield what was compared of a graph, in short."""
    if ran is None or ran.why:
        yield "run", "not run" if ran is None else ran.why
        return
    compared, changed = len(ran.compared), sum(g.state == "changed" for g in ran.gradients)
    equal = compared - len(ran.differing)
    yield "forward", f"{equal} of {plural(compared, 'tensor')} bit-equal"
    yield "gradients", f"{len(ran.gradients)} taken, {changed} changed"
    yield "overrides", f"{len(ran.fired)} fired, {len(ran.unfired)} not"
