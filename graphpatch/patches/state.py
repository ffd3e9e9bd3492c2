"""Ops that must not run twice, or cannot be read twice."""

from __future__ import annotations

from graphpatch.control_flow.op_types import BOUNDARIES
from graphpatch.graph.body import Body, Node
from graphpatch.graph.calls import calls
from graphpatch.graph.edit import Editor
from graphpatch.graph.topology import FED

# Ops that TensorFlow calls stateful since they read a state, which they leave as it is.
STATE_READS = frozenset(
    "ReadVariableOp ResourceGather ResourceGatherNd VarHandleOp VarIsInitializedOp"
    " VariableShape".split()
)


def why_not_twice(node: Node, editor: Editor) -> str:
    """Why there can be no clone of an op that runs beside it; nothing where there can be one."""
    if node.op in BOUNDARIES:
        return (
            f"{node} leads into or out of a loop or branch, which cannot be cloned in part; "
            f'"until" can name tensors before it'
        )
    if node.op in FED:
        return f'{node} may be fed, and a clone of it is not; "until" can name it or what it reads'
    if node.opdef is None or node.outputs is None:
        return f"{node}: op type {node.op} is not known, so it may not be safe to run twice"
    if any(arg.is_ref for arg in [*(node.arguments or ()), *node.outputs]):
        return f"{node} changes or hands on a variable, and must not run twice"
    if _has_state(node, editor):
        return (
            f"{node} has a state, and must not run twice, but the noise-free path leads through "
            f'it; "until" can name tensors before it'
        )
    return ""


def _has_state(node: Node, editor: Editor) -> bool:
    """Whether an op, or what it calls, does more than to read a state."""
    bodies, todo, functions = set[str](), [node], editor.graph.functions
    while todo:
        one = todo.pop()
        called = _called(one, editor)
        if not called and one.op not in STATE_READS and (one.opdef is None or one.opdef.stateful):
            return True
        for name in called - bodies:
            bodies.add(name)
            todo += list(functions[name]) if name in functions else []
    return False


def _called(node: Node, editor: Editor) -> set[str]:
    """The functions of the file that an op calls."""
    found = editor.cached(("called", node.body.label), lambda: _calls(node.body))
    return {name for name in found.get(node.index, ()) if name in editor.graph.functions}


def _calls(body: Body) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for one, name in calls(body):
        found.setdefault(one.index, []).append(name)
    return found
