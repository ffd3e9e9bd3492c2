"""An op put in line before a match as one op: behind the tensors that it reads from outside."""

from __future__ import annotations

from graphpatch import names
from graphpatch.errors import PatchError
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.opdefs import FlatArg
from graphpatch.patches import at, op_args
from graphpatch.patches.group import MatchedGroup
from graphpatch.patches.inline import InlineOp, refuse_fixed
from graphpatch.patches.input_order import ByInput, at_one
from graphpatch.patches.reach import check_reached


def group_tensors_at(group: MatchedGroup, where: str) -> list[FlatArg]:
    """The tensors at that place of a group."""
    side, place = at.parsed(where)
    flat = op_args.known_outputs(group.last) if side == "output" else list(group.args)
    return flat if place is None else flat[place : place + 1]


def by_input(group: MatchedGroup, where: str) -> ByInput:
    """What a patch at that place of a group does at each tensor that the group reads."""
    side, place = at.parsed(where)
    return at_one(group, place) if side == "input" and place is not None else ByInput(["dy"])


def put_beside_group(
    group: MatchedGroup, editor: Editor, inline: InlineOp, where: str
) -> list[Node]:
    """Put `inline` on the side of a group that `where` names, and return the ops added for it.

    A tensor that the group reads in several places comes through one op, so that what flows back
    from all of them passes it together.
    """
    side, place = at.parsed(where)
    if side == "output":
        return at.put_at(group.last, editor, inline, where)
    places = range(len(group.args)) if place is None else [place]
    if place is not None and place >= len(group.args):
        raise PatchError(f"the match has no input {place}; {group.reading()}")
    asked = [one for one in places if op_args.carries(group.args[one])]
    if not asked:
        raise PatchError(f"no gradient flows into the match there; {group.reading()}")
    check_reached(group.last, editor)
    return [_put_filter(group, one, editor, inline) for one in asked]


def _put_filter(group: MatchedGroup, place: int, editor: Editor, inline: InlineOp) -> Node:
    text, (first, slot) = group.reads[place], group.slots[place]
    refuse_fixed(first, slot)
    op, values = inline.of(group.args[place].dtype or "")
    name = f"{group.last.name}/{inline.suffix}_{place}"
    added = editor.add(name, op, [text], values, beside=first, before=True)
    for node in group.nodes:
        for at_slot, read in enumerate(node.data_inputs):
            if names.parse(read) == names.parse(text):
                editor.set_input(node, at_slot, added.tensor(0))
    return added
