"""Whether a match as one op gives a tensor of the shape of one that it reads."""

from __future__ import annotations

from typing import Literal

from graphpatch import names
from graphpatch.differentiation.shape_windows import KEPT
from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Wiring
from graphpatch.graph.body import Node
from graphpatch.patches.group import Group

Keeps = Literal["same", "broadcast", "unknown", "other"]


def keeps_shape(group: Group, place: int) -> Keeps:
    """How the shape of the group's output is that of its input number `place`.

    "same", in every run; "broadcast", at least as large; "other" where the shapes are known to
    differ; "unknown".
    """
    found = {str(names.parse(group.reads[place])): False}
    grown = True
    while grown:  # a group is small; its ops are in the file's order
        grown = False
        for node in group.nodes:
            output = str(names.parse(node.tensor(0))) if node.outputs else ""
            is_broadcast = _given_on(node, found)
            if output and output not in found and is_broadcast is not None:
                found[output], grown = is_broadcast, True
    kept = found.get(str(names.parse(group.last.tensor(0))))
    if kept is None:
        return _compared(group, place)
    return "broadcast" if kept else "same"


def _given_on(node: Node, found: dict[str, bool]) -> bool | None:
    """Whether the shape is broadcast in an op's output 0; None where that has another shape."""
    op = node.opdef
    if op is None:
        return None
    slots = (0,) if node.op in KEPT else op.keeps_shape
    texts = [str(names.parse(text)) for text in node.data_inputs]
    there = [found[texts[slot]] for slot in slots if slot < len(texts) and texts[slot] in found]
    return None if not there else op.broadcasts or any(there)


def _compared(group: Group, place: int) -> Keeps:
    wiring = Wiring(group.last.body)
    shapes = Shapes(wiring)
    one, two = shapes.of(wiring.tensor(group.reads[place])), shapes.of((group.last.index, 0))
    if one is None or two is None or None in one or None in two:
        return "unknown"
    return "same" if one == two else "other"
