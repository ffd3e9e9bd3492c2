"""What `verify` found: of each graph, and whether it is all right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphpatch.analysis.again import MadeAgain
from graphpatch.application import page_part
from graphpatch.formats.model import Model
from graphpatch.runtime.values import Values, finite
from graphpatch.runtime.verify.firing import Override, UnfiredOverride
from graphpatch.runtime.verify.formulas import FormulaCheck
from graphpatch.table import beside, html_table, plural, short

MOST_REASONS = 3
FEED = "--feed FILE.npz gives inputs that it takes (in Python: feed={...})"

VERIFIED, DIFFERS, NOT_COMPARED = "verified", "differs", "not compared"
SAME_STRUCTURE = "same structure"


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
