"""What `verify` finds of two models: values that `--json` prints as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct, to_builtins

from graphpatch.analysis.again import MadeAgain
from graphpatch.application import page_part
from graphpatch.formats.model import Model
from graphpatch.runtime.verify.formulas import FormulaCheck
from graphpatch.runtime.verify.overrides import Overrides
from graphpatch.shown import Document, beside, html_table, plural, short

VERIFIED, DIFFERS, NOT_COMPARED = "verified", "differs", "not compared"
SAME_STRUCTURE = "same structure"


class SetOfValues(Struct):
    """One set of values: how many tensors were compared on it, what differs, why not the others."""

    values: str
    compared: int
    differing: Mapping[str, str]
    not_compared: Sequence[str]


class Forward(Struct):
    """The tensors that were compared on any set of values, and how far those that differ do."""

    compared: Sequence[str]
    differing: Mapping[str, str]
    optimised_differing: Mapping[str, str]
    not_compared: Mapping[str, str]
    sets: Sequence[SetOfValues]


class Branches(Struct):
    """At how many of the ops that take branches values reached both sides; who is not watched."""

    watched: int
    reached: int
    not_reached: Mapping[str, str]
    not_watched: Mapping[str, int]


class GradientPair(Struct, rename={"source": "from", "target": "to"}, omit_defaults=True):
    """One gradient in both models: `same`, `changed`, `fails` (in the patched one alone).

    `uncompared`: both raise an error. `zero`: it is the same, and every element is 0: these values
    tell nothing of the two models.
    `alone`: what differs where all numbers are equal.
    """

    source: str
    target: str
    state: str
    before: str
    after: str
    max_abs: float
    max_rel: float
    zero: bool
    alone: str = ""

    def __str__(self) -> str:
        return f"{self.target} with respect to {self.source}"


class GraphRan(Struct):
    """What running a graph of both models showed; `fed` are the shapes of what it was fed."""

    settings: Mapping[str, Any]
    forward: Forward
    fed: Mapping[str, str]
    branches: Branches
    gradients: Sequence[GradientPair]
    gradients_not_taken: Sequence[str]
    overrides: Overrides
    formulas: Sequence[FormulaCheck]


class NotRun(Struct):
    """Why a graph was not run."""

    settings: Mapping[str, Any]
    not_run: str


@dataclass(frozen=True, slots=True)
class VerifiedGraph:
    """One graph of a model: how it was made again, and what running it showed, if it was to run."""

    label: str
    made: MadeAgain
    ran: GraphRan | NotRun | None


@dataclass(frozen=True, repr=False)
class Verification(Document):
    """What `verify` found. `ok` where there are no `failures`, and nothing is `not_compared`.

    `failures` say what differs that should not, `not_compared` what had to be compared and was not,
    as docs/verify.md lists it. What else was left out `graphs` say, and the lines of the command.

    Example:
        >>> found = graphpatch.verify("model.pb", "patched.pb", run=False)
        >>> found.verdict, found.failures
        ('same structure', [])
    """

    keys = "original patched verdict ok failures not_compared graphs"
    original: str
    patched: str
    parts: Sequence[VerifiedGraph]
    failures: list[str]
    not_compared: list[str]
    models: tuple[()] | tuple[Model, Model] = field(default=(), compare=False)

    @property
    def graphs(self) -> list[dict[str, Any]]:
        """Return each graph as `verify --json` prints it: how it was made again, what was run."""
        return [
            {"label": part.label, "structure": part.made.document(), **to_builtins(part.ran or {})}
            for part in self.parts
        ]

    @property
    def verdict(self) -> str:
        """Return `verified`, `differs`, `not compared`; `same structure`: nothing was to be run.

        `not compared`: nothing that was compared differs, and something that had to be was not.
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


def _compared_rows(ran: GraphRan | NotRun | None) -> Iterator[tuple[str, str]]:
    """Yield what was compared of a graph, in short."""
    if not isinstance(ran, GraphRan):
        yield "run", ran.not_run if ran else "not run"
        return
    compared = len(ran.forward.compared)
    changed = sum(pair.state == "changed" for pair in ran.gradients)
    equal = compared - len(ran.forward.differing)
    left_out = len(ran.forward.not_compared)
    rest = f", {left_out} not compared" if left_out else ""
    yield "forward", f"{equal} of {plural(compared, 'tensor')} bit-equal{rest}"
    yield "gradients", f"{len(ran.gradients)} taken, {changed} changed"
    yield from (("gradients", f"not taken: {why}") for why in ran.gradients_not_taken)
    overrides = ran.overrides
    yield "overrides", f"{len(overrides.fired)} fired, {len(overrides.not_fired)} not"
