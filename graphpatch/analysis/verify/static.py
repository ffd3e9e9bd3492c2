"""All that is told of a patched model without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphpatch.analysis.verify.fault import Fault, apart
from graphpatch.analysis.verify.kept import by_hand, lost, signatures
from graphpatch.analysis.verify.structure import structure
from graphpatch.formats import Model
from graphpatch.formats.before import opened_again
from graphpatch.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Sound:
    """Of one graph: `broken` is what makes it no graph, `lost` what it must keep and does not.

    `before` are faults that its original has too; `by_hand` what changed without a rule.
    """

    broken: Sequence[Fault]
    lost: Sequence[Fault]
    before: Sequence[Fault]
    by_hand: Sequence[str]

    @property
    def faults(self) -> list[Fault]:
        """All that is wrong, and was not before."""
        return [*self.broken, *self.lost]

    def document(self) -> dict[str, Any]:
        """The graph as `verify --json` prints it."""
        return {
            "faults": [fault.document() for fault in self.faults],
            "as_in_the_original": [fault.document() for fault in self.before],
            "changed_without_a_rule": list(self.by_hand),
        }


def static(one: Graph, other: Graph) -> Sound:
    """What is wrong with a patched graph that was right with its original."""
    found = apart(structure(one), structure(other))
    return Sound(found["new"], list(lost(one, other)), found["too"], list(by_hand(one, other)))


def around(one: Model, other: Model) -> list[Fault]:
    """What is wrong beside the graphs."""
    return list(signatures(one, other))


def as_written(model: Model) -> Model:
    """The model as it would be read from its file: a live one has edits that no file tells of."""
    return opened_again(model)
