"""The fields that an edit takes out of a NodeDef, written down so that they can be put back.

Most edits replace one field by another, or append one, and what was there is told in a word. A
field that was dropped, was there twice, or was not encoded as we would, is written down in `raw`:
`[place, its bytes in hex]` of each, places counted without our own attr.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphpatch.errors import ModelError
from graphpatch.graph.edits import PROVENANCE_ATTR, Raw
from graphpatch.graph.nodedef import (
    ATTR,
    INPUT,
    NAME,
    Payload,
    PayloadPart,
    attr_entry,
    fields_in_order,
    mentions,
    payload_of,
    with_attr,
    with_input,
    with_name,
)
from graphpatch.graph.wire import Piece, encoded, piece_bytes


def displaced_attr(payload: Payload, key: str, was: bytes | None, drop: bool) -> Raw:
    """What to write down of an attr besides its value, before it is set or dropped."""
    if was is None or not mentions(payload, key):
        return ()
    found = [(at, part) for at, part in enumerate(_bare(payload)) if part[:2] == (ATTR, key)]
    return () if not drop and _is_plain(found, attr_entry(key, was)) else _raw(found)


def displaced_name(payload: Payload, was: str) -> Raw:
    """What to write down of a name besides the name, before it is another."""
    found = [(at, part) for at, part in enumerate(_bare(payload)) if part.number == NAME]
    return () if _is_plain(found, encoded(NAME, was.encode())) else _raw(found)


def displaced_input(payload: Payload, slot: int, was: str) -> Raw:
    """What to write down of an input besides its text, before it is another."""
    found = [(at, part) for at, part in enumerate(_bare(payload)) if part.number == INPUT]
    found = found[slot : slot + 1]
    return () if _is_plain(found, encoded(INPUT, was.encode())) else _raw(found)


def restore_attr(payload: Payload, key: str, was: str | None, raw: Raw) -> Payload:
    """The payload with the attr as it was; neither payload has our own attr."""
    if not raw:
        return with_attr(payload, key, None if was is None else bytes.fromhex(was))
    kept = [part.piece for part in fields_in_order(payload) if part[:2] != (ATTR, key)]
    return _put_back(kept, raw, ATTR, key)


def restore_name(payload: Payload, was: str, raw: Raw) -> Payload:
    """The payload with the name as it was."""
    if not raw:
        return with_name(payload, was)
    kept = [part.piece for part in fields_in_order(payload) if part.number != NAME]
    return _put_back(kept, raw, NAME)


def restore_input(payload: Payload, slot: int, was: str, raw: Raw) -> Payload:
    """The payload with the input in this slot as it was."""
    if not raw:
        return with_input(payload, slot, was)
    kept, inputs = [], 0
    for part in fields_in_order(payload):
        inputs += part.number == INPUT
        if part.number != INPUT or inputs != slot + 1:
            kept.append(part.piece)
    return _put_back(kept, raw, INPUT)


def _bare(payload: Payload) -> list[PayloadPart]:
    return [part for part in fields_in_order(payload) if part.key != PROVENANCE_ATTR]


def _is_plain(found: Sequence[tuple[int, PayloadPart]], plain: bytes) -> bool:
    """Whether a field is there once, and encoded as we would."""
    return len(found) == 1 and piece_bytes(found[0][1].piece) == plain


def _raw(found: Sequence[tuple[int, PayloadPart]]) -> Raw:
    return tuple((at, piece_bytes(part.piece).hex()) for at, part in found)


def _put_back(pieces: list[Piece], raw: Raw, number: int, key: str = "") -> Payload:
    """With the fields again; ModelError where one is another field than the edit tells of."""
    for at, text in raw:
        piece = bytes.fromhex(text)
        if [part[:2] for part in fields_in_order([piece])] != [(number, key)]:
            raise ModelError(
                f"its attr {PROVENANCE_ATTR} would put back another field of the node than it "
                f"tells of; graphpatch did not write it"
            )
        pieces.insert(at, piece)
    return payload_of(pieces)
