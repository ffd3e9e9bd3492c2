"""Many inputs of one op, set at once: to set each by itself is to walk over the node each time."""

from __future__ import annotations

from collections.abc import Sequence

from graphpatch import names
from graphpatch.graph import edits, nodedef
from graphpatch.graph.body import Node
from graphpatch.graph.provenance import Author, signed

MANY = 8


def set_many(node: Node, slots: Sequence[int], text: str, author: Author) -> bool:
    """Let an op read a tensor in these slots, and write down each, as `Editor.set_input` does.

    False, and nothing done, where they are few, or inputs are spelled as TensorFlow does not.
    """
    body, payload, was = node.body, node.body.payload(node.index), node.inputs
    if len(slots) < MANY or not nodedef.is_same(nodedef.with_inputs(payload, was), payload):
        return False
    new = list(was)
    for slot in slots:
        new[slot] = text
    body.heads.inputs[node.index] = tuple(new)
    if "readers" in body.__dict__:
        _move(node, slots, {names.op_of(was[slot]) for slot in slots}, names.op_of(text))
    told = [author.edit(edits.InputSet, slot=slot, was=was[slot]) for slot in slots]
    body.write(node.index, signed(nodedef.with_inputs(payload, new), *told))
    return True


def _move(node: Node, slots: Sequence[int], old: set[str], new: str) -> None:
    """Let the slots be read from one op that were read from others."""
    readers = node.body.readers
    moved = {(node.index, slot): None for slot in slots}
    for name in old:
        readers[name][:] = [one for one in readers[name] if one not in moved]
    readers.setdefault(new, []).extend(moved)
