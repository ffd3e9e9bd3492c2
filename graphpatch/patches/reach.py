"""Function bodies to which a Session's gradient never comes, whatever is patched in them.

Measured on 1.15.5 and 2.21. A Session differentiates a function that is called by PartitionedCall,
or as an op of its own, as a whole (SymbolicGradient). That gives zeros for a loop and an error for
a branch, be they functions (While, If) or ops (Enter, Switch); and where the library holds a
GradientDef for the function, its body is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphpatch.errors import PatchError
from graphpatch.graph import provenance
from graphpatch.graph.alike import OneOp
from graphpatch.graph.body import Body, Node
from graphpatch.graph.edit import Editor
from graphpatch.patches.place import OP_BY_OP, callers_of, place_of, spread


def check_reached(node: Node, editor: Editor) -> None:
    """Raise PatchError where no gradient comes to an op in a Session.

    A TF2 SavedModel is differentiated op by op on a tape; there the report says so.
    """
    if editor.graph.is_object_based:
        _refuse_whole(node, editor)
    reason = _unreached(node, editor)
    if not reason or editor.graph.is_exported:
        return
    if not editor.graph.is_object_based:
        raise PatchError(f'{node}: {reason}; "body": "main" leaves functions out')
    editor.note(
        f"function {node.body.label}: the new gradient works with GradientTape, after "
        f"tf.saved_model.load, and not in a Session: {reason}"
    )


def _refuse_whole(node: Node, editor: Editor) -> None:
    """Raise PatchError in a function that a tape differentiates as a whole."""
    call = editor.cached("called as ops", lambda: _called_as_ops(editor)).get(node.body.label)
    if call is not None:
        raise PatchError(
            f"{node}: {call} calls the function as an op of its own, and a tape, after "
            f"tf.saved_model.load, does not look into it; inline the function into the main graph "
            f'first; "body": "main" leaves functions out'
        )


def _called_as_ops(editor: Editor) -> dict[str, Node]:
    """For each function: the op whose type it is, or is a function that it is called by."""
    found = {
        label: call
        for label, calls in callers_of(editor).items()
        for call in calls
        if call.op == label
    }
    return spread(found, editor)


def refuse_all_shadowed(nodes: Iterable[Node]) -> None:
    """Raise PatchError for the first of these ops that an earlier rule put behind a gradient."""
    for node in nodes:
        body = node.body
        if (body.heads.marked or body.edited) and body.may_be_signed(node.index):
            refuse_shadowed(node)


def refuse_shadowed(node: Node) -> None:
    """Raise PatchError for an op that an earlier rule put behind a gradient of its own."""
    by = provenance.shadow(node)
    if by:
        raise PatchError(
            f"no gradient reaches {node} any more, since rule {by!r} gave its outputs another "
            f"one; put this rule before that one, or leave the op out of one of them: "
            f'"not": {{"name": ...}}'
        )


def _unreached(node: Node, editor: Editor) -> str:
    if node.body.is_main or place_of(node, editor).ignoring is None:
        return ""
    if in_control_flow(node, editor):
        return _in_loop(f"a v1 loop or branch in function {node.body.label}")
    return editor.cached("unreached", lambda: _unreached_bodies(editor)).get(node.body.label, "")


def _unreached_bodies(editor: Editor) -> dict[str, str]:
    """Why no gradient comes to functions, at one of the calls through which each is reached."""
    found = {label: _stopped(label, calls, editor) for label, calls in callers_of(editor).items()}
    return spread({label: reason for label, reason in found.items() if reason}, editor)


def _stopped(label: str, calls: list[Node], editor: Editor) -> str:
    """Why no gradient comes to a function at one of these calls of it."""
    gradients = editor.graph.library.gradients
    for call in calls:
        by_op, ignored = call.op in OP_BY_OP, place_of(call, editor).ignoring is not None
        if not by_op and label in gradients:
            return f"the model declares {gradients[label]} as the gradient of function {label}"
        if by_op and ignored:
            return _in_loop(str(call))
        if ignored and not call.body.is_main and in_control_flow(call, editor):
            return _in_loop(f"a v1 loop or branch in function {call.body.label}")
    return ""


def _in_loop(which: str) -> str:
    return (
        f"a Session gives no gradient through {which}, as it differentiates that function as a "
        f"whole; inline the function into the main graph first"
    )


def in_control_flow(node: Node, editor: Editor) -> bool:
    """Whether an op lies in a v1 loop or branch."""
    if isinstance(node.body, OneOp):
        return False  # ops in loops and branches have no form
    return node.index in all_in_control_flow(node.body, editor)


def all_in_control_flow(body: Body, editor: Editor) -> frozenset[int]:
    """The ops of a body that lie in v1 loops and branches."""
    from graphpatch.graph.control_flow import inside_control_flow

    return editor.cached(("v1", body.label), lambda: inside_control_flow(body))
