"""Ops that count as one: what must not be among them, and what is written down on them."""

from __future__ import annotations

from collections.abc import Sequence

from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.patches.carrier import refuse_carried
from graphpatch.patches.function_carrier import refuse_boundary
from graphpatch.patches.reach import check_reached


def refuse_behind(nodes: Sequence[Node], last: Node, editor: Editor) -> None:
    """Raise PatchError where these ops, of which one is the last, cannot count as one."""
    for node in nodes:
        refuse_boundary(node)
        refuse_carried(node)
    check_reached(last, editor)


def shadow_behind(nodes: Sequence[Node], last: Node, editor: Editor) -> None:
    """Write down that no gradient reaches them any more; on the last it is written as it moves."""
    for node in nodes:
        if node != last and node.data_inputs:
            editor.shadow(node)
