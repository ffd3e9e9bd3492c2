"""`override_gradient`: the op's own gradient is replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphpatch.differentiation.flow import gradient_type, is_asked_for, override_key, why_not
from graphpatch.errors import PatchError
from graphpatch.gradients.program import joined_shapes
from graphpatch.gradients.spec import (
    GIVE_DY,
    Computed,
    Gradient,
    LibraryGradient,
    RegisteredKey,
    gives_dy,
)
from graphpatch.graph.node import Node
from graphpatch.patches import Patch
from graphpatch.patches.carrier import carry, named_tensors
from graphpatch.patches.editing import RuleEditor
from graphpatch.patches.fit import (
    JoinedShapes,
    check_on_match,
    may_contradict,
    refuse_contradicted,
    refuse_uneven,
)
from graphpatch.patches.placement import refuse_carried
from graphpatch.patches.target import Target


@dataclass(frozen=True, slots=True)
class OverrideGradient(Patch):
    """Forward unchanged; backward, the op's gradient is `gradient`.

    The name stays on the op that has the new gradient, whose op type may be another one; the
    original op is `NAME/forward` then. Of a match as one op formulas see what it reads and gives,
    and what flows back to an op inside from others that read it flows on by its own gradient. When
    not to use it: to change what flows through a tensor whatever op made it, `filter_gradient`
    fits better.
    """

    takes_match: ClassVar[bool] = True
    gradient: Gradient
    emit: str = "auto"

    def check(self, targets: Sequence[Target]) -> None:
        """Raise PatchError where the gradient of none of these is ever asked for, or is not one."""
        gradient = self.gradient
        if targets and all(never_fires(target.last) for target in targets):
            reason = never_fires(targets[0].last)
            raise PatchError(f"the override would never be used: {reason}")
        if not isinstance(gradient, Computed):
            return
        for target in targets:
            if target.is_match and isinstance(gradient, LibraryGradient):
                check_on_match(gradient, target)
        refuse_uneven(gradient, targets)
        if may_contradict(gradient) and not named_tensors(gradient):

            def joined(target: Target) -> JoinedShapes:
                fitted = gradient if target.is_match else gradient.for_op(target.last.op)
                return joined_shapes(fitted.formula, target.signature)

            refuse_contradicted(targets, gradient.formula, joined)

    def idle(self, nodes: Sequence[Node]) -> str:
        """Say that it is these ops' gradient already."""
        if isinstance(self.gradient, RegisteredKey):
            key = self.gradient.key
            is_same = all(gradient_type(node) == key for node in nodes)
            return f"{key} is the gradient of these ops already" if is_same else ""
        is_own = all(node.op in GIVE_DY and override_key(node) is None for node in nodes)
        return "dy is the own gradient of these ops" if is_own and gives_dy(self.gradient) else ""

    def rewrite(self, target: Target, editor: RuleEditor) -> None:
        """Override the gradient of a target."""
        if reason := never_fires(target.last):
            editor.report.idle.append(reason)
            if not isinstance(self.gradient, RegisteredKey):
                return
        for node in target.nodes:
            refuse_carried(node)
        carry(self.gradient, target, editor, self.emit)

    def formulas(self, target: Target) -> str | Sequence[str | None]:
        """Return a formula for each tensor, or one for all; of Python nothing is known."""
        if not isinstance(self.gradient, Computed):
            return ""
        texts = self.gradient.formula.texts
        return (texts[0] or "") if self.gradient.formula.alike else texts


def never_fires(node: Node) -> str:
    """Return why TensorFlow never asks for the gradient of an op; nothing where it may."""
    if not node.data_inputs:
        return f"{node} reads nothing, so no gradient flows back through it"
    flat = node.outputs
    if flat is None or any(map(is_asked_for, flat)):
        return ""
    return f"output 0 of {node} {why_not(flat[0])}" if flat else f"{node} has no outputs"
