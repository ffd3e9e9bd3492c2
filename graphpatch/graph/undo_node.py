"""The edits of some rules taken back on one node, in its own bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from graphpatch.errors import ModelError, PatchError
from graphpatch.graph import provenance
from graphpatch.graph.body import Node
from graphpatch.graph.displaced import restore_attr, restore_input, restore_name
from graphpatch.graph.edits import AttrSet, Edit, Enclosed, InputSet, Raw, Renamed
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
class Undone:
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
        return provenance.rewritten(self.payload, self.entries)


def undo_node(node: Node, entries: Sequence[Edit], wanted: IsWanted) -> Undone:
    """Take back the edits that are wanted, newest first.

    Raises PatchError where an edit of another rule rests on one of them.
    """
    payload = with_attr(node.body.payload(node.index), provenance.PROVENANCE_ATTR, None)
    undone = Undone(node, payload, node.name, node.op, list(node.inputs), list(entries))
    undone.is_plain = has_plain_inputs(undone, entries)
    for place in reversed(range(len(entries))):
        if wanted(entries[place]):
            edit = undone.entries.pop(place)
            rests = RESTS_ON.get(type(edit), ())
            later = (one for one in undone.entries[place:] if isinstance(one, rests))
            refuse_dependent(next(later, None), node, edit.rule)
            if type(edit) in UNDO:
                UNDO[type(edit)](undone, edit, place)
    if undone.is_plain:
        undone.payload = with_inputs(undone.payload, undone.inputs)
    _check_decodes(undone)
    return undone


def has_plain_inputs(undone: Undone, entries: Sequence[Edit]) -> bool:
    """Whether inputs can be set at once: many edits, none of which needs the bytes of an input."""
    plain = (isinstance(one, InputSet | Renamed) and _raw(one) is None for one in entries)
    if len(entries) < MANY_INPUTS or not all(plain):
        return False
    return is_same(with_inputs(undone.payload, undone.inputs), undone.payload)


def _check_decodes(undone: Undone) -> None:
    """Raise ModelError where what was written down does not make a NodeDef of it again."""
    found: dict[int, list[str]] = {NAME: [""], OP: [""], INPUT: []}
    for part in fields_in_order(undone.payload):
        if part.number in found:
            found[part.number].append(field_text(part.piece))
    if (found[NAME][-1], found[OP][-1], found[INPUT]) != (undone.name, undone.op, undone.inputs):
        raise ModelError(
            f"{undone.node}: {provenance.PROVENANCE_ATTR} tells of another op than this one"
        )


def refuse_dependent(other: Edit | None, node: Node, rule: str) -> None:
    """Raise PatchError for an edit of another rule that rests on what this one did."""
    if other is not None:
        which = f" ({other.id})" if other.rule == rule else ""
        raise PatchError(
            f"rule {other.rule!r}{which} builds on what rule {rule!r} did (see {node}); "
            f"take that one off first"
        )


def _passed_on(undone: Undone, edit: AttrSet | InputSet, place: int, key: str) -> bool:
    """Whether a later edit changed the same once more: then it is that one's `was` that goes back.

    `key` says what of it: the attr, or the slot.
    """
    for at, other in enumerate(undone.entries[place:], place):
        if type(other) is type(edit) and getattr(other, key) == getattr(edit, key):
            undone.entries[at] = replace(other, was=edit.was, raw=edit.raw)
            return True
    return False


def _raw(edit: AttrSet | InputSet | Renamed) -> Raw | None:
    return None if isinstance(edit.raw, msgspec.UnsetType) else edit.raw


def _attr_before(undone: Undone, edit: AttrSet, place: int) -> None:
    if not _passed_on(undone, edit, place, "attr"):
        undone.payload = restore_attr(undone.payload, edit.attr, edit.was, _raw(edit))


def _input_before(undone: Undone, edit: InputSet, place: int) -> None:
    if not _passed_on(undone, edit, place, "slot"):
        slot, was = edit.slot, edit.was
        if slot >= len(undone.inputs):
            raise ModelError(
                f"{undone.node} has no input {slot}, of which {provenance.PROVENANCE_ATTR} tells"
            )
        if not undone.is_plain:
            undone.payload = restore_input(undone.payload, slot, was, _raw(edit))
        undone.inputs[slot] = was


def _renamed(undone: Undone, edit: Renamed, place: int) -> None:
    undone.payload = restore_name(undone.payload, edit.was, _raw(edit))
    undone.name = edit.was


def _enclosed(undone: Undone, edit: Enclosed, place: int) -> None:
    undone.payload, undone.op = [bytes.fromhex(edit.node)], edit.was


UNDO: dict[type[Edit], Callable[[Undone, Any, int], None]] = {
    AttrSet: _attr_before,
    InputSet: _input_before,
    Renamed: _renamed,
    Enclosed: _enclosed,
}
