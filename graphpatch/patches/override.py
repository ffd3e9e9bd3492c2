"""`override_gradient`: the op's own gradient is replaced."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphpatch.differentiation.flow import carries, is_asked_for, why_not
from graphpatch.differentiation.override_keys import gradient_type, override_key
from graphpatch.errors import PatchError
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.program import joined_shapes
from graphpatch.gradients.spec import (
    GIVE_DY,
    Gradient,
    InlineFormula,
    LibraryGradient,
    PythonGradient,
    RegisteredKey,
    gives_dy,
    json_value,
)
from graphpatch.graph.attrs import constant
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.patches import Patch
from graphpatch.patches.carrier import carry, named_tensors
from graphpatch.patches.reach import (
    JoinedShapes,
    may_contradict,
    refuse_carried,
    refuse_contradicted,
    refuse_uneven,
)
from graphpatch.patches.target import Target, keeps_shape


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

    @property
    def looks_at_op_alone(self) -> bool:
        """True but for a gradient in Python, traced for each op, and one that reads others."""
        return not (isinstance(self.gradient, PythonGradient) or named_tensors(self.gradient))

    def check(self, targets: Sequence[Target]) -> None:
        """Raise PatchError where the gradient of none of these is ever asked for, or is not one."""
        gradient = self.gradient
        if targets and all(never_fires(target.last) for target in targets):
            reason = never_fires(targets[0].last)
            raise PatchError(f"the override would never be used: {reason}")
        if not isinstance(gradient, LibraryGradient | InlineFormula):
            return
        for target in targets:
            if target.is_match and isinstance(gradient, LibraryGradient):
                _check_on_match(gradient, target)
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

    def rewrite(self, target: Target, editor: Editor) -> None:
        """Override the gradient of a target."""
        if reason := never_fires(target.last):
            editor.skipped(reason)
            if not isinstance(self.gradient, RegisteredKey):
                return
        for node in target.nodes:
            refuse_carried(node)
        carry(self.gradient, target, editor, self.emit)

    def formulas(self, target: Target) -> str | Sequence[str | None]:
        """Return a formula for each tensor, or one for all; of Python nothing is known."""
        if not isinstance(self.gradient, LibraryGradient | InlineFormula):
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


def _check_on_match(gradient: LibraryGradient, target: Target) -> None:
    """Raise PatchError where a gradient of the library makes no sense for these ops as one."""
    entry = LIBRARY[gradient.name]
    if entry.ops and not entry.whole:
        raise PatchError(
            f"{entry.name} is for {', '.join(entry.ops)}, not for a match as one op; where it is "
            f'meant all the same, write it as {{"formula": "{gradient.formula.texts[0]}"}}'
        )
    _check_centre(gradient, target)
    asked = [place for place, arg in enumerate(target.args) if carries(arg)]
    if entry.ops and len(asked) != 1:
        raise PatchError(
            f"{entry.name} is for one input; {target.reading()}; take constants into the pattern "
            f"(c:Const -> ...), or write a formula for each input, null for none"
        )
    for place in asked if entry.elementwise else ():
        if keeps_shape(target, place) in ("unknown", "other"):
            raise PatchError(
                f"{entry.name} gives a gradient of the shape of the output, and {target} is not "
                f"known to keep that of x{place}; {target.reading()}; a formula for each input has "
                f"null for none, and filter_gradient changes what flows back to the output"
            )


# For each comparison its input that is larger where the result is true, and the other one.
SIDES = {"Greater": (0, 1), "GreaterEqual": (0, 1), "Less": (1, 0), "LessEqual": (1, 0)}
# What an op gives of which it is known where a comparison with it steps.
SHIFTED = frozenset({"Const", "Add", "AddV2", "BiasAdd", "Sub"})


def _check_centre(gradient: LibraryGradient, target: Target) -> None:
    """Raise PatchError where a surrogate is centred at 0, and the comparison of a match is not.

    `Cast(x > t)` steps at t: the message has the formula of `x - t`. Where `sigmoid(x) > 0.5` does,
    nobody here knows.
    """
    entry = LIBRARY[gradient.name]
    comparisons = [node for node in target.nodes if node.op in SIDES]
    if entry.ops != ("Sign",) or "x0" not in gradient.formula.variables or len(comparisons) != 1:
        return
    (node,) = comparisons
    above, below = (node.data_inputs[slot] for slot in SIDES[node.op])
    threshold = node.body.producer(below)
    tensor = None if threshold is None else constant(threshold)
    is_zero = tensor is not None and not any(piece.any() for piece, _ in tensor.pieces())
    inside = [node.body.producer(text) for text in {above, below} - {*target.reads}]
    is_known = all(producer is not None and producer.op in SHIFTED for producer in inside)
    if (above in target.reads and is_zero) or not is_known:
        return
    text = re.sub(r"\bx\b", "u", f"let u = x0 - x1; {entry.text}")
    lets, _, value = text.rpartition("; ")
    spec: dict[str, object] = {"formula": [text, f"{lets}; -({value})"]}
    if gradient.parameters:
        spec["constants"] = {name: json_value(number) for name, number in gradient.parameters}
    raise PatchError(
        f"{entry.name} has its step at 0 of x0, and in the match {node} compares {above} with "
        f"{below}; {target.reading()}; begin the pattern at the comparison, with x:_ -> {node.op}:"
        f"{SIDES[node.op][0]}, and write: {json.dumps(spec)}, where null may stand for a constant"
    )
