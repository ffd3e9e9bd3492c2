"""`override_gradient`: the op's own gradient is replaced.

Formulas that `split` a tensor into parts of one size need a size that has such parts. DeepLIFT
reads examples from the first half of a batch and references from the second, and TensorFlow does
not import a file in which the batch is known to be odd.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar, NamedTuple

from graphpatch.differentiation.override_keys import gradient_type, override_key
from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.errors import GraphpatchError, ModelError, PatchError
from graphpatch.gradients.fits import signature
from graphpatch.gradients.program import joined_shapes
from graphpatch.gradients.spec import (
    GIVE_DY,
    Gradient,
    InlineFormula,
    LibraryGradient,
    PythonGradient,
    RegisteredKey,
    gives_dy,
)
from graphpatch.gradients.syntax import Call, Literal, Variable, walk
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.patches import Patch, carrier, op_args
from graphpatch.patches.carrier import carry_whole
from graphpatch.patches.group import ByInput, MatchedGroup
from graphpatch.patches.known_shapes import JoinedShapes, may_contradict, refuse_contradicted
from graphpatch.patches.named_tensors import named_tensors
from graphpatch.patches.reach import refuse_carried


@dataclass(frozen=True, slots=True)
class OverrideGradient(Patch):
    """Forward unchanged; backward, the op's gradient is `gradient`.

    The name stays on the op that has the new gradient, whose op type may be another one; the
    original op is `NAME/forward` then. When not to use it: to change what flows through a tensor
    whatever op made it, `filter_gradient` fits better.
    """

    takes_match: ClassVar[bool] = True
    gradient: Gradient
    emit: str = "auto"

    @property
    def looks_at_op_alone(self) -> bool:
        """True but for a gradient in Python, traced for each op, and one that reads others."""
        return not (isinstance(self.gradient, PythonGradient) or named_tensors(self.gradient))

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise PatchError where the gradient of none of these ops is ever asked for."""
        if nodes and all(never_fires(node) for node in nodes):
            raise PatchError(f"the override would never be used: {never_fires(nodes[0])}")
        refuse_uneven(self.gradient, nodes)
        if may_contradict(self.gradient):
            joined = partial(_joined, self.gradient)
            refuse_contradicted(nodes, self._form, joined, may_sum=True)

    def _form(self, node: Node) -> Hashable:
        """What the shape of a formula depends on: op type, dtypes, and the attrs that it reads."""
        assert isinstance(self.gradient, InlineFormula | LibraryGradient)
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
        return "dy is the own gradient of these ops" if is_own and gives_dy(self.gradient) else ""

    def rewrite(self, node: Node, editor: Editor) -> None:
        """Override the gradient of one op."""
        reason = never_fires(node)
        if reason:
            editor.skipped(reason)
            if not isinstance(self.gradient, RegisteredKey):
                return
        refuse_carried(node)
        carrier.carry(self.gradient, node, editor, self.emit)

    def rewrite_whole(self, group: MatchedGroup, editor: Editor) -> None:
        """Override the gradient of a match as one op: formulas see what it reads and gives."""
        refuse_uneven_match(self.gradient, group)
        carry_whole(self.gradient, group, editor, self.emit)

    def by_input(self, group: MatchedGroup) -> ByInput:
        """Return a formula for each tensor, or one for all; of Python nothing is known."""
        if not isinstance(self.gradient, LibraryGradient | InlineFormula):
            return ByInput(())
        return ByInput(self.gradient.formula.texts, self.gradient.formula.alike)


def _joined(gradient: Gradient, node: Node) -> JoinedShapes:
    assert isinstance(gradient, InlineFormula | LibraryGradient)
    try:
        return joined_shapes(gradient.for_op(node.op).formula, signature(node))
    except (GraphpatchError, ValueError):  # it does not fit, which is said as the op is patched
        return {}


