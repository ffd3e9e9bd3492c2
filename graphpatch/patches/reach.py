"""Function bodies to which a Session's gradient never comes, whatever is patched in them.

Measured on 1.15.5 and 2.21. A Session differentiates a function that is called by PartitionedCall,
or as an op of its own, as a whole (SymbolicGradient). That gives zeros for a loop and an error for
a branch, be they functions (While, If) or ops (Enter, Switch); and where the library holds a
GradientDef for the function, its body is not looked at.
"""

from __future__ import annotations

from graphpatch.errors import PatchError
from graphpatch.graph import provenance
from graphpatch.graph.body import Body, Node
from graphpatch.graph.edit import Editor
from graphpatch.patches.place import OP_BY_OP, calls_above, place_of


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
        f"function {node.body.label}: the new gradient holds on a tape, after "
        f"tf.saved_model.load, and not in a Session: {reason}"
    )


def _refuse_whole(node: Node, editor: Editor) -> None:
    """Raise PatchError in a function that a tape differentiates as a whole."""
    label = node.body.label
    call = editor.cached(("whole", label), lambda: _called_as_op(label, editor))
    if call is not None:
        raise PatchError(
            f"{node}: {call} calls the function as an op of its own, and a tape, after "
            f"tf.saved_model.load, does not look into it; inline the function into the main graph "
            f'first; "body": "main" leaves functions out'
        )


def _called_as_op(label: str, editor: Editor) -> Node | None:
    """The op whose type is the function, or one that it is called by."""
    for below, call in calls_above(label, editor):
        if call.op == below:
            return call
    return None


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
    return editor.cached(("unreached", node.body.label), lambda: _above(node.body, editor))


def _above(body: Body, editor: Editor) -> str:
    """Why no gradient comes to the body at one of the calls through which it is reached."""
    gradients = editor.graph.library.gradients
    for label, call in calls_above(body.label, editor):
        by_op, ignored = call.op in OP_BY_OP, place_of(call, editor).ignoring is not None
        if not by_op and label in gradients:
            return f"the model declares {gradients[label]} as the gradient of function {label}"
        if by_op and ignored:
            return _in_loop(str(call))
        if ignored and in_control_flow(call, editor):
            return _in_loop(f"a v1 loop or branch in function {call.body.label}")
    return ""


def _in_loop(which: str) -> str:
    return (
        f"a Session gives no gradient through {which}, as it differentiates that function as a "
        f"whole; inline the function into the main graph first"
    )


def in_control_flow(node: Node, editor: Editor) -> bool:
    """Whether an op lies in a v1 loop or branch."""
    from graphpatch.graph.control_flow import inside_control_flow

    inside = editor.cached(("v1", node.body.label), lambda: inside_control_flow(node.body))
    return node.index in inside
