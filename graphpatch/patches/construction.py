"""Constructions: a gradient carried by ops that any runtime honours.

`join` gives an output on by `Select(true, StopGradient(forward), backward)` with TensorFlow's
gradient of AddN, which passes the upstream gradient to every input as it is. Select copies the bits
of `forward`, whatever `backward` is: adding a zero would do it too, but TensorFlow's threads flush
subnormal numbers in arithmetic, and infinity minus itself is NaN. Where that key is ignored, or an
optimiser would take the construction apart, a call of a function carries the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import msgspec

from graphpatch.control_flow.op_types import BOUNDARIES
from graphpatch.errors import FormulaError, PatchError
from graphpatch.gradients.fits import signature
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.linear import construction, tensors_read
from graphpatch.gradients.lowering import FormulaNodes
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.spec import Computed, InlineFormula
from graphpatch.graph import attrs
from graphpatch.graph.editor import Attrs, Editor
from graphpatch.graph.node import Node
from graphpatch.names import op_of
from graphpatch.opdefs import FlatArg
from graphpatch.patches import op_args
from graphpatch.patches.function_carrier import (
    attach_to,
    computed_functions,
    stopped_output,
)
from graphpatch.patches.group import MatchedGroup
from graphpatch.patches.reach import differentiated_as_whole, in_control_flow

# The op type whose registered gradient is dy for each input.
ALIKE = "AddN"


class BackwardTensor(msgspec.Struct, frozen=True):
    """The tensor that an output counts as on the way back.

    `repeated`: its shape is not known to be that of the output, to which it is repeated then; a
    tensor that cannot be is an error at run time.
    """

    tensor: str
    repeated: bool = False


def by_function(node: Node, editor: Editor, emit: str) -> bool:
    """Whether a function must carry it, as TensorFlow would ignore the key, or the rule asks."""
    ignored = differentiated_as_whole(node, editor)
    if ignored and emit == "attr":
        raise PatchError(
            f"{node} is in a function where TensorFlow ignores attrs: there the gradient is "
            f"stored as a function (emit: auto)"
        )
    if ignored and emit == "construction":
        raise PatchError(
            f"{node} is in a function that a Session differentiates as a whole, where a "
            f"construction has another gradient: there a function carries it (emit: auto)"
        )
    return ignored or emit == "function"


def join(
    node: Node,
    counted: Mapping[int, BackwardTensor],
    editor: Editor,
    emit: str,
    behind: Sequence[Node] = (),
    reads: Sequence[str] = (),
) -> None:
    """Let outputs of an op count as other tensors on the way back; those not named stay.

    The op moves to `NAME/forward`. No gradient reaches the ops `behind` it any more. `reads`: what
    a formula calls x0, x1, ..., where the op itself does not tell. Raises PatchError where a
    function would have to carry some of the outputs alone.
    """
    flat, name = op_args.known_outputs(node), node.name
    if by_function(node, editor, emit):
        _attach(node, flat, counted, editor, behind, reads)
        return

    def backward(moved: Node, output: int, stop: str) -> str:
        tensor = counted[output]
        if not tensor.repeated:
            return tensor.tensor
        return repeat_to_shape(
            tensor.tensor, stop, f"{name}/repeat{_suffix(output)}", moved, editor
        )

    if len(flat) == 1:
        add_select(node, lambda moved, stop: backward(moved, 0, stop), editor, reads)
        return

    def through(moved: Node) -> list[str]:
        read = [moved.tensor(output) for output in range(len(flat))]
        for output in counted:
            stop = stopped_output(moved, output, name, editor)
            back = backward(moved, output, stop)
            texts = [_true(name, output, stop, moved, editor), stop, back]
            select = f"{name}/join_{output}"
            added = editor.add(select, "Select", texts, _select_attrs(flat[output]), moved)
            read[output] = added.tensor(0)
        return read

    values = {"T": attrs.dtypes([arg.dtype or "" for arg in flat])}
    carrying = {n for n, arg in enumerate(flat) if op_args.carries(arg)}
    editor.take_name(node, "IdentityN", through, values, shadow=carrying <= counted.keys())
    editor.used("construction")


def add_select(
    node: Node,
    backward: Callable[[Node, str], str],
    editor: Editor,
    reads: Sequence[str] = (),
) -> None:
    """Give the one output of an op on, and let what flows back go to another tensor.

    `backward` gives that tensor, of the op under its new name, and of its output behind a
    StopGradient. `reads`: what a formula calls x0, x1, ..., where the op itself does not tell.
    """
    name = node.name

    def through(moved: Node) -> list[str]:
        stop = stopped_output(moved, 0, name, editor)
        return [_true(name, 0, stop, moved, editor), stop, backward(moved, stop)]

    values = _select_attrs(op_args.known_outputs(node)[0])
    editor.take_name(node, "Select", through, values, shadow=True, reads=reads)
    editor.used("construction")


def refuse_in_part(node: Node, outputs: Sequence[int], editor: Editor, emit: str) -> None:
    """Raise PatchError where `join` would have to carry some outputs of an op, and not others."""
    flat = op_args.known_outputs(node)
    if any(arg.is_ref or arg.dtype is None for arg in flat):
        raise PatchError(f"{node}: its outputs cannot be passed on, as one is a reference")
    others = [n for n, arg in enumerate(flat) if op_args.carries(arg) and n not in outputs]
    if others and by_function(node, editor, emit):
        raise PatchError(
            f"{node}: a function carries all its outputs or none, and output {others[0]} is not "
            f"named"
        )


def _select_attrs(arg: FlatArg) -> Attrs:
    return {"T": attrs.dtype(arg.dtype or ""), attrs.OVERRIDE: attrs.text(ALIKE)}


def _suffix(output: int) -> str:
    return f"_{output}" if output else ""


def _true(name: str, output: int, stop: str, moved: Node, editor: Editor) -> str:
    """Return a condition that is true throughout, of the shape of the output, as the key asks.

    It is made of tensors, not of constants, and so stands in a v1 loop or branch as it is.
    """
    typed = {"T": attrs.dtype(op_args.known_outputs(moved)[output].dtype or "")}
    names = (f"{name}/same{_suffix(output)}", f"{name}/true{_suffix(output)}")
    same = editor.add(names[0], "Equal", [stop, stop], typed, moved).tensor(0)
    return editor.add(names[1], "OnesLike", [same], {"T": attrs.dtype("bool")}, moved).tensor(0)


def repeat_to_shape(tensor: str, like: str, name: str, beside: Node, editor: Editor) -> str:
    """The tensor repeated to the shape of another of its dtype; an error where it cannot be."""
    typed = {"T": attrs.dtype(op_args.known_outputs(beside)[0].dtype or "")}
    shape = editor.add(f"{name}/Shape", "Shape", [like], typed, beside).tensor(0)
    return editor.add(f"{name}/BroadcastTo", "BroadcastTo", [tensor, shape], typed, beside).tensor(
        0
    )


def _attach(
    node: Node,
    flat: Sequence[FlatArg],
    counted: Mapping[int, BackwardTensor],
    editor: Editor,
    behind: Sequence[Node],
    reads: Sequence[str],
) -> None:
    """The same by a function, whose gradient is dy, summed to the shape of a tensor if need be."""
    outputs, known = sorted(counted), not any(tensor.repeated for tensor in counted.values())
    signature = Signature.of(
        [(f"x{n}", flat[output].dtype or "") for n, output in enumerate(outputs)],
        [(f"y{n}", arg.dtype or "") for n, arg in enumerate(flat)],
        same_shape=known and len(outputs) == 1,
    )
    texts = [f"sum_like(dy{o}, x{n})" for n, o in enumerate(outputs)]
    gradient = InlineFormula(Formula.parse(["dy"] if signature.same_shape else texts))
    functions = computed_functions(
        gradient, signature, differentiated_as_whole(node, editor), editor
    )
    read = [counted[output].tensor for output in outputs]
    attach_to(node, functions, read, behind or [node], editor, reads)


CONSTRUCTION_EMITS = ("auto", "construction")

SECOND = (
    "second derivatives treat the factor of dy in a construction as a constant; "
    '"emit": "function" differentiates it too, with GradientTape after register_gradients'
)


def constructed(
    gradient: Computed, node: Node, editor: Editor, emit: str, question: Hashable
) -> bool:
    """Let the gradient of an op be this one by a construction; whether that was done.

    With `emit` "auto" it is done where it is right, and nothing is done elsewhere. `question` is
    the same for ops of one signature. Raises PatchError with `emit` "construction" where it cannot
    be done.
    """
    if emit not in CONSTRUCTION_EMITS:
        return False
    key = ("construction", question, node.body.is_main)
    formula = editor.cached(
        key, lambda: _construction_or_none(gradient, broadcast_signature(node), node.op, node)
    )
    formula = _suited(formula, node, editor, emit)
    if formula is None:
        return False
    _put_nodes(formula, node, node.data_inputs, editor)
    return True


def constructed_whole(
    gradient: Computed, group: MatchedGroup, op: Signature, editor: Editor, emit: str
) -> bool:
    """Return the same for a match as one op, which has this signature."""
    if emit not in CONSTRUCTION_EMITS:
        return False
    formula = _suited(_construction_or_none(gradient, op, "", group.last), group.last, editor, emit)
    if formula is None:
        return False
    reads = group.reads
    for node in group.nodes:
        if node != group.last and node.data_inputs:
            editor.shadow(node)
    _put_nodes(formula, group.last, reads, editor, noted=reads)
    return True


def suits_filter(gradient: Computed, node: Node, dtype: str, editor: Editor, emit: str) -> bool:
    """Whether an op that gives on a tensor of this dtype can have this gradient by a construction.

    `node` is the op beside which it is to stand. Raises what `constructed` raises.
    """
    op = Signature.of([("x0", dtype)], [("y0", dtype)], same_shape=True)
    key = ("filter construction", gradient.key, dtype, node.body.is_main)
    formula = editor.cached(key, lambda: _construction_or_none(gradient, op, "Identity", node))
    return emit in CONSTRUCTION_EMITS and _suited(formula, node, editor, emit) is not None


def _suited(
    formula: FormulaNodes | None, node: Node, editor: Editor, emit: str
) -> FormulaNodes | None:
    """The nodes of the construction, where there are any that are right in the place of an op."""
    if formula is None:
        reason = "the formula is not known to be linear in dy and to keep the shapes of its inputs"
    else:
        reason = _why_no_construction(node, editor)
    if reason and emit == "construction":
        raise PatchError(f"{node} cannot have this gradient by a construction: {reason}")
    return None if reason else formula


def _why_no_construction(node: Node, editor: Editor) -> str:
    """Return why a construction would not be right in the place of an op; nothing where it is."""
    if differentiated_as_whole(node, editor):
        return f"function {node.body.label} is differentiated as a whole"
    if node.op in BOUNDARIES or in_control_flow(node, editor):
        return "it is in a v1 loop or branch"
    args = [*(node.arguments or ()), *(node.outputs or ())]
    if node.outputs is None or any(arg.is_ref or arg.dtype is None for arg in args):
        return "it reads or gives a reference, or a tensor of a dtype that is not known"
    return ""


def broadcast_signature(node: Node) -> Signature:
    """Return the op as formulas see it, with what is known of how its inputs are broadcast."""
    declared, op = signature(node), node.opdef
    if op is None or not op.broadcasts or len(op.keeps_shape) < len(declared.inputs):
        return declared
    return replace(declared, broadcast=tuple(name for name, _ in declared.inputs))


def _construction_or_none(
    gradient: Computed, op: Signature, op_type: str, node: Node
) -> FormulaNodes | None:
    try:
        return construction(gradient.formula, op, op_type, not node.body.is_main)
    except FormulaError as error:
        raise PatchError(f"{node}: {error}") from error


def _put_nodes(
    formula: FormulaNodes,
    node: Node,
    reads: Sequence[str],
    editor: Editor,
    noted: Sequence[str] = (),
) -> None:
    name, reads = node.name, list(reads)

    def backward(moved: Node, stop: str) -> str:
        tensors = {
            leaf: stop if n is None else reads[n] for leaf, n in tensors_read(len(reads)).items()
        }
        return put_beside(formula, moved, tensors, editor, scope=f"{name}/backward/")

    add_select(node, backward, editor, noted)
    editor.note(SECOND)


def put_beside(
    formula: FormulaNodes,
    node: Node,
    tensors: Mapping[str, str],
    editor: Editor,
    anchor: Sequence[str] = (),
    scope: str = "",
) -> str:
    """Add these nodes next to `node`, under `scope`; the tensor that is their result.

    `tensors` says which tensors of the graph they read by other names. Nodes that read nothing
    wait for `anchor`.
    """
    names: dict[str, str] = {}

    def now(text: str) -> str:
        op = op_of(text)
        return tensors.get(text) or names.get(op, op) + text[len(op) :]

    for new in formula.nodes:
        inputs = [now(text) for text in new.input] or anchor
        names[new.name] = editor.add(scope + new.name, new.op, inputs, new.attr, node).name
    return now(formula.results[0])
