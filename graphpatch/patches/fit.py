"""Whether a gradient fits a target: what it is for, and the dtypes, attrs and shapes that it needs.

What flows back to an input has its shape: it is summed over the axes that were broadcast, or
repeated. Where the model fixes two sizes that are neither equal nor 1, no run can do that. Formulas
that `split` a tensor into parts of one size need a size that has such parts: DeepLIFT reads
examples from the first half of a batch and references from the second, and TensorFlow does not
import a file in which the batch is known to be odd.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TypeGuard

from graphpatch import opdefs
from graphpatch.differentiation.flow import carries, is_asked_for
from graphpatch.differentiation.shapes import Shapes, broadcast, sizes_in_words
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.errors import FormulaError, GraphpatchError, PatchError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.ops import Program, Value, sizes_of_constant
from graphpatch.gradients.program import gradient_ops, input_values
from graphpatch.gradients.spec import (
    FILTER,
    Computed,
    Gradient,
    InlineFormula,
    LibraryGradient,
    RegisteredKey,
    json_value,
)
from graphpatch.gradients.tensors import ConstantTensor
from graphpatch.graph.attrs import constant
from graphpatch.graph.node import Node
from graphpatch.graph.provenance import as_model
from graphpatch.patches.editing import RuleEditor
from graphpatch.patches.placement import comes_from_constant
from graphpatch.patches.target import Target, keeps_shape, signature

REMEDY = "; filter_gradient changes what flows back to its output, or through its inputs"


@contextmanager
def naming(target: Target) -> Iterator[None]:
    """Let the error of a formula that does not suit a target be a PatchError that names it."""
    try:
        yield
    except (FormulaError, ValueError) as error:
        reading = f"; {target.reading()}" if target.is_match else ""
        raise PatchError(f"{target}: {error}{reading}") from error


def check_fit(gradient: Computed | RegisteredKey, target: Target, editor: RuleEditor) -> None:
    """Raise PatchError where TensorFlow would fail with this gradient on this one op.

    Of a gradient that the consumer registers nothing is known, so it fits everywhere. A gradient
    with the shape of dy is one of x only where the op keeps the shape of x. Like ops are asked
    about once.
    """
    form = target.form(None if isinstance(gradient, RegisteredKey) else gradient.formula)
    editor.cached(("fits", gradient.key, form), lambda: _check_fit(gradient, target))


def _check_fit(gradient: Computed | RegisteredKey, target: Target) -> None:
    node, op = target.last, target.last.opdef
    if isinstance(gradient, RegisteredKey):
        theirs = opdefs.lookup(gradient.key) if gradient.by_name else None
        if theirs is not None and op is not None and theirs.name != op.name:
            _check_arity(theirs, op, node)
        return
    if isinstance(gradient, LibraryGradient):
        entry = LIBRARY[gradient.name]
        if entry.ops and node.op not in (*entry.ops, FILTER):
            raise PatchError(
                f"{gradient.name} is for {', '.join(entry.ops)}, not for {node}; where it is meant "
                f'all the same, {{"formula": ...}} says it'
            )
        is_known = op is not None and op.known_to != "library"
        for slot, arg in enumerate(node.arguments or [] if entry.elementwise and is_known else []):
            if arg.dtype in opdefs.DIFFERENTIABLE and op and slot not in op.keeps_shape:
                raise PatchError(
                    f"{gradient.name} gives a gradient of the shape of the output, but {node} does "
                    f"not keep the shape of its input {slot} ({arg.name}){REMEDY}"
                )
    if node.outputs is None or gradient.formula.tensors:
        return  # what is read is known to the consumer alone: it is checked when it is built
    with naming(target):
        gradient_ops(gradient.formula, signature(node))


def _check_arity(theirs: opdefs.OpDef, op: opdefs.OpDef, node: Node) -> None:
    """Check that another op type's gradient gives one gradient for each input of this type."""
    for which, expected, actual in (
        ("inputs", theirs.inputs, op.inputs),
        ("outputs", theirs.outputs, op.outputs),
    ):
        if not any(arg.is_list for arg in (*expected, *actual)) and len(expected) != len(actual):
            raise PatchError(
                f"the gradient of {theirs.name} is for {len(expected)} {which}; {node} has "
                f"{len(actual)}"
            )
    own = {attr.name for attr in op.attrs}
    missing = sorted({attr.name for attr in theirs.attrs if attr.type != "type"} - own)
    if missing:
        raise PatchError(
            f"the gradient of {theirs.name} may read the attr {', '.join(missing)}, which {node} "
            f'does not have; {{"registered": "{theirs.name}"}} is for who knows that it does not'
        )


