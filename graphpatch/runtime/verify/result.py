"""What `verify` found of each graph of a model, and whether it is all right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphpatch.analysis.again import MadeAgain
from graphpatch.application import page_part
from graphpatch.formats.model import Model
from graphpatch.table import beside, html_table, plural, short

VERIFIED, DIFFERS, NOT_COMPARED = "verified", "differs", "not compared"
SAME_STRUCTURE = "same structure"


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
        return [*self.around, *self._labelled("failures")]

    @property
    def not_compared(self) -> list[str]:
        """Return what should have been compared, and was not, in words."""
        return self._labelled("gaps")

    @property
    def verdict(self) -> str:
        """`verified`, `differs`, `not compared`; or `same structure` where nothing was to be run.

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
                {"label": part.label, "structure": part.made.document(), **part.ran}
                for part in self.parts
            ],
        }


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
