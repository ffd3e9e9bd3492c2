"""`override_gradient`: the op's own gradient is replaced."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

import msgspec

from graphpatch.differentiation.override_keys import gradient_type, override_key
from graphpatch.errors import GraphpatchError, PatchError
from graphpatch.gradients.exact import GIVE_DY
from graphpatch.gradients.fits import signature
from graphpatch.gradients.gradient_program import joined_shapes
from graphpatch.gradients.passes_on import passes_on
from graphpatch.gradients.spec import (
    Computed,
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
from graphpatch.patches.known_shapes import JoinedShapes, refuse_contradicted
from graphpatch.patches.whole import carry_whole


class OverrideGradient(msgspec.Struct, frozen=True):
    """Forward unchanged; backward, the op's gradient is `gradient`.

    The name stays on the op that has the new gradient, whose op type may be another one; the
    original op is `NAME/forward` then. When not to use it: to change what flows through a tensor
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
        if isinstance(self.gradient, InlineFormula):  # those of the library say what they fit
            refuse_contradicted(nodes, self._form, partial(_joined, self.gradient), may_sum=True)

    def _form(self, node: Node) -> Hashable:
        """What the shape of a formula depends on: op type, dtypes, and the attrs that it reads."""
        assert isinstance(self.gradient, InlineFormula)
        is_plain = not self.gradient.attrs and not self.gradient.formula.reads_op
        dtypes = tuple(arg.dtype for arg in node.arguments or ())
        return (node.op, dtypes) if is_plain else carrier.question(self.gradient, node)

    def idle(self, nodes: Sequence[Node]) -> str:
        """That it is these ops' gradient already."""
        if isinstance(self.gradient, RegisteredKey):
            key = self.gradient.key
            is_same = all(gradient_type(node) == key for node in nodes)
            return f"{key} is the gradient of these ops already" if is_same else ""
        is_own = all(node.op in GIVE_DY and override_key(node) is None for node in nodes)
        return "dy is the own gradient of these ops" if is_own and passes_on(self.gradient) else ""

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


def _joined(gradient: Computed, node: Node) -> JoinedShapes:
    try:
        return joined_shapes(gradient.for_op(node.op).formula, signature(node))
    except (GraphpatchError, ValueError):  # it does not fit, which is said as the op is patched
        return {}


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