def check_on_match(gradient: LibraryGradient, target: Target) -> None:
    """Raise PatchError where a gradient of the library makes no sense for these ops as one."""
    entry = LIBRARY[gradient.name]
    if entry.ops and not entry.whole:
        raise PatchError(
            f"{entry.name} is for {', '.join(entry.ops)}, not for a match as one op; where it is "
            f'meant all the same, write it as {{"formula": "{gradient.formula.texts[0]}"}}'
        )
    _check_centre(gradient, target)
    asked = [place for place, arg in enumerate(target.inputs) if carries(arg)]
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


JoinedShapes = Mapping[str, frozenset[str]]
"""For each result of a formula what it goes to (`x0`, `y0`), and the tensors of which it has at
least the joint shape."""


def may_contradict(gradient: Gradient) -> TypeGuard[Computed]:
    """Return whether a gradient may have a wrong shape: a formula, or one with a tensor of a rule.

    Other gradients of the library say what they fit.
    """
    if isinstance(gradient, LibraryGradient):
        return any(isinstance(value, ConstantTensor) for _, value in gradient.parameters)
    return isinstance(gradient, InlineFormula)


def refuse_contradicted(
    targets: Iterable[Target],
    formula: Formula,
    joined: Callable[[Target], JoinedShapes],
    may_sum: bool = True,
    in_model: bool = False,
) -> None:
    """Raise PatchError where the model fixes shapes with which a formula fails in every run.

    `may_sum`: a result that is larger than what it goes to is summed. `in_model`: bodies may have
    been edited by the rule itself, and are asked about as they were. What no gradient is asked of
    is left out.
    """
    known: dict[Hashable, JoinedShapes] = {}
    shapes_of = cache(lambda body: Shapes(Wiring(as_model(body) if in_model else body)))
    for target in targets:
        form = target.form(formula)
        if form not in known:
            try:
                known[form] = _in_question(target, joined(target))
            except (GraphpatchError, ValueError):  # it does not fit, which is said later
                known[form] = {}
        if not known[form] or not any(map(is_asked_for, target.last.outputs or ())):
            continue
        shapes = shapes_of(target.last.body)
        tensors = _tensors(target, shapes.wiring)
        for goal, names in known[form].items():
            wanted = shapes.of(tensors[goal]) if goal in tensors else None
            producer = shapes.wiring.node(tensors[goal][0]) if wanted is not None else None
            if wanted is None or (may_sum and comes_from_constant(producer)):
                continue
            for name in sorted(names):
                is_input = name in tensors
                sizes = shapes.of(tensors[name]) if is_input else sizes_of_constant(name)
                if sizes is None or _fits(sizes, wanted, may_sum):
                    continue
                raise PatchError(
                    f"{target}: the formula has the shape of {name if is_input else 'a constant'}, "
                    f"{sizes_in_words(sizes)}, and cannot be {'summed down or ' * may_sum}repeated "
                    f"to that of {goal}, {sizes_in_words(wanted)}{REMEDY * (is_input and may_sum)}"
                )