def never_fires(node: Node) -> str:
    """Return why TensorFlow never asks for the gradient of an op; nothing where it may."""
    if not node.data_inputs:
        return f"{node} reads nothing, so no gradient flows back through it"
    flat = node.outputs
    if flat is None or any(op_args.is_asked_for(arg) for arg in flat):
        return ""
    if not flat:
        return f"{node} has no outputs"
    return f"output 0 of {node} {op_args.why_not(flat[0])}"


MOST = 2**31  # what an int32 is below


class EqualParts(NamedTuple):
    """Into how many parts a variable of a formula is split, along which axis."""

    variable: str
    number: int
    axis: int


def refuse_uneven(gradient: Gradient, nodes: Sequence[Node]) -> None:
    """Raise PatchError where a tensor of an op is known not to have the parts of a formula."""
    parts_of = cache(lambda op: list(_equal_parts(gradient, op)))
    shapes_of = cache(lambda body: Shapes(Wiring(body)))
    for node in nodes:
        if parts_of(node.op):
            _refuse_unequal(parts_of(node.op), _by_variable(node), shapes_of(node.body), str(node))


def refuse_uneven_match(gradient: Gradient, group: MatchedGroup) -> None:
    """The same of a match as one op."""
    parts = list(_equal_parts(gradient, group.last.op))
    if parts:
        shapes = Shapes(Wiring(group.last.body))
        read = [shapes.wiring.inputs(node.index)[slot] for node, slot in group.slots]
        tensors = {
            **_by_variable(group.last),
            **{f"x{place}": tensor for place, tensor in enumerate(read)},
        }
        _refuse_unequal(parts, tensors, shapes, f"the match that ends in {group.last}")


def _equal_parts(gradient: Gradient, op_type: str) -> Iterator[EqualParts]:
    if not isinstance(gradient, LibraryGradient | InlineFormula):
        return
    try:
        formula = gradient.for_op(op_type).formula
    except GraphpatchError:  # it does not fit the op type, which is said when the op is patched
        return
    for expression in formula.expressions:
        for call in walk(expression) if expression is not None else ():
            if isinstance(call, Call) and call.function == "split":
                yield from _parts_of_call(call)


def _parts_of_call(call: Call) -> Iterator[EqualParts]:
    literals = {name: option.value for name, option in call.options if isinstance(option, Literal)}
    split, parts, axis = call.arguments[0], literals.get("parts", 0), literals.get("axis", 0)
    # Other numbers are refused with a message where the formula is fitted to the op.
    if isinstance(split, Variable) and 1 <= parts < MOST and abs(axis) < MOST:
        yield EqualParts(split.name, int(parts), int(axis))


def _by_variable(node: Node) -> dict[str, Tensor]:
    """Return the tensors of an op by what formulas call them."""
    read = Wiring(node.body).inputs(node.index)
    outputs = range(len(node.outputs or ()))
    return {
        **{f"x{slot}": tensor for slot, tensor in enumerate(read)},
        **{f"{name}{place}": (node.index, place) for name in ("y", "dy") for place in outputs},
    }


def _refuse_unequal(
    parts: Iterable[EqualParts], tensors: Mapping[str, Tensor], shapes: Shapes, where: str
) -> None:
    for part in parts:
        tensor = tensors.get(part.variable)
        size = None if tensor is None else _size_along(shapes, tensor, part.axis)
        if size is not None and size % part.number:
            what = "batch" if part.axis == 0 else f"axis {part.axis}"
            raise PatchError(
                f"{where}: the gradient splits {part.variable} into {part.number} equal parts, and "
                f"its {what} is fixed to {size} in the model; it needs a model whose size there "
                f"is not fixed, or is a multiple of {part.number}"
            )


def _size_along(shapes: Shapes, tensor: Tensor, axis: int) -> int | None:
    try:
        sizes = shapes.of(tensor)
    except (ModelError, LookupError):  # a broken graph: an input that names nothing, or is missing
        return None
    return sizes[axis] if sizes is not None and -len(sizes) <= axis < len(sizes) else None
