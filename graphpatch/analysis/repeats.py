"""What does not give the same when it is run again: parts of a graph run one after the other."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from graphpatch.dtypes import HANDLES
from graphpatch.errors import CutError
from graphpatch.graph.functions import called_by_op
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import ALL_VARIABLES

# Stateful ops that give the same as long as nobody assigns to what they stand for.
READING_OPS = re.compile(
    f"{'|'.join(ALL_VARIABLES)}|TemporaryVariable|ReadVariableOp|VariableShape"
    "|ResourceGather(Nd)?|VarIsInitializedOp|IsVariableInitialized|Lookup.*|.*HashTable.*"
    "|TensorArray.*|Stack.*|Assert|Print.*|_Arg|_Retval|.*Dataset.*|.*Queue(V2)?"
    "|(OneShot|Anonymous)?Iterator(V[23]|FromStringHandle(V2)?)?"
)
WRITING_OPS = re.compile("(Resource)?(Sparse)?(Assign|Apply|Scatter)[A-Z]?|Restore|DestroyResource")
UNFETCHABLE = {*HANDLES, None}


def changes_each_run(node: Node) -> bool:
    """Return whether it gives something else, or changes something, each time it is run."""
    known = node.opdef
    if known is None:
        return False
    is_stateful = known.stateful or any(arg.is_ref for arg in node.arguments or ())
    if WRITING_OPS.match(node.op) and is_stateful:
        return True
    return known.stateful and not READING_OPS.fullmatch(node.op)


def must_be_handed_on(graph: Graph, node: Node, called: Collection[str], in_frame: bool) -> bool:
    """Whether what an op gives must be handed from one run to the next; else it may run again.

    `called` are the functions that it calls. Raises CutError for what can neither be run again
    nor handed on.
    """
    inside = _changing(graph, called)
    if inside is not None:
        raise CutError(
            f"{node} calls a function with {inside}, which would not do the same in each of the "
            f"runs that the parts take; inline the function into the main graph first"
        )
    if called or not changes_each_run(node):
        return False
    outputs = node.outputs or []
    if WRITING_OPS.match(node.op) or any(arg.dtype in UNFETCHABLE for arg in outputs) or in_frame:
        where = " inside a v1 loop or branch" if in_frame else ""
        raise CutError(
            f"{node}{where} would be run once in each of the runs that the parts take, and what "
            f"it does is not the same each time; cut where only the last part needs it"
        )
    return bool(outputs)


def _changing(graph: Graph, functions: Iterable[str]) -> Node | None:
    """Return an op of these functions, or of those that they call, that changes from run to run."""
    todo, visited = list(functions), set[str]()
    while todo:
        name = todo.pop()
        if name in visited or name not in graph.functions:
            continue
        visited.add(name)
        body = graph.functions[name]
        called = called_by_op(body)
        changing = next(
            (node for node in body if node.index not in called and changes_each_run(node)), None
        )
        if changing is not None:
            return changing
        todo += (callee for callees in called.values() for callee in callees)
    return None
