"""What rules of graphpatch put into a model, as `doctor` must know it from what others did."""

from __future__ import annotations

from graphpatch.graph import provenance
from graphpatch.graph.body import Node

CARRIED = "carried"


def rule_of(node: Node) -> str:
    """The rule that added an op, or gave it its inputs or its gradient; nothing for another's."""
    return next((author.rule for author in reversed(provenance.rules_that_touched(node))), "")


def is_of_rule(node: Node) -> bool:
    """Whether a rule put the op there."""
    return node.body.is_ours or provenance.is_added(node)


def is_carrier(node: Node) -> bool:
    """Whether an op calls a function of ours, of which the library names the gradient."""
    return node.op in node.body.library.gradients and provenance.record(node) is not None


def is_hidden(node: Node) -> bool:
    """Whether a rule gave the op's outputs another gradient, so that none reaches the op."""
    return bool(provenance.shadow(node))
