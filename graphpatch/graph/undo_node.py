"""The edits of some rules taken back on one node, in its own bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from graphpatch.errors import ModelError, PatchError
from graphpatch.graph.body import Node
from graphpatch.graph.displaced import restore_attr, restore_input, restore_name
from graphpatch.graph.edits import (
    PROVENANCE_ATTR,
    AttrSet,
    Edit,
    Enclosed,
    InputSet,
    Renamed,
    rewritten,
)
from graphpatch.graph.inputs import MANY_INPUTS
from graphpatch.graph.nodedef import (
    INPUT,
    NAME,
    OP,
    Payload,
    field_text,
    fields_in_order,
    is_same,
    with_attr,
    with_inputs,
)

IsWanted = Callable[[Edit], bool]

# What an edit finds on an op that a later edit rests on, so that it cannot be taken back first.
RESTS_ON: dict[type[Edit], tuple[type[Edit], ...]] = {
    Renamed: (Renamed, Enclosed),
    Enclosed: (Renamed, AttrSet, InputSet),
    AttrSet: (Enclosed,),
    InputSet: (Enclosed,),
}


@dataclass
class UndoneNode:
    """A node while its edits are taken back; `payload` is without provenance."""

    node: Node
    payload: Payload
    name: str
    op: str
    inputs: list[str]
    entries: list[Edit]
    is_plain: bool = False  # all inputs are spelled as TensorFlow does, and set at the end at once

    def signed(self) -> Payload:
        """The payload with the edits that are left written down."""
        return rewritten(self.payload, self.entries)


def undo_node(node: Node, entries: Sequence[Edit], wanted: IsWanted) -> UndoneNode:
    """Take back the edits that are wanted, newest first.

    Raises PatchError where an edit of another rule rests on one of them.
    """
    payload = with_attr(node.body.payload(node.index), PROVENANCE_ATTR, None)
    undone = UndoneNode(node, payload, node.name, node.op, list(node.inputs), list(entries))
    undone.is_plain = has_plain_inputs(undone, entries)
    for place in reversed(range(len(entries))):
        if wanted(entries[place]):
            edit = undone.entries.pop(place)
            rests = RESTS_ON.get(type(edit), ())
            later = (one for one in undone.entries[place:] if isinstance(one, rests))
            refuse_dependent(next(later, None), node, edit.rule)
            _undo(undone, edit, place)
    if undone.is_plain:
        undone.payload = with_inputs(undone.payload, undone.inputs)
    _check_decodes(undone)
    return undone


def has_plain_inputs(undone: UndoneNode, entries: Sequence[Edit]) -> bool:
    """Whether inputs can be set at once: many edits, none of which needs the bytes of an input."""
    plain = (isinstance(one, InputSet | Renamed) and not one.raw for one in entries)
    if len(entries) < MANY_INPUTS or not all(plain):
        return False
    return is_same(with_inputs(undone.payload, undone.inputs), undone.payload)


def _check_decodes(undone: UndoneNode) -> None:
    """Raise ModelError where what was written down does not make a NodeDef of it again."""
    found: dict[int, list[str]] = {NAME: [""], OP: [""], INPUT: []}
    for part in fields_in_order(undone.payload):
        if part.number in found:
            found[part.number].append(field_text(part.piece))
    if (found[NAME][-1], found[OP][-1], found[INPUT]) != (undone.name, undone.op, undone.inputs):
        raise ModelError(f"{undone.node}: {PROVENANCE_ATTR} tells of another op than this one")


def refuse_dependent(other: Edit | None, node: Node, rule: str) -> None:
    """Raise PatchError for an edit of another rule that rests on what this one did."""
    if other is not None:
        which = f" ({other.id})" if other.rule == rule else ""
        raise PatchError(
            f"rule {other.rule!r}{which} builds on what rule {rule!r} did (see {node}); "
            f"take that one off first"
        )


def _undo(undone: UndoneNode, edit: Edit, place: int) -> None:
    """Take back one edit; `place` is where later ones begin among those that are left."""
    if isinstance(edit, AttrSet | InputSet) and _passed_on(undone, edit, place):
        return
    match edit:
        case AttrSet():
            undone.payload = restore_attr(undone.payload, edit.attr, edit.was, edit.raw)
        case InputSet():
            _undo_input(undone, edit)
        case Renamed():
            undone.payload = restore_name(undone.payload, edit.was, edit.raw)
            undone.name = edit.was
        case Enclosed():
            undone.payload, undone.op = [bytes.fromhex(edit.node)], edit.was


def _passed_on(undone: UndoneNode, edit: AttrSet | InputSet, place: int) -> bool:
    """Whether a later edit changed the same once more: that one's `was` goes back then."""
    for at, other in enumerate(undone.entries[place:], place):
        if isinstance(other, AttrSet | InputSet) and other.target == edit.target:
            undone.entries[at] = replace(other, was=edit.was, raw=edit.raw)
            return True
    return False


def _undo_input(undone: UndoneNode, edit: InputSet) -> None:
    if edit.slot >= len(undone.inputs):
        raise ModelError(
            f"{undone.node} has no input {edit.slot}, of which {PROVENANCE_ATTR} tells"
        )
    if not undone.is_plain:
        undone.payload = restore_input(undone.payload, edit.slot, edit.was, edit.raw)
    undone.inputs[edit.slot] = edit.was
