"""The place of an op that a patch changes: how TensorFlow differentiates the body that it is in."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TypeVar

from graphpatch.differentiation.bodies import OP_BY_OP as OP_BY_OP
from graphpatch.differentiation.bodies import Bodies
from graphpatch.differentiation.bodies import Place as Place
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor

T = TypeVar("T")


def place_of(node: Node, editor: Editor) -> Place:
    """The place of an op: how TensorFlow comes to the body that it is in."""
    return _bodies(editor).place_of(node)


def callers_of(editor: Editor) -> dict[str, list[Node]]:
    """The ops that call each function."""
    return _bodies(editor).callers


def _bodies(editor: Editor) -> Bodies:
    return editor.cached("bodies", lambda: Bodies(editor.graph))


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
