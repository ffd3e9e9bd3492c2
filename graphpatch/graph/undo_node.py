"""The edits of some rules taken back on one node, in its own bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphpatch.errors import ModelError, PatchError
from graphpatch.graph import provenance
from graphpatch.graph.body import Node
from graphpatch.graph.displaced import restore_attr, restore_input, restore_name
from graphpatch.graph.nodedef import INPUT, NAME, OP, Payload, field_text, parts, with_attr
from graphpatch.graph.provenance import Entry

IsWanted = Callable[[Entry], bool]

# What an edit finds on an op that a later edit rests on, so that it cannot be taken back first.
RESTS_ON = {"renamed": {"renamed", "enclosed"}, "enclosed": {"renamed", "attr", "input"}}


@dataclass
class Undone:
    """A node while its edits are taken back; `payload` is without provenance."""

    node: Node
    payload: Payload
    name: str
    op: str
    inputs: list[str]
    entries: list[Entry]

    def signed(self) -> Payload:
        """The payload with the edits that are left written down."""
        return provenance.rewritten(self.payload, self.entries)


def undo_node(node: Node, entries: Sequence[Entry], wanted: IsWanted) -> Undone:
    """Take back the edits that are wanted, newest first.

    Raises PatchError where an edit of another rule rests on one of them.
    """
    payload = with_attr(node.body.payload(node.index), provenance.KEY, None)
    undone = Undone(node, payload, node.name, node.op, list(node.inputs), list(entries))
    for place in reversed(range(len(entries))):
        if wanted(entries[place]):
            entry = undone.entries.pop(place)
            later = undone.entries[place:]
            refuse(next((one for one in later if _rests_on(one, entry)), None), node, entry)
            if entry["did"] in UNDO:
                UNDO[entry["did"]](undone, entry, later)
    _check(undone)
    return undone


def _check(undone: Undone) -> None:
    """Raise ModelError where what was written down does not make a NodeDef of it again."""
    found: dict[int, list[str]] = {NAME: [""], OP: [""], INPUT: []}
    for part in parts(undone.payload):
        if part.number in found:
            found[part.number].append(field_text(part.piece))
    if (found[NAME][-1], found[OP][-1], found[INPUT]) != (undone.name, undone.op, undone.inputs):
        raise ModelError(f"{undone.node}: {provenance.KEY} tells of another op than this one")


def refuse(other: Entry | None, node: Node, entry: Entry) -> None:
    """Raise PatchError for an edit of another rule that rests on this one."""
    if other is not None:
        raise PatchError(
            f"rule {other['rule']!r} builds on what rule {entry['rule']!r} did (see {node}); "
            f"take that one off first"
        )


def _rests_on(other: Entry, entry: Entry) -> bool:
    rests = RESTS_ON.get(entry["did"], {"enclosed"} if entry["did"] in UNDO else set())
    return other["did"] in rests


def pass_on(entry: Entry, later: Sequence[Entry], key: str) -> bool:
    """Whether a later edit changed the same once more: then it is that one's `was` that goes back.

    `key` says what of it: the attr, the slot, the output.
    """
    for other in later:
        if other["did"] == entry["did"] and other[key] == entry[key]:
            other.pop("raw", None)
            other.update({field: entry[field] for field in ("was", "raw") if field in entry})
            return True
    return False


def _attr(undone: Undone, entry: Entry, later: Sequence[Entry]) -> None:
    if not pass_on(entry, later, "attr"):
        raw = entry.get("raw")
        undone.payload = restore_attr(undone.payload, entry["attr"], entry["was"], raw)


def _input(undone: Undone, entry: Entry, later: Sequence[Entry]) -> None:
    if not pass_on(entry, later, "slot"):
        slot, was = entry["slot"], entry["was"]
        if slot >= len(undone.inputs):
            raise ModelError(f"{undone.node} has no input {slot}, of which {provenance.KEY} tells")
        undone.payload = restore_input(undone.payload, slot, was, entry.get("raw"))
        undone.inputs[slot] = was


def _renamed(undone: Undone, entry: Entry, later: Sequence[Entry]) -> None:
    undone.payload = restore_name(undone.payload, entry["was"], entry.get("raw"))
    undone.name = entry["was"]


def _enclosed(undone: Undone, entry: Entry, later: Sequence[Entry]) -> None:
    undone.payload, undone.op = [bytes.fromhex(entry["node"])], entry["was"]


UNDO: dict[str, Callable[[Undone, Entry, Sequence[Entry]], None]] = {
    "attr": _attr,
    "input": _input,
    "renamed": _renamed,
    "enclosed": _enclosed,
}
