"""The place of an op that a patch changes: how TensorFlow differentiates the body that it is in."""

from __future__ import annotations

from graphpatch.differentiation.bodies import OP_BY_OP as OP_BY_OP
from graphpatch.differentiation.bodies import Bodies
from graphpatch.differentiation.bodies import Place as Place
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor


def place_of(node: Node, editor: Editor) -> Place:
    """The place of an op: how TensorFlow comes to the body that it is in."""
    return _bodies(editor).place_of(node)


def callers_of(editor: Editor) -> dict[str, list[Node]]:
    """The ops that call each function."""
    return _bodies(editor).callers


def _bodies(editor: Editor) -> Bodies:
    return editor.cached("bodies", lambda: Bodies(editor.graph))
