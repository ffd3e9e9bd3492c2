"""Formulas whose shape the model contradicts: what flows back could never be that of the input.

What flows back to an input has its shape: it is summed over the axes that were broadcast, or
repeated. Where the model fixes two sizes that are neither equal nor 1, no run can do that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache

from graphpatch import opdefs
from graphpatch.differentiation import flow
from graphpatch.differentiation.shapes import Shapes, sizes_in_words
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.errors import PatchError
from graphpatch.gradients.ops import sizes_of_constant
from graphpatch.gradients.spec import Gradient, InlineFormula, LibraryGradient
from graphpatch.gradients.tensors import ConstantTensor
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.graph.provenance import as_model
from graphpatch.patches.group import MatchedGroup
from graphpatch.patches.noise import comes_from_constant

# For each result of a formula what it goes to (`x0`, `y0`), and the tensors of which it has at
# least the joint shape.
JoinedShapes = Mapping[str, frozenset[str]]

REMEDY = "filter_gradient changes what flows back to its output, or through its inputs"


def may_contradict(gradient: Gradient) -> bool:
    """Whether a gradient may have a wrong shape: a formula, or one with a tensor of the rule.

    Other gradients of the library say what they fit.
    """
    if isinstance(gradient, LibraryGradient):
        return any(isinstance(value, ConstantTensor) for _, value in gradient.parameters)
    return isinstance(gradient, InlineFormula)


def refuse_contradicted(
    nodes: Iterable[Node],
    form: Callable[[Node], Hashable],
    joined: Callable[[Node], JoinedShapes],
    may_sum: bool,
) -> None:
    """Raise PatchError where the model fixes shapes with which a formula fails in every run.

    Ops of one `form` are `joined` alike. `may_sum`: a result that is larger than what it goes to is
    summed. What no gradient is asked of, as it is a constant, is left out.
    """
    known: dict[Hashable, JoinedShapes] = {}
    is_elementwise = cache(_is_elementwise)
    shapes_of = cache(lambda body: Shapes(Wiring(body)))
    for node in nodes:
        key = form(node)
        if key not in known:
            known[key] = _unlike(node, joined(node), is_elementwise(node.op))
        if not known[key] or not any(map(flow.is_asked_for, node.outputs or ())):
            continue  # an override that never fires is told of as the op is patched
        shapes = shapes_of(node.body)
        tensors = _tensors(node, shapes.wiring)
        for goal, names in known[key].items():
            _refuse_shape(node, goal, sorted(names), tensors, shapes, may_sum)


def refuse_contradicted_match(
    group: MatchedGroup, joined: JoinedShapes, editor: Editor, may_sum: bool
) -> None:
    """Raise PatchError as `refuse_contradicted` does, of a match that counts as one op."""
    body = group.last.body
    model = as_model(body)  # another body from the first match on that was patched
    question = ("shapes", body.label, model is body)
    shapes = editor.cached(question, lambda: Shapes(Wiring(model)))
    wiring = shapes.wiring
    tensors = _output_tensors(group.last)
    for place, (node, slot) in enumerate(group.slots):
        tensors[f"x{place}"] = wiring.inputs(node.index)[slot]
    what = f"the match that ends in {group.last}"
    for goal, names in joined.items():
        _refuse_shape(what, goal, sorted(names - {goal}), tensors, shapes, may_sum)


def refuse_constants(
    nodes: Iterable[Node], side: str, place: int | None, names: frozenset[str]
) -> None:
    """Raise PatchError where a filter has constants that no tensor it is put at can meet."""
    constants = sorted(filter(sizes_of_constant, names))
    shapes_of = cache(lambda body: Shapes(Wiring(body)))
    for node in nodes if constants else ():
        shapes = shapes_of(node.body)
        kind = "y" if side == "output" else "x"
        tensors = _tensors(node, shapes.wiring)
        goals = [name for name in tensors if name[0] == kind and place in (None, int(name[1:]))]
        for goal in goals:
            _refuse_shape(node, goal, constants, tensors, shapes, may_sum=True)


def _is_elementwise(op_type: str) -> bool:
    """Return whether all that ops of a type read can be broadcast to what they give."""
    op = opdefs.lookup(op_type)
    if op is None or any(arg.number_attr or arg.type_list_attr for arg in op.inputs):
        return False
    return set(range(len(op.inputs))) <= set(op.keeps_shape)


def _unlike(node: Node, joined: JoinedShapes, is_elementwise: bool) -> JoinedShapes:
    """Without what suits the op whatever its shapes: it keeps those of these tensors."""
    op = node.opdef
    if is_elementwise:  # the constants of a rule alone may not suit it
        joined = {goal: frozenset(filter(sizes_of_constant, joined[goal])) for goal in joined}
    alike = {"y0", "dy0", *(f"x{slot}" for slot in (op.keeps_shape if op is not None else ()))}
    return {
        goal: names
        for goal, names in joined.items()
        if not names <= ({goal} | (alike if goal in alike else frozenset()))
    }


def _tensors(node: Node, wiring: Wiring) -> dict[str, Tensor]:
    """Return the tensors of an op by what formulas call them."""
    read = wiring.inputs(node.index)
    return {**{f"x{slot}": tensor for slot, tensor in enumerate(read)}, **_output_tensors(node)}


def _output_tensors(node: Node) -> dict[str, Tensor]:
    outputs = range(len(node.outputs or ()))
    return {f"{name}{n}": (node.index, n) for name in ("y", "dy") for n in outputs}


def _refuse_shape(
    what: object,
    goal: str,
    names: Sequence[str],
    tensors: Mapping[str, Tensor],
    shapes: Shapes,
    may_sum: bool,
) -> None:
    if goal not in tensors:
        return
    if may_sum and comes_from_constant(shapes.wiring.node(tensors[goal][0])):
        return
    wanted = shapes.if_known(tensors[goal])
    for name in names:
        sizes = shapes.if_known(tensors[name]) if name in tensors else sizes_of_constant(name)
        if sizes is None or wanted is None or _fits(sizes, wanted, may_sum):
            continue
        shape = f"the shape of {name}, {sizes_in_words(sizes)}"
        if name not in tensors:
            shape = f"the shape of a constant, {name}"
        done = "summed down or repeated" if may_sum else "repeated"
        remedy = f"; {REMEDY}" if may_sum and name in tensors else ""
        raise PatchError(
            f"{what}: the formula has {shape}, and cannot be {done} to that of {goal}, "
            f"{sizes_in_words(wanted)}{remedy}"
        )


def _fits(known: Sequence[int | None], wanted: Sequence[int | None], may_sum: bool) -> bool:
    """Return whether nothing that is known of two shapes keeps the one from becoming the other."""
    pairs = list(zip(reversed(known), reversed(wanted), strict=False))
    if may_sum:
        return not any(_apart(a, b) for a, b in pairs)
    return len(known) <= len(wanted) and all(
        a is None or b is None or a in (1, b) for a, b in pairs
    )


def _apart(a: int | None, b: int | None) -> bool:
    return a is not None and b is not None and a != b and 1 not in (a, b)
