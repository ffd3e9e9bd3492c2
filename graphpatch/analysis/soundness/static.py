"""All that is told of a patched model without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphpatch.analysis.pairs import unlike_by_name
from graphpatch.analysis.rule_words import StructureFault, split_new_faults
from graphpatch.analysis.soundness.computed import differently_computed
from graphpatch.analysis.soundness.kept import lost_gradients, name_faults, signature_faults
from graphpatch.analysis.soundness.path_clones import clone_faults
from graphpatch.analysis.soundness.structure import structure_faults
from graphpatch.analysis.soundness.undone import swapped_faults, untold_faults
from graphpatch.formats import Model
from graphpatch.formats.before import opened_again
from graphpatch.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class StaticCheck:
    """Of one graph: `broken` is what makes it no graph, `changed` what it must keep and does not.

    `before` are faults that its original has too.
    """

    broken: Sequence[StructureFault]
    changed: Sequence[StructureFault]
    before: Sequence[StructureFault]

    @property
    def faults(self) -> list[StructureFault]:
        """All that is wrong, and was not before."""
        return [*self.broken, *self.changed]

    def document(self) -> dict[str, Any]:
        """The graph as `verify --json` prints it."""
        return {
            "faults": [fault.document() for fault in self.faults],
            "as_in_the_original": [fault.document() for fault in self.before],
        }


def static_check(one: Graph, other: Graph) -> StaticCheck:
    """What is wrong with a patched graph that was right with its original."""
    found = split_new_faults(structure_faults(one), structure_faults(other))
    differ = unlike_by_name(one, other)
    changed = [*lost_gradients(one, other), *name_faults(one, other, differ)]
    if not found["new"]:
        # Of one op once: what it computes says more than that its NodeDef is another.
        computes = list(differently_computed(one, other, differ))
        told = {(fault.body, fault.op) for fault in (*changed, *computes)}
        left = untold_faults(one, other, differ)
        rest = (fault for fault in left if (fault.body, fault.op) not in told)
        changed += [*computes, *rest, *clone_faults(other)]
    return StaticCheck(found["new"], changed, found["too"])


def faults_around(one: Model, other: Model) -> list[StructureFault]:
    """What is wrong beside the graphs."""
    return [*swapped_faults(one, other), *signature_faults(one, other)]


def as_written(model: Model) -> Model:
    """The model as it would be read from its file: a live one has edits that no file tells of."""
    return opened_again(model)
