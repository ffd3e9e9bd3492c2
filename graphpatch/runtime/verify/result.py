"""What `verify` found: of each graph, and whether it is all right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphpatch.analysis.verify.fault import Fault
from graphpatch.analysis.verify.overrides import Override
from graphpatch.analysis.verify.static import Sound
from graphpatch.runtime.verify.formulas import Checked
from graphpatch.runtime.verify.forward import Forward
from graphpatch.runtime.verify.gradient import Backward, of
from graphpatch.table import html_table, plural, short

MOST = 3


@dataclass(frozen=True, slots=True)
class Unfired:
    """An override whose op was not asked for its gradient; `is_wrong` where it should have been."""

    override: Override
    why: str
    is_wrong: bool

    def document(self) -> dict[str, Any]:
        """The override as `verify --json` prints it."""
        node = self.override.node
        place = {"body": node.body.label, "op": node.name, "type": node.op}
        return {**place, "key": self.override.key, "why": self.why, "fails": self.is_wrong}


@dataclass
class Ran:
    """What running a graph and its original showed. `why` is set where they were not run."""

    forward: Forward = field(default_factory=Forward)
    backward: Backward = field(default_factory=Backward)
    fired: list[Override] = field(default_factory=list)
    unfired: list[Unfired] = field(default_factory=list)
    formulas: list[Checked] = field(default_factory=list)
    fed: Mapping[str, str] = field(default_factory=dict)
    untaken: list[str] = field(default_factory=list)  # why gradients were not taken
    why: str = ""
    is_wrong: bool = False  # the original runs, and the patched one does not

    def failures(self) -> Iterator[str]:
        """What differs that should not."""
        if self.why:
            yield self.why if self.is_wrong else f"nothing could be compared: {self.why}"
            return
        for tensor, how in self.forward.differing.items():
            yield f"forward: {tensor}: {how}"
        if not self.forward.compared:
            reasons = dict.fromkeys(self.forward.uncompared.values())
            told = "; ".join(list(reasons)[:MOST]) or "there is no output to compare"
            yield f"nothing could be compared: {told}"
        for pair in of(self.backward.pairs, "fails"):
            yield f"gradient of {pair.target} by {pair.source}: {pair.before} -> {pair.after}"
        for one in self.unfired:
            if one.is_wrong:
                yield f"override of {one.override} by {one.override.key}: {one.why}"
        for formula in self.formulas:
            if formula.is_wrong:
                yield (
                    f"formula {formula.label}, at {formula.example}: TensorFlow and numpy differ "
                    f"by {formula.error:.3g} of the largest element"
                )

    def document(self) -> dict[str, Any]:
        """The run as `verify --json` prints it."""
        if self.why:
            return {"not_run": self.why}
        return {
            "fed": dict(self.fed),
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


@dataclass(frozen=True)
class Part:
    """One graph of a model; `ran` is None where it was not to be run."""

    label: str
    sound: Sound
    ran: Ran | None

    def failures(self) -> list[str]:
        """What is wrong with it, in words."""
        found = [fault.says for fault in self.sound.faults]
        return found + (list(self.ran.failures()) if self.ran is not None else [])


@dataclass(frozen=True, repr=False)
class Verification:
    """What `verify` found. `ok` where nothing differs that should not."""

    original: str
    patched: str
    parts: Sequence[Part]
    around: Sequence[Fault]

    @property
    def failures(self) -> list[str]:
        """What differs that should not, in words."""
        labelled = len(self.parts) > 1
        found = [fault.says for fault in self.around]
        for part in self.parts:
            found += [f"[{part.label}] {one}" if labelled else one for one in part.failures()]
        return found

    @property
    def ok(self) -> bool:
        """Whether nothing differs that should not."""
        return not self.failures

    def __repr__(self) -> str:
        said = f"{plural(len(self.failures), 'failure')}: {short(self.failures)}"
        return f"<Verification: {self.patched}, {'verified' if self.ok else said}>"

    def _repr_html_(self) -> str:
        rows = [row for part in self.parts for row in _rows(part)]
        rows += [("failure", one) for one in self.failures]
        title = f"{self.patched} against {self.original}: {'' if self.ok else 'not '}verified"
        return html_table(title, ("", ""), rows)

    def document(self) -> dict[str, Any]:
        """What `verify --json` prints."""
        return {
            "original": self.original,
            "patched": self.patched,
            "ok": self.ok,
            "failures": self.failures,
            "graphs": [
                {
                    "label": part.label,
                    "structure": part.sound.document(),
                    **(part.ran.document() if part.ran is not None else {}),
                }
                for part in self.parts
            ],
        }


def _rows(part: Part) -> Iterator[tuple[str, str]]:
    """What was compared of a graph, in short."""
    ran = part.ran
    if ran is None or ran.why:
        yield "run", "not run" if ran is None else ran.why
        return
    compared, pairs = len(ran.forward.compared), ran.backward.pairs
    equal = compared - len(ran.forward.differing)
    yield "forward", f"{equal} of {plural(compared, 'tensor')} bit-equal"
    yield "gradients", f"{len(pairs)} taken, {len(list(of(pairs, 'changed')))} changed"
    yield "overrides", f"{len(ran.fired)} fired, {len(ran.unfired)} not"
