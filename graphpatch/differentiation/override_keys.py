"""Whose gradient TensorFlow takes for an op: that of its type, or of an override."""

from __future__ import annotations

from graphpatch import opdefs
from graphpatch.graph import attrs, provenance
from graphpatch.graph.node import Node

CUSTOM = "CustomGradient-"
"""How the keys begin that tf.custom_gradient makes; no other process registers them."""


def override_key(node: Node) -> str | None:
    """The key under which TensorFlow looks for the op's gradient, where it is not the op type."""
    value = node.attr(attrs.OVERRIDE)
    return None if value is None else value.s.decode(errors="backslashreplace")


def gradient_type(node: Node) -> str:
    """The op type whose gradient TensorFlow takes for the op: its own, or that of an override."""
    return override_key(node) or node.op


def is_registered(key: str) -> bool:
    """Return whether TensorFlow itself registers a gradient under this key."""
    known = opdefs.lookup(key)
    return known is not None and known.gradient != "missing"


CARRIED = "carried"


def rule_of(node: Node) -> str:
    """The rule that added an op, or gave it its inputs or its gradient; nothing for another's."""
    return next((author.rule for author in reversed(provenance.rules_that_touched(node))), "")


def is_of_rule(node: Node) -> bool:
    """Return whether a rule put the op there."""
    return node.body.is_ours or provenance.is_added(node)


def is_carrier(node: Node) -> bool:
    """Return whether an op calls a function of ours, of which the library names the gradient."""
    return node.op in node.body.library.gradients and provenance.record(node) is not None


def is_hidden(node: Node) -> bool:
    """Return whether a rule gave the op's outputs another gradient, so that none reaches the op."""
    return bool(provenance.shadow(node))