def may_not_fit(targets: Iterable[Target], value_of: Callable[[Target], Value]) -> list[str]:
    """Return the targets whose formula is not known to have, or be repeated to, y0's shape."""
    values: dict[Hashable, Value] = {}
    shapes_of = cache(lambda body: Shapes(Wiring(body)))
    unknown = []
    for target in targets:
        form = target.form(None)
        if form not in values:
            values[form] = value_of(target)
        read = values[form].shape.most
        if read == frozenset() or has_shape_of_output(values[form], target):
            continue
        shapes = shapes_of(target.last.body)
        tensors = _tensors(target, shapes.wiring)
        wanted = shapes.of(tensors["y0"])
        sizes = broadcast(
            [
                shapes.of(tensors[name]) if name in tensors else sizes_of_constant(name)
                for name in read or ()
            ]
        )
        pairs = zip(reversed(sizes or ()), reversed(wanted or ()), strict=False)
        is_known = all(a == 1 or (a is not None and a == b) for a, b in pairs)
        if sizes is None or wanted is None or len(sizes) > len(wanted) or not is_known:
            unknown.append(str(target))
    return unknown


def has_shape_of_output(value: Value, target: Target) -> bool:
    """Return whether a formula has the shape of the op's output, in every run."""
    op, exact = target.last.opdef, value.shape.exactly
    if op is None or not exact or len(target.nodes) > 1:
        return False
    inputs = frozenset(f"x{place}" for place in op.keeps_shape)
    return exact == inputs if op.broadcasts else exact <= inputs


def _in_question(target: Target, joined: JoinedShapes) -> JoinedShapes:
    """Leave out what suits an op whatever its shapes: all that it broadcasts but constants."""
    op = target.last.opdef
    if op is not None and not target.is_match:
        has_lists = any(arg.number_attr or arg.type_list_attr for arg in op.inputs)
        if not has_lists and {*op.keeps_shape} >= {*range(len(op.inputs))}:
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


def _fits(known: Sequence[int | None], wanted: Sequence[int | None], may_sum: bool) -> bool:
    """Return whether nothing that is known of two shapes keeps the one from becoming the other."""
    pairs = zip(reversed(known), reversed(wanted), strict=False)
    apart = [(a, b) for a, b in pairs if None not in (a, b) and a != b and a != 1]
    if may_sum:
        return all(b == 1 for _, b in apart)
    return not apart and len(known) <= len(wanted)


def refuse_uneven(gradient: Computed, targets: Iterable[Target]) -> None:
    """Raise PatchError where a tensor is known not to have the parts of a formula."""
    splits: dict[str, list[tuple[str, int, int]]] = {}
    shapes_of = cache(lambda body: Shapes(Wiring(body)))
    for target in targets:
        if target.last.op not in splits:
            splits[target.last.op] = list(_equal_parts(gradient, target))
        for variable, number, axis in splits[target.last.op]:
            shapes = shapes_of(target.last.body)
            tensor = _tensors(target, shapes.wiring).get(variable)
            sizes = None if tensor is None else shapes.of(tensor)
            size = sizes[axis] if sizes is not None and -len(sizes) <= axis < len(sizes) else None
            if size is not None and size % number:
                what = "batch" if axis == 0 else f"axis {axis}"
                raise PatchError(
                    f"{target}: the gradient splits {variable} into {number} equal parts, and its "
                    f"{what} is fixed to {size} in the model; it needs a model whose size there is "
                    f"not fixed, or is a multiple of {number}"
                )


def _equal_parts(gradient: Computed, target: Target) -> Iterator[tuple[str, int, int]]:
    """Yield which variables a formula splits, into how many parts, along which axis."""
    program = Program()
    try:
        formula = gradient.for_op(target.last.op).formula
        dict(input_values(program, formula, target.signature))
    except (GraphpatchError, ValueError):  # it does not fit, which is said as the op is patched
        return
    for step in program.steps:
        if step.op_type == "Split":
            axis, tensor = step.tensors
            if isinstance(tensor.source, str):
                yield tensor.source, int(str(dict(step.attrs)["num_split"])), axis.number
