"""What was found of one pair, in functions that call each other: each is looked into once."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphpatch.analysis.doctor.finding import OpOnPath
from graphpatch.differentiation.bodies import OP_BY_OP
from graphpatch.graph.body import Node
from graphpatch.graph.calls import named_by
from graphpatch.graph.op_types import CALLS


@dataclass(eq=False)
class ReportedPlaces:
    """What was told of one pair, so that it is not told twice.

    `reaches` are the functions whose refusals were, by their ids; `inside` the paths through
    functions that were followed, as `paths_inside` has them, and whether anything was found.
    """

    places: set[tuple[str, str]] = field(default_factory=set)
    reaches: set[int] = field(default_factory=set)
    inside: dict[tuple[str, int, int], bool] = field(default_factory=dict)

    def is_new(self, place: tuple[str, str]) -> bool:
        """Whether nothing was told of this place; from now on something was."""
        known = place in self.places
        self.places.add(place)
        return not known


def paths_inside(look: OpOnPath) -> list[tuple[str, int, int]]:
    """The functions that an op calls, each with the argument and the output on the path."""
    shift = 1 if look.op in OP_BY_OP and "body" not in look.node.attr_names else 0
    slot, output = look.step.slot - shift, look.step.output
    return [(name, slot, output) for name in dict.fromkeys(_called_bodies(look.node)) if slot >= 0]


def _called_bodies(node: Node) -> list[str]:
    if node.op in node.body.library.signatures:
        return [node.op]
    keys = ("f",) if node.op in CALLS else ("body", "then_branch", "else_branch", "branches")
    return [name for key in keys for name in named_by(node, key)]
