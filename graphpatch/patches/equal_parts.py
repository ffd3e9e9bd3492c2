"""Formulas that `split` a tensor into parts of one size: whether its size has such parts.

DeepLIFT reads examples from the first half of a batch and references from the second. TensorFlow
does not import a file in which the batch is known to be odd.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.errors import GraphpatchError, ModelError, PatchError
from graphpatch.gradients.expression import Call, Literal, Variable, walk
from graphpatch.gradients.spec import Gradient, InlineFormula, LibraryGradient
from graphpatch.graph.body import Node
from graphpatch.patches.group import MatchedGroup


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
            **{f"x{place}": one for place, one in enumerate(read)},
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
    given = {name: one.value for name, one in call.options if isinstance(one, Literal)}
    split = call.arguments[0]
    if isinstance(split, Variable) and "parts" in given:
        yield EqualParts(split.name, int(given["parts"]), int(given.get("axis", 0)))


def _by_variable(node: Node) -> dict[str, Tensor]:
    """The tensors of an op by what formulas call them."""
    read = Wiring(node.body).inputs(node.index)
    outputs = range(len(node.outputs or ()))
    return {
        **{f"x{slot}": tensor for slot, tensor in enumerate(read)},
        **{f"{name}{place}": (node.index, place) for name in ("y", "dy") for place in outputs},
    }


def _refuse_unequal(
    parts: Iterable[EqualParts], tensors: Mapping[str, Tensor], shapes: Shapes, where: str
) -> None:
    for one in parts:
        tensor = tensors.get(one.variable)
        size = None if tensor is None else _size_along(shapes, tensor, one.axis)
        if size is not None and size % one.number:
            what = "batch" if one.axis == 0 else f"axis {one.axis}"
            raise PatchError(
                f"{where}: the gradient splits {one.variable} into {one.number} equal parts, and "
                f"its {what} is fixed to {size} in the model; it needs a model whose size there "
                f"is not fixed, or is a multiple of {one.number}"
            )


def _size_along(shapes: Shapes, tensor: Tensor, axis: int) -> int | None:
    try:
        found = shapes.of(tensor)
    except (ModelError, LookupError):  # a broken graph: an input that names nothing, or is missing
        return None
    return found[axis] if found is not None and -len(found) <= axis < len(found) else None
