"""How TensorFlow differentiates a body, and what a changed gradient must heed there.

Measured on 1.15.5 and 2.21: the main graph, and the bodies of While, If and Case, are
differentiated op by op in Python, which honours `_gradient_op_type`. A body that is called by
PartitionedCall, or as an op of its own, is differentiated in C++ by SymbolicGradient, which
ignores the attr without a word.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from graphpatch.graph.body import Node
from graphpatch.graph.calls import calls
from graphpatch.graph.edit import Editor
from graphpatch.graph.graph import Graph, open_graph
from graphpatch.graph.wire import Source, encoded

T = TypeVar("T")

OP_BY_OP = frozenset({"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"})


@dataclass(frozen=True, slots=True)
class Place:
    """What calls a body.

    `ignoring` is the op through which it is called where that makes a Session ignore the attr.
    `op_by_op`: it is the body of a While, an If or a Case.
    """

    ignoring: Node | None = None
    op_by_op: bool = False


def place_of(node: Node, editor: Editor) -> Place:
    """The place of an op: how TensorFlow comes to the body that it is in."""
    label = node.body.label
    if node.body.is_main:
        return Place(_signature()) if editor.graph.is_exported else Place()
    return editor.cached(("place", label), lambda: _place(label, editor))


@cache
def _signature() -> Node:
    """The op that calls the function of a TF2 SavedModel's signature in a Session."""
    call = encoded(1, encoded(1, b"serving_default") + encoded(2, b"StatefulPartitionedCall"))
    return Node(open_graph(Source(call), 0, len(call)).main, 0)


def _place(label: str, editor: Editor) -> Place:
    callers = callers_of(editor)
    op_by_op = any(node.op in OP_BY_OP for node in callers.get(label, ()))
    ignoring = _ignoring(callers, label)
    # In a TF2 SavedModel Python calls functions, too, and all that is in the file is in one.
    return Place(ignoring or (_signature() if editor.graph.is_object_based else None), op_by_op)


def callers_of(editor: Editor) -> dict[str, list[Node]]:
    """The ops that call each function."""
    return editor.cached("callers", lambda: _callers(editor.graph))


def _callers(graph: Graph) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for body in graph.bodies:
        for node, name in calls(body):
            found.setdefault(name, []).append(node)
    return found


def spread(found: Mapping[str, T], editor: Editor) -> dict[str, T]:
    """What is so of functions, as far as it is so of all that they call, and these call.

    Functions may call themselves, and each other; what is found of one itself goes first.
    """
    below: dict[str, list[str]] = {}
    for label, calls_of in callers_of(editor).items():
        for node in calls_of:
            if not node.body.is_main:
                below.setdefault(node.body.label, []).append(label)
    spread_to, todo = dict(found), deque(found)
    while todo:
        above = todo.popleft()
        for label in below.get(above, ()):
            if label not in spread_to:
                spread_to[label] = spread_to[above]
                todo.append(label)
    return spread_to


def _ignoring(callers: dict[str, list[Node]], label: str) -> Node | None:
    told, todo = {label}, [label]
    while todo:
        for node in callers.get(todo.pop(), ()):
            if node.op not in OP_BY_OP:
                return node
            if not node.body.is_main and node.body.label not in told:
                told.add(node.body.label)
                todo.append(node.body.label)
    return None
