"""What patches ask about the body that an op is in, of the graph as it was before the rule."""

from __future__ import annotations

from graphpatch.differentiation.bodies import Bodies
from graphpatch.differentiation.bodies import BodyPlace as BodyPlace
from graphpatch.differentiation.unreached import Unreached
from graphpatch.graph.body import Body, Node
from graphpatch.graph.edit import Editor

# Ops that formulas and traced functions are made of, and that have no gradient in a function that a
# Session differentiates as a whole.
UNKNOWN_TO_FUNCTIONS = frozenset(
    {"Elu", "EnsureShape", "Erf", "IsNan", "Round", "SelectV2", "Softplus"}
)


def place_of(node: Node, editor: Editor) -> BodyPlace:
    """The place of an op: how TensorFlow comes to the body that it is in."""
    return unreached(editor).bodies.place_of(node)


def unreached(editor: Editor) -> Unreached:
    """The bodies that no gradient reaches."""
    return editor.cached("unreached", lambda: Unreached(Bodies(editor.graph)))


def in_control_flow(node: Node, editor: Editor) -> bool:
    """Whether an op lies in a v1 loop or branch."""
    return node.index in all_in_control_flow(node.body, editor)


def all_in_control_flow(body: Body, editor: Editor) -> frozenset[int]:
    """The ops of a body that lie in v1 loops and branches."""
    return unreached(editor).in_control_flow(body)
