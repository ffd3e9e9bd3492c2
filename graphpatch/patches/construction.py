"""The construction: a gradient that is linear in dy, carried by ops that any runtime honours."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from graphpatch.control_flow.op_types import BOUNDARIES
from graphpatch.errors import FormulaError, PatchError
from graphpatch.gradients.fits import signature
from graphpatch.gradients.linear_construction import construction, tensors_read
from graphpatch.gradients.nodedef_form import FormulaNodes
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.spec import Computed
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.names import op_of
from graphpatch.patches.group import MatchedGroup
from graphpatch.patches.join import add_select
from graphpatch.patches.place import in_control_flow, place_of

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
    found = editor.cached(
        key, lambda: _construction_or_none(gradient, _broadcast_signature(node), node.op, node)
    )
    found = _suited(found, node, editor, emit)
    if found is None:
        return False
    _put_nodes(found, node, node.data_inputs, editor)
    return True


def constructed_whole(
    gradient: Computed, group: MatchedGroup, op: Signature, editor: Editor, emit: str
) -> bool:
    """The same for a match as one op, which has this signature."""
    if emit not in CONSTRUCTION_EMITS:
        return False
    found = _suited(_construction_or_none(gradient, op, "", group.last), group.last, editor, emit)
    if found is None:
        return False
    reads = group.reads
    for node in group.nodes:
        if node != group.last and node.data_inputs:
            editor.shadow(node)
    _put_nodes(found, group.last, reads, editor, told=reads)
    return True


def suits_filter(gradient: Computed, node: Node, dtype: str, editor: Editor, emit: str) -> bool:
    """Whether an op that gives on a tensor of this dtype can have this gradient by a construction.

    `node` is the op beside which it is to stand. Raises what `constructed` raises.
    """
    op = Signature.of([("x0", dtype)], [("y0", dtype)], same_shape=True)
    key = ("filter construction", gradient.key, dtype, node.body.is_main)
    found = editor.cached(key, lambda: _construction_or_none(gradient, op, "Identity", node))
    return emit in CONSTRUCTION_EMITS and _suited(found, node, editor, emit) is not None


def _suited(
    found: FormulaNodes | None, node: Node, editor: Editor, emit: str
) -> FormulaNodes | None:
    """The nodes of the construction, where there are any that are right in the place of an op."""
    if found is None:
        reason = "the formula is not known to be linear in dy and to keep the shapes of its inputs"
    else:
        reason = _why_no_construction(node, editor)
    if reason and emit == "construction":
        raise PatchError(f"{node} cannot have this gradient by a construction: {reason}")
    return None if reason else found


def _why_no_construction(node: Node, editor: Editor) -> str:
    """Why a construction would not be right in the place of an op; nothing where it is."""
    if place_of(node, editor).ignoring is not None and not editor.graph.around.is_exported:
        return f"function {node.body.label} is differentiated as a whole"
    if node.op in BOUNDARIES or in_control_flow(node, editor):
        return "it is in a v1 loop or branch"
    args = [*(node.arguments or ()), *(node.outputs or ())]
    if node.outputs is None or any(arg.is_ref or arg.dtype is None for arg in args):
        return "it reads or gives a reference, or a tensor of a dtype that is not known"
    return ""


def _broadcast_signature(node: Node) -> Signature:
    """The op as formulas see it, with what is known of how its inputs are broadcast."""
    found, op = signature(node), node.opdef
    if op is None or not op.broadcasts or len(op.keeps_shape) < len(found.inputs):
        return found
    return replace(found, broadcast=tuple(name for name, _ in found.inputs))


def _construction_or_none(
    gradient: Computed, op: Signature, op_type: str, node: Node
) -> FormulaNodes | None:
    try:
        return construction(gradient.formula, op, op_type, not node.body.is_main)
    except FormulaError as error:
        raise PatchError(f"{node}: {error}") from error


def _put_nodes(
    found: FormulaNodes, node: Node, reads: Sequence[str], editor: Editor, told: Sequence[str] = ()
) -> None:
    name, reads = node.name, list(reads)

    def backward(moved: Node, stop: str) -> str:
        tensors = {
            leaf: stop if n is None else reads[n] for leaf, n in tensors_read(len(reads)).items()
        }
        return put_beside(found, moved, tensors, editor, scope=f"{name}/backward/")

    add_select(node, backward, editor, told)
    editor.note(SECOND)


def put_beside(
    found: FormulaNodes,
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

    for one in found.nodes:
        inputs = [now(text) for text in one.input] or anchor
        names[one.name] = editor.add(scope + one.name, one.op, inputs, one.attr, node).name
    return now(found.results[0])
