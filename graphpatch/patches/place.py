"""How TensorFlow differentiates a body, and what a changed gradient must heed there.

Measured on 1.15.5 and 2.21: the main graph, and the bodies of While, If and Case, are
differentiated op by op in Python, which honours `_gradient_op_type`. A body that is called by
PartitionedCall, or as an op of its own, is differentiated in C++ by SymbolicGradient, which
ignores the attr without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from graphpatch.graph.body import Node
from graphpatch.graph.calls import calls
from graphpatch.graph.edit import Editor
from graphpatch.graph.graph import Graph, open_graph
from graphpatch.graph.wire import Source, encoded

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


def calls_above(label: str, editor: Editor) -> Iterator[tuple[str, Node]]:
    """The ops that call a function, then those that call the functions these are in, and so on.

    With each comes the function that it calls. Functions may call themselves, and each other.
    """
    yield from _calls_above(callers_of(editor), label)


def _calls_above(callers: dict[str, list[Node]], label: str) -> Iterator[tuple[str, Node]]:
    told, todo = {label}, [label]
    while todo:
        below = todo.pop()
        for node in callers.get(below, ()):
            yield below, node
            if not node.body.is_main and node.body.label not in told:
                told.add(node.body.label)
                todo.append(node.body.label)


def _ignoring(callers: dict[str, list[Node]], label: str) -> Node | None:
    return next((node for _, node in _calls_above(callers, label) if node.op not in OP_BY_OP), None)
