"""A match as one op: what it must not hold, and whether it gives the shape that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from graphpatch import names
from graphpatch.differentiation.shapes import KEEPING_IMAGES, Shapes
from graphpatch.differentiation.wiring import Wiring
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.patches.group import MatchedGroup
from graphpatch.patches.reach import check_reached, refuse_boundary, refuse_carried

Keeps = Literal["same", "broadcast", "unknown", "other"]


def keeps_shape(group: MatchedGroup, place: int) -> Keeps:
    """Return how the shape of the group's output is that of its input number `place`.

    "same", in every run; "broadcast", at least as large; "other" where the shapes are known to
    differ; "unknown".
    """
    broadcasts = {str(names.parse(group.reads[place])): False}
    grown = True
    while grown:  # a group is small; its ops are in the file's order
        grown = False
        for node in group.nodes:
            output = str(names.parse(node.tensor(0))) if node.outputs else ""
            is_broadcast = _broadcasts_output(node, broadcasts)
            if output and output not in broadcasts and is_broadcast is not None:
                broadcasts[output], grown = is_broadcast, True
    is_broadcast_last = broadcasts.get(str(names.parse(group.last.tensor(0))))
    if is_broadcast_last is None:
        return _compare_shapes(group, place)
    return "broadcast" if is_broadcast_last else "same"


def _broadcasts_output(node: Node, broadcasts: dict[str, bool]) -> bool | None:
    """Whether the shape is broadcast in an op's output 0; None where that has another shape."""
    op = node.opdef
    if op is None:
        return None
    slots = (0,) if node.op in KEEPING_IMAGES else op.keeps_shape
    texts = [str(names.parse(text)) for text in node.data_inputs]
    known = [
        broadcasts[texts[slot]] for slot in slots if slot < len(texts) and texts[slot] in broadcasts
    ]
    return None if not known else op.broadcasts or any(known)


def _compare_shapes(group: MatchedGroup, place: int) -> Keeps:
    wiring = Wiring(group.last.body)
    shapes = Shapes(wiring)
    shape_read, shape_given = (
        shapes.of(wiring.tensor(group.reads[place])),
        shapes.of((group.last.index, 0)),
    )
    if shape_read is None or shape_given is None or None in shape_read or None in shape_given:
        return "unknown"
    return "same" if shape_read == shape_given else "other"


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
