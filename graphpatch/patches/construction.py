"""Constructions: a gradient carried by ops that any runtime honours.

`join` gives an output on by `Select(true, StopGradient(forward), backward)` with TensorFlow's
gradient of AddN, which passes the upstream gradient to every input as it is. Select copies the bits
of `forward`, whatever `backward` is: adding a zero would do it too, but TensorFlow's threads flush
subnormal numbers in arithmetic, and infinity minus itself is NaN. Where that key is ignored, or an
optimiser would take the construction apart, a call of a function carries the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial

import msgspec

from graphpatch.control_flow.op_types import BOUNDARIES
from graphpatch.errors import FormulaError, PatchError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.linear import Y, construction, tensors_read
from graphpatch.gradients.lowering import FormulaNodes
from graphpatch.gradients.op_gradients import NO_SECOND
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.spec import Computed, InlineFormula
from graphpatch.graph import attrs
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.names import op_of
from graphpatch.patches.function_carrier import attach, computed_functions, numbered, stopped_output
from graphpatch.patches.inline import put_op
from graphpatch.patches.reach import differentiated_as_whole, in_control_flow, shadow_behind
from graphpatch.patches.shape_checks import comes_from_constant
from graphpatch.patches.target import Target, carries, known_outputs

# The op type whose registered gradient is dy for each input.
ALIKE = "AddN"
CONSTRUCTION_EMITS = ("auto", "construction")
SECOND = (
    "second derivatives raise LookupError, as a construction does not differentiate the factor of "
    'dy; "emit": "function" does, after register_gradients'
)


class BackwardTensor(msgspec.Struct, frozen=True):
    """The tensor that an output counts as on the way back.

    `repeated`: its shape is not known to be that of the output, to which it is repeated then; a
    tensor that cannot be is an error at run time.
    """

    tensor: str
    repeated: bool = False


def by_function(node: Node, editor: Editor, emit: str) -> bool:
    """Return whether a function must carry it: TensorFlow would ignore a key, or the rule asks."""
    is_ignored = differentiated_as_whole(node, editor)
    if is_ignored and emit in ("attr", "construction"):
        raise PatchError(
            f"{node} is in a function that a Session differentiates as a whole: TensorFlow ignores "
            f"attrs there, and a construction has another gradient; there a function carries it "
            f"(emit: auto)"
        )
    return is_ignored or emit == "function"


def refuse_in_part(node: Node, outputs: Collection[int], editor: Editor, emit: str) -> None:
    """Raise PatchError where `join` would have to carry some outputs of an op, and not others."""
    flat = known_outputs(node)
    if any(arg.is_ref or arg.dtype is None for arg in flat):
        raise PatchError(f"{node}: its outputs cannot be passed on, as one is a reference")
    others = [n for n, arg in enumerate(flat) if carries(arg) and n not in outputs]
    if others and by_function(node, editor, emit):
        raise PatchError(
            f"{node}: a function carries all its outputs or none, and output {others[0]} is not "
            f"named"
        )


def join(
    target: Target,
    counted: Mapping[int, BackwardTensor],
    editor: Editor,
    emit: str,
    noted: Sequence[str] | None = None,
) -> None:
    """Let outputs of a target count as other tensors on the way back; those not named stay.

    The last op moves to `NAME/forward`, and no gradient reaches the ops any more. `noted`: what a
    formula calls x0, x1, ..., where the target itself does not tell. Raises PatchError where a
    function would have to carry some of the outputs alone.
    """
    node, flat = target.last, target.outputs
    noted = target.noted if noted is None else noted
    shadow_behind(target, editor)
    if not by_function(node, editor, emit):

        def backward(moved: Node, output: int, stop: str, name: str) -> str:
            tensor = counted[output]
            if not tensor.repeated:
                return tensor.tensor
            scope = f"{name}/repeat{numbered(output)}"
            return repeat_to_shape(tensor.tensor, stop, scope, moved, editor)

        _select(node, backward, counted.keys(), editor, noted)
        return
    outputs, is_known = sorted(counted), not any(tensor.repeated for tensor in counted.values())
    signature = Signature.of(
        [flat[output].dtype or "" for output in outputs],
        [arg.dtype or "" for arg in flat],
        same_shape=is_known and len(outputs) == 1,
    )
    texts = [f"sum_like(dy{output}, x{n})" for n, output in enumerate(outputs)]
    gradient = InlineFormula(Formula.parse(["dy"] if signature.same_shape else texts))
    functions = computed_functions(gradient, signature, node, editor)
    attach(target, functions, editor, [counted[output].tensor for output in outputs], noted)


def _select(
    node: Node,
    backward: Callable[[Node, int, str, str], str],
    outputs: Collection[int],
    editor: Editor,
    noted: Sequence[str],
) -> None:
    """Give the outputs of an op on, and let what flows back go to other tensors.

    `backward` gives such a tensor, of the op under its new name, which output, that behind a
    StopGradient, and the name that the op had. The condition is true throughout, of the shape of
    the output, as the key asks; it is made of tensors, not of constants, and so stands in a v1 loop
    or branch as it is.
    """
    name, flat = node.name, known_outputs(node)

    def selected(moved: Node, output: int) -> list[str]:
        stop, suffix = stopped_output(moved, output, name, editor), numbered(output)
        dtype = flat[output].dtype or ""
        same = put_op(editor, f"{name}/same{suffix}", "Equal", [stop, stop], dtype, moved)
        true = put_op(editor, f"{name}/true{suffix}", "OnesLike", [same], "bool", moved)
        return [true, stop, backward(moved, output, stop, name)]

    def through(moved: Node) -> list[str]:
        read = [moved.tensor(output) for output in range(len(flat))]
        for output in outputs:
            select = (f"{name}/join_{output}", "Select", selected(moved, output), values[output])
            read[output] = editor.add(*select, moved).tensor(0)
        return read

    values = [
        {"T": attrs.dtype(arg.dtype or ""), attrs.OVERRIDE: attrs.text(ALIKE)} for arg in flat
    ]
    if len(flat) == 1:
        inputs = partial(selected, output=0)
        editor.take_name(node, "Select", inputs, values[0], shadow=True, reads=noted)
    else:
        is_shadowed = {n for n, arg in enumerate(flat) if carries(arg)} <= set(outputs)
        typed = {"T": attrs.dtypes([arg.dtype or "" for arg in flat])}
        editor.take_name(node, "IdentityN", through, typed, shadow=is_shadowed)
    editor.used("construction")


def repeat_to_shape(tensor: str, like: str, name: str, beside: Node, editor: Editor) -> str:
    """Return the tensor repeated to the shape of another; an error at run time if it cannot be."""
    dtype = known_outputs(beside)[0].dtype or ""
    shape = put_op(editor, f"{name}/Shape", "Shape", [like], dtype, beside)
    return put_op(editor, f"{name}/BroadcastTo", "BroadcastTo", [tensor, shape], dtype, beside)


def constructed(gradient: Computed, target: Target, editor: Editor, emit: str) -> bool:
    """Let the gradient of a target be this one by a construction; return whether that was done.

    With `emit` "auto" it is done where it is right, and nothing is done elsewhere. Raises
    PatchError with `emit` "construction" where it cannot be done.
    """
    if emit not in CONSTRUCTION_EMITS:
        return False
    node = target.last
    form = (target.form(gradient.formula), target.more)
    op_type = "" if target.is_match else node.op
    formula = _nodes(gradient, lambda: target.signature, form, op_type, node, editor, emit)
    if formula is None:
        return False
    reads = target.reads
    shadow_behind(target, editor)

    def backward(moved: Node, _: int, stop: str, name: str) -> str:
        leaves = tensors_read(len(reads))
        tensors = {leaf: stop if n is None else reads[n] for leaf, n in leaves.items()}
        tensor = put_beside(formula, moved, tensors, editor, scope=f"{name}/backward/")
        is_fixed = Y not in formula.varying and len(reads) > 1
        varying = (moved.body.producer(tensors[name]) for name in formula.varying)
        if not formula.varying or (is_fixed and all(map(comes_from_constant, varying))):
            return tensor
        editor.note(SECOND)
        return _differentiated_once(tensor, f"{name}/backward", moved, editor)

    _select(node, backward, [0], editor, target.noted)
    return True


def _differentiated_once(tensor: str, scope: str, beside: Node, editor: Editor) -> str:
    """Return a tensor that passes dy on to another as SoftsignGrad(dy, 0), which is dy.

    TensorFlow has no gradient of SoftsignGrad: a second derivative raises, as it would be wrong.
    """
    typed = {"T": attrs.dtype(known_outputs(beside)[0].dtype or "")}
    for op, name, key in (("ZerosLike", "zeros", "Identity"), ("Identity", NO_SECOND, "Softsign")):
        values = {**typed, attrs.OVERRIDE: attrs.text(key)}
        tensor = editor.add(f"{scope}/{name}", op, [tensor], values, beside).tensor(0)
    return tensor


def suits_filter(gradient: Computed, node: Node, dtype: str, editor: Editor, emit: str) -> bool:
    """Return whether an Identity of this dtype can have this gradient by a construction.

    `node` is the op beside which it is to stand. Raises what `constructed` raises.
    """
    op = Signature.of_tensor(dtype)
    return (
        emit in CONSTRUCTION_EMITS
        and _nodes(gradient, lambda: op, dtype, "Identity", node, editor, emit) is not None
    )


def _nodes(
    gradient: Computed,
    op: Callable[[], Signature],
    form: Hashable,
    op_type: str,
    node: Node,
    editor: Editor,
    emit: str,
) -> FormulaNodes | None:
    """Return the nodes of the construction, where there are any that are right in an op's place.

    `form` is the same where the signature, as far as the gradient reads it, is.
    """

    def nodes() -> FormulaNodes | None:
        try:
            return construction(gradient.formula, op(), op_type, not node.body.is_main)
        except FormulaError as error:
            raise PatchError(f"{node}: {error}") from error

    question = ("construction", gradient.key, form, op_type, node.body.is_main)
    formula, reason = editor.cached(question, nodes), ""
    args = [*(node.arguments or ()), *(node.outputs or ())]
    if formula is None:
        reason = "the formula is not known to be linear in dy and to keep the shapes of its inputs"
    elif differentiated_as_whole(node, editor):
        reason = f"function {node.body.label} is differentiated as a whole"
    elif node.op in BOUNDARIES or in_control_flow(node, editor):
        reason = "it is in a v1 loop or branch"
    elif node.outputs is None or any(arg.is_ref or arg.dtype is None for arg in args):
        reason = "it reads or gives a reference, or a tensor of a dtype that is not known"
    if reason and emit == "construction":
        raise PatchError(f"{node} cannot have this gradient by a construction: {reason}")
    return None if reason else formula


def put_beside(
    formula: FormulaNodes,
    node: Node,
    tensors: Mapping[str, str],
    editor: Editor,
    anchor: Sequence[str] = (),
    scope: str = "",
) -> str:
    """Add these nodes next to `node`, under `scope`; return the tensor that is their result.

    `tensors` says which tensors of the graph they read by other names. Nodes that read nothing
    wait for `anchor`.
    """
    names: dict[str, str] = {}

    def renamed(text: str) -> str:
        op = op_of(text)
        return tensors.get(text) or names.get(op, op) + text[len(op) :]

    for new in formula.nodes:
        inputs = [renamed(text) for text in new.input] or anchor
        names[new.name] = editor.add(scope + new.name, new.op, inputs, new.attr, node).name
    return renamed(formula.results[0])
