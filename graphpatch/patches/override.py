"""`override_gradient`: the op's own gradient is replaced."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from graphpatch.errors import PatchError
from graphpatch.gradients.spec import (
    Gradient,
    InlineFormula,
    LibraryGradient,
    PythonGradient,
    RegisteredKey,
)
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.patches import carrier, op_args
from graphpatch.patches.equal_parts import refuse_uneven, refuse_uneven_match
from graphpatch.patches.group import MatchedGroup
from graphpatch.patches.input_order import ByInput
from graphpatch.patches.whole import carry_whole


class OverrideGradient(msgspec.Struct, frozen=True):
    """Forward unchanged; backward, the op's gradient is `gradient`.

    The op keeps its name and type. When not to use it: to change what flows through a tensor
    whatever op made it, `filter_gradient` fits better.
    """

    gradient: Gradient
    emit: str = "auto"

    @property
    def looks_at_op_alone(self) -> bool:
        """True but for a gradient in Python, which is traced for each op."""
        return not isinstance(self.gradient, PythonGradient)

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise PatchError where the gradient of none of these ops is ever asked for."""
        if nodes and all(never_fires(node) for node in nodes):
            raise PatchError(f"the override would never be used: {never_fires(nodes[0])}")
        refuse_uneven(self.gradient, nodes)

    def rewrite(self, node: Node, editor: Editor) -> None:
        """Override the gradient of one op."""
        reason = never_fires(node)
        if reason:
            editor.skipped(reason)
            if not isinstance(self.gradient, RegisteredKey):
                return
        carrier.refuse_carried(node)
        carrier.carry(self.gradient, node, editor, self.emit)

    def rewrite_whole(self, group: MatchedGroup, editor: Editor) -> None:
        """Override the gradient of a match as one op: formulas see what it reads and gives."""
        refuse_uneven_match(self.gradient, group)
        carry_whole(self.gradient, group, editor, self.emit)

    def by_input(self, group: MatchedGroup) -> ByInput:
        """A formula for each tensor, or one for all; of Python nothing is known."""
        if not isinstance(self.gradient, LibraryGradient | InlineFormula):
            return ByInput(())
        return ByInput(self.gradient.formula.texts, self.gradient.formula.alike)


def never_fires(node: Node) -> str:
    """Why TensorFlow never asks for the gradient of an op; nothing where it may."""
    if not node.data_inputs:
        return f"{node} reads nothing, so no gradient flows back through it"
    flat = node.outputs
    if flat is None or any(op_args.is_asked_for(arg) for arg in flat):
        return ""
    if not flat:
        return f"{node} has no outputs"
    return f"output 0 of {node} {op_args.why_not(flat[0])}"
