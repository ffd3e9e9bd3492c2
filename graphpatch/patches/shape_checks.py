"""Formulas that the shapes of a model contradict: no run could compute what flows back.

What flows back to an input has its shape: it is summed over the axes that were broadcast, or
repeated. Where the model fixes two sizes that are neither equal nor 1, no run can do that. Formulas
that `split` a tensor into parts of one size need a size that has such parts: DeepLIFT reads
examples from the first half of a batch and references from the second, and TensorFlow does not
import a file in which the batch is known to be odd.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple, TypeGuard

from graphpatch.control_flow.op_types import ENTERS
from graphpatch.differentiation.shapes import Shapes, sizes_in_words
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.errors import GraphpatchError, PatchError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.ops import sizes_of_constant
from graphpatch.gradients.spec import Computed, Gradient, InlineFormula, LibraryGradient
from graphpatch.gradients.syntax import Call, Literal, Variable, walk
from graphpatch.gradients.tensors import ConstantTensor
from graphpatch.graph.node import Node
from graphpatch.graph.provenance import as_model
from graphpatch.graph.walk import first_producers
from graphpatch.patches.target import Target, is_asked_for

JoinedShapes = Mapping[str, frozenset[str]]
"""For each result of a formula what it goes to (`x0`, `y0`), and the tensors of which it has at
least the joint shape."""

MOST = 2**31  # what an int32 is below


def may_contradict(gradient: Gradient) -> TypeGuard[Computed]:
    """Return whether a gradient may have a wrong shape: a formula, or one with a tensor of a rule.

    Other gradients of the library say what they fit.
    """
    if isinstance(gradient, LibraryGradient):
        return any(isinstance(value, ConstantTensor) for _, value in gradient.parameters)
    return isinstance(gradient, InlineFormula)


def comes_from_constant(node: Node | None) -> bool:
    """Return whether a tensor that this op gives is a constant of the file, passed on unchanged."""
    ops = (producer.op for producer in first_producers(node))
    return next((op for op in ops if op not in {"Identity", *ENTERS}), "") == "Const"


def refuse_contradicted(
    targets: Iterable[Target],
    formula: Formula,
    joined: Callable[[Target], JoinedShapes],
    may_sum: bool = True,
    constants_alone: bool = False,
    in_model: bool = False,
) -> None:
    """Raise PatchError where the model fixes shapes with which a formula fails in every run.

    `may_sum`: a result that is larger than what it goes to is summed. `constants_alone`: no more
    than the constants of a rule may be at fault. `in_model`: bodies may have been edited by the
    rule itself, and are asked about as they were. What no gradient is asked of is left out.
    """
    known: dict[Hashable, JoinedShapes] = {}
    shapes_of = cache(lambda body: Shapes(Wiring(as_model(body) if in_model else body)))
    for target in targets:
        form = target.form(formula)
        if form not in known:
            known[form] = _in_question(target, joined(target), constants_alone)
        if not known[form] or not any(map(is_asked_for, target.last.outputs or ())):
            continue
        shapes = shapes_of(target.last.body)
        tensors = _tensors(target, shapes.wiring)
        for goal, names in known[form].items():
            if goal in tensors:
                _refuse_shape(target, goal, sorted(names), tensors, shapes, may_sum)


def _in_question(target: Target, joined: JoinedShapes, constants_alone: bool) -> JoinedShapes:
    """Leave out what suits an op whatever its shapes: all that it broadcasts but constants."""
    op = target.last.opdef
    if op is not None and not target.is_match:
        has_lists = any(arg.number_attr or arg.type_list_attr for arg in op.inputs)
        constants_alone |= not has_lists and {*op.keeps_shape} >= {*range(len(op.inputs))}
    if constants_alone:
        joined = {goal: frozenset(filter(sizes_of_constant, joined[goal])) for goal in joined}
    return {goal: names - {goal} for goal, names in joined.items() if names - {goal}}


def _tensors(target: Target, wiring: Wiring) -> dict[str, Tensor]:
    """Return the tensors of a target by what formulas call them."""
    tensors = {
        f"x{n}": wiring.inputs(node.index)[slot] for n, (node, slot) in enumerate(target.places)
    }
    for output in range(len(target.last.outputs or ())):
        tensors |= dict.fromkeys((f"y{output}", f"dy{output}"), (target.last.index, output))
    return tensors


def _refuse_shape(
    target: Target,
    goal: str,
    names: Sequence[str],
    tensors: Mapping[str, Tensor],
    shapes: Shapes,
    may_sum: bool,
) -> None:
    if may_sum and comes_from_constant(shapes.wiring.node(tensors[goal][0])):
        return
    wanted = shapes.if_known(tensors[goal])
    for name in names:
        sizes = shapes.if_known(tensors[name]) if name in tensors else sizes_of_constant(name)
        if sizes is None or wanted is None or _fits(sizes, wanted, may_sum):
            continue
        shape = f"the shape of {name}, {sizes_in_words(sizes)}"
        done, remedy = "summed down or repeated" if may_sum else "repeated", ""
        if name not in tensors:
            shape = f"the shape of a constant, {name}"
        elif may_sum:
            remedy = (
                "; filter_gradient changes what flows back to its output, or through its inputs"
            )
        raise PatchError(
            f"{target}: the formula has {shape}, and cannot be {done} to that of {goal}, "
            f"{sizes_in_words(wanted)}{remedy}"
        )


def _fits(known: Sequence[int | None], wanted: Sequence[int | None], may_sum: bool) -> bool:
    """Return whether nothing that is known of two shapes keeps the one from becoming the other."""
    pairs = zip(reversed(known), reversed(wanted), strict=False)
    apart = [(a, b) for a, b in pairs if None not in (a, b) and a != b and a != 1]
    if may_sum:
        return all(b == 1 for _, b in apart)
    return not apart and len(known) <= len(wanted)


class EqualParts(NamedTuple):
    """Into how many parts a variable of a formula is split, along which axis."""

    variable: str
    number: int
    axis: int


def refuse_uneven(gradient: Computed, targets: Iterable[Target]) -> None:
    """Raise PatchError where a tensor is known not to have the parts of a formula."""
    parts_of = cache(lambda op_type: list(_equal_parts(gradient, op_type)))
    shapes_of = cache(lambda body: Shapes(Wiring(body)))
    for target in targets:
        for part in parts_of(target.last.op):
            shapes = shapes_of(target.last.body)
            tensor = _tensors(target, shapes.wiring).get(part.variable)
            sizes = None if tensor is None else shapes.if_known(tensor)
            if sizes is None or not -len(sizes) <= part.axis < len(sizes):
                continue
            size = sizes[part.axis]
            if size is not None and size % part.number:
                what = "batch" if part.axis == 0 else f"axis {part.axis}"
                raise PatchError(
                    f"{target}: the gradient splits {part.variable} into {part.number} equal "
                    f"parts, and its {what} is fixed to {size} in the model; it needs a model "
                    f"whose size there is not fixed, or is a multiple of {part.number}"
                )


def _equal_parts(gradient: Computed, op_type: str) -> Iterator[EqualParts]:
    try:
        expressions = gradient.for_op(op_type).formula.expressions
    except GraphpatchError:  # it does not fit the op type, which is said when the op is patched
        return
    for expression in expressions:
        for call in walk(expression) if expression is not None else ():
            if not isinstance(call, Call) or call.function != "split":
                continue
            options = {
                name: option.value for name, option in call.options if isinstance(option, Literal)
            }
            split, parts, axis = call.arguments[0], options.get("parts", 0), options.get("axis", 0)
            # Other numbers are refused with a message where the formula is fitted to the op.
            if isinstance(split, Variable) and 1 <= parts < MOST and abs(axis) < MOST:
                yield EqualParts(split.name, int(parts), int(axis))
