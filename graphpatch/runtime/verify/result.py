"""What `verify` found: of each graph, and whether it is all right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphpatch.analysis.rule_words import StructureFault
from graphpatch.analysis.soundness.overrides import Override
from graphpatch.analysis.soundness.static import StaticCheck
from graphpatch.application import page_part
from graphpatch.formats.model import Model
from graphpatch.runtime.verify.backward import ComparedBackward, in_state
from graphpatch.runtime.verify.formulas import FormulaCheck
from graphpatch.runtime.verify.forward import ComparedForward
from graphpatch.runtime.verify.reached_branches import ReachedBranches
from graphpatch.table import beside, html_table, plural, short

MOST_REASONS = 3

VERIFIED, DIFFERS, NOT_COMPARED = "verified", "differs", "not compared"
SAME_STRUCTURE = "same structure"


@dataclass(frozen=True, slots=True)
class UnfiredOverride:
    """An override whose op was not asked for its gradient.

    `is_new`: the original does not have it. `kind`: TensorFlow ignores it (`ignored`), its op is in
    a function that is differentiated in C++ (`unseen`), or no gradient came to it (`idle`).
    """

    override: Override
    why: str
    is_new: bool
    kind: str

    @property
    def is_wrong(self) -> bool:
        """Whether the patch added it in vain, wherever gradients are taken."""
        return self.is_new and self.kind == "ignored"

    def document(self) -> dict[str, Any]:
        """The override as `verify --json` prints it."""
        node = self.override.node
        place = {"body": node.body.label, "op": node.name, "type": node.op}
        return {**place, "key": self.override.key, "why": self.why, "fails": self.is_wrong}


@dataclass
class RunResult:
    """What running a graph and its original showed. `why` is set where they were not run."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    forward: ComparedForward = field(default_factory=ComparedForward)
    reached: ReachedBranches = field(default_factory=ReachedBranches)
    backward: ComparedBackward = field(default_factory=ComparedBackward)
    fired: list[Override] = field(default_factory=list)
    unfired: list[UnfiredOverride] = field(default_factory=list)
    formulas: list[FormulaCheck] = field(default_factory=list)
    fed: Mapping[str, str] = field(default_factory=dict)
    untaken: list[str] = field(default_factory=list)  # why gradients were not taken
    unseen: list[str] = field(default_factory=list)  # patched ops of which nothing was compared
    why: str = ""
    is_wrong: bool = False  # the original runs, and the patched one does not

    def failures(self) -> Iterator[str]:
        """What differs that should not."""
        if self.why and self.is_wrong:
            yield self.why
        for tensor, how in self.forward.differing.items():
            yield f"forward: {tensor}: {how}"
        for pair in in_state(self.backward.pairs, "fails"):
            yield f"gradient of {pair.target} by {pair.source}: {pair.before} -> {pair.after}"
        for one in self.unfired:
            if one.is_wrong:
                yield f"override of {one.override} by {one.override.key}: {one.why}"
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
        """What should have been compared, and was not."""
        if self.why:
            if not self.is_wrong:
                yield f"nothing could be compared: {self.why}"
            return
        if not self.forward.compared:
            reasons = dict.fromkeys(self.forward.uncompared.values())
            told = "; ".join(list(reasons)[:MOST_REASONS]) or "there is no output to compare"
            yield f"nothing could be compared: {told}"
        for op in self.unseen:
            yield f"forward: no tensor was compared that is computed of {op}"
        for one in self.unfired:
            if one.is_new and not one.is_wrong:
                yield f"override of {one.override} did not fire: {one.why}"
        for formula in self.formulas:
            if formula.why:
                yield f"formula {formula.label}, at {formula.example}: {formula.why}"

    def document(self) -> dict[str, Any]:
        """The run as `verify --json` prints it."""
        if self.why:
            return {"settings": self._settings(), "not_run": self.why}
        return {
            "settings": self._settings(),
            "fed": dict(self.fed),
            "branches": self.reached.document(),
            "forward": self.forward.document(),
            "gradients": [pair.document() for pair in self.backward.pairs],
            "gradients_not_taken": self.untaken,
            "overrides": {
                "fired": [
                    {"body": one.node.body.label, "op": one.node.name, "key": one.key}
                    for one in self.fired
                ],
                "not_fired": [one.document() for one in self.unfired],
            },
            "formulas": [one.document() for one in self.formulas],
        }

    def _settings(self) -> dict[str, Any]:
        sets = [one.name for one in self.forward.sets]
        return {
            **self.settings,
            "graph_optimiser": ["off", "on"],
            "sets_of_values": sets,
            "seeds": "by name of the op or tensor",
            "processes": "one for each model",
        }


@dataclass(frozen=True)
class VerifiedGraph:
    """One graph of a model; `ran` is None where it was not to be run."""

    label: str
    sound: StaticCheck
    ran: RunResult | None

    def failures(self) -> list[str]:
        """What differs that should not, in words."""
        found = [fault.says for fault in self.sound.faults]
        return found + (list(self.ran.failures()) if self.ran is not None else [])

    def gaps(self) -> list[str]:
        """What should have been compared, and was not, in words."""
        return list(self.ran.gaps()) if self.ran is not None else []


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
    around: Sequence[StructureFault]
    models: tuple[()] | tuple[Model, Model] = field(default=(), compare=False)

    @property
    def failures(self) -> list[str]:
        """What differs that should not, in words."""
        found = [fault.says for fault in self.around]
        return found + [
            text for part in self.parts for text in self._labelled(part, part.failures())
        ]

    @property
    def not_compared(self) -> list[str]:
        """What should have been compared, and was not, in words."""
        return [text for part in self.parts for text in self._labelled(part, part.gaps())]

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
        """Whether the verdict is `verified`, or `same structure`."""
        return self.verdict in (VERIFIED, SAME_STRUCTURE)

    def _labelled(self, part: VerifiedGraph, texts: Sequence[str]) -> list[str]:
        return [f"[{part.label}] {one}" if len(self.parts) > 1 else one for one in texts]

    def __repr__(self) -> str:
        why = short([*self.failures, *self.not_compared])
        return f"<Verification: {self.patched}, {self.verdict}{f': {why}' if why else ''}>"

    def _repr_html_(self) -> str:
        rows = [row for part in self.parts for row in _compared_rows(part)]
        rows += [("failure", one) for one in self.failures]
        rows += [("not compared", one) for one in self.not_compared]
        title = f"{self.patched} against {self.original}: {self.verdict}"
        table = html_table(title, ("", ""), rows)
        if not self.models:
            return table
        return beside(table, page_part(*self.models, (), ()))

    def document(self) -> dict[str, Any]:
        """What `verify --json` prints."""
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
                    "structure": part.sound.document(),
                    **(part.ran.document() if part.ran is not None else {}),
                }
                for part in self.parts
            ],
        }


def _compared_rows(part: VerifiedGraph) -> Iterator[tuple[str, str]]:
    """What was compared of a graph, in short."""
    ran = part.ran
    if ran is None or ran.why:
        yield "run", "not run" if ran is None else ran.why
        return
    compared, pairs = len(ran.forward.compared), ran.backward.pairs
    equal = compared - len(ran.forward.differing)
    yield "forward", f"{equal} of {plural(compared, 'tensor')} bit-equal"
    yield "gradients", f"{len(pairs)} taken, {len(list(in_state(pairs, 'changed')))} changed"
    yield "overrides", f"{len(ran.fired)} fired, {len(ran.unfired)} not"
