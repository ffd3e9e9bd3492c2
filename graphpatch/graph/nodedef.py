"""One serialized NodeDef, read and changed field by field.

A payload is the NodeDef's fields in their order, as pieces: small ones as bytes, large ones
(the tensor of a Const) as a span of the file. A change replaces, appends or drops one field and
leaves every other byte as it was, fields that we don't know included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from graphpatch.graph.heads import LARGE, entry
from graphpatch.graph.wire import (
    BYTES,
    Field,
    Piece,
    Source,
    Span,
    encoded,
    fields,
    message,
    piece_bytes,
    utf8,
)

NAME, OP, INPUT, DEVICE, ATTR = 1, 2, 3, 4, 5
_HEAD_TAGS = (NAME << 3 | BYTES, OP << 3 | BYTES)
_INPUT_TAG = (INPUT << 3 | BYTES,)
_TEXTS = {NAME: "name", OP: "op", DEVICE: "device"}

Payload = list[Piece]


class PayloadPart(NamedTuple):
    """One field of a NodeDef: its number (0: none that NodeDef has), of an attr its name."""

    number: int
    key: str
    piece: Piece


def fields_in_order(payload: Payload) -> Iterator[PayloadPart]:
    """The fields of a NodeDef one by one, in their order."""
    for _, source, field in _fields(payload):
        number = field.number if field.wire == BYTES and field.number <= ATTR else 0
        key = _entry(source, field)[0] if number == ATTR else ""
        large = field.end - field.start >= LARGE
        span = Span(source, field.start, field.end)
        yield PayloadPart(number, key, span if large else piece_bytes(span))


def field_text(piece: Piece) -> str:
    """The text that a field of a NodeDef holds, of those that hold one."""
    span = Span(Source(piece), 0, len(piece)) if isinstance(piece, bytes) else piece
    (field,) = fields(span.source.data, span.start, span.end)
    return utf8(span.source.data, field.value, field.end)


def payload_at(source: Source, start: int) -> Payload:
    """The payload of the NodeDef whose field starts at `start`."""
    value, end = entry(source, start)
    if end - value < LARGE:
        return [source.data[value:end]]
    out: Payload = []
    start = value
    for field in fields(source.data, value, end):
        if field.end - field.value >= LARGE:
            out += [source.data[start : field.start]] if start < field.start else []
            out.append(Span(source, field.start, field.end))
            start = field.end
    return [*out, source.data[start:end]] if start < end else out


def encode(name: str, op: str, inputs: list[str], device: str, attrs: dict[str, bytes]) -> Payload:
    """A new NodeDef; `attrs` holds serialized AttrValues, written in the order of their names."""
    out = head_bytes(name, op, inputs)
    out += encoded(DEVICE, device.encode()) if device else b""
    return [out + b"".join(attr_entry(key, attrs[key]) for key in sorted(attrs))]


def head_bytes(name: str, op: str, inputs: Sequence[str]) -> bytes:
    """A NodeDef up to its last input, as TensorFlow spells it."""
    head = encoded(NAME, name.encode()) + encoded(OP, op.encode())
    return head + b"".join([encoded(INPUT, text.encode()) for text in inputs])


def behind_inputs(payload: Payload, name: str, op: str, inputs: Sequence[str]) -> bytes | None:
    """What a NodeDef has behind its inputs: its device and attrs. Most nodes are alike in these.

    None for a large NodeDef, and for one that is spelled in another way than TensorFlow does.
    """
    if len(payload) != 1 or not isinstance(payload[0], bytes):
        return None
    raw, at, last = payload[0], 0, len(payload[0]) - 1
    for tag in _HEAD_TAGS + _INPUT_TAG * len(inputs):
        if at >= last or raw[at] != tag or raw[at + 1] > 0x7F:
            head = head_bytes(name, op, inputs)  # a name of more than 127 bytes
            return raw[len(head) :] if raw.startswith(head) else None
        at += 2 + raw[at + 1]
    return raw[at:]


def without_attrs(entries: bytes, keys: Iterable[str]) -> bytes:
    """The entries of a NodeDef behind its inputs, without those of some attrs."""
    named = tuple(encoded(1, key.encode()) for key in keys)
    return b"".join(
        entries[field.start : field.end]
        for field in fields(entries, 0, len(entries))
        if not (field.holds(ATTR) and entries.startswith(named, field.value))
    )


def attr_entry(key: str, value: bytes) -> bytes:
    """A serialized AttrValue as an entry of NodeDef.attr."""
    return encoded(ATTR, encoded(1, key.encode()) + encoded(2, value))


def text_field(payload: Payload, number: int) -> str:
    """The string field `number`, or nothing; the last counts where it is there several times."""
    if len(payload) == 1 and isinstance(payload[0], bytes):
        return str(getattr(message(NodeDef, payload[0]), _TEXTS[number]))
    found = ""
    for piece, data, field in _fields(payload):
        if field.holds(number) and isinstance(piece, bytes):
            found = utf8(data.data, field.value, field.end)
    return found


def attr_spans(payload: Payload) -> dict[str, Span]:
    """Where each attr's serialized AttrValue lies, unread."""
    out = {}
    for _, data, field in _fields(payload):
        if field.holds(ATTR):
            key, value = _entry(data, field)
            out[key] = Span(value.source, value.start, value.end)
    return out


def attr_span(payload: Payload, key: str) -> Span | None:
    """Where one attr's serialized AttrValue lies; None where there is no such attr."""
    return attr_spans(payload).get(key) if mentions(payload, key) else None


def attr_key(span: Span) -> str:
    """The attr that a field of a NodeDef is; nothing where it is none."""
    (field,) = fields(span.source.data, span.start, span.end)
    return _entry(span.source, field)[0] if field.holds(ATTR) else ""


def mentions(payload: Payload, key: str) -> bool:
    """Whether the payload may have this attr; quick, and wrong only where it says yes."""
    name = key.encode()
    return any(isinstance(piece, Span) or name in piece for piece in payload)


def is_wide(payload: Payload) -> bool:
    """Whether it is long by what is read of it: thousands of inputs, not a tensor."""
    return any(isinstance(piece, bytes) and len(piece) >= LARGE for piece in payload)


def attr_values(
    payload: Payload, known: Mapping[str, Span] | None = None
) -> Mapping[str, AttrValue]:
    """The attrs of a small NodeDef, parsed in one call; of a large one those that are small.

    `known` are the spans of its attrs, where they were asked for before.
    """
    if len(payload) == 1 and isinstance(payload[0], bytes):
        found: Mapping[str, AttrValue] = message(NodeDef, payload[0]).attr
        return found
    spans = attr_spans(payload) if known is None else known
    small = {key: span for key, span in spans.items() if span.end - span.start < LARGE}
    return {key: attr_value(span) for key, span in small.items()}


def attr_value(span: Span) -> AttrValue:
    """The AttrValue that lies there."""
    return message(AttrValue, span.source.data[span.start : span.end])


def with_attr(payload: Payload, key: str, value: bytes | None) -> Payload:
    """The payload with this attr: in its old place, else at the end; None drops it."""
    new = b"" if value is None else attr_entry(key, value)
    if not mentions(payload, key):
        return _appended(payload, new)
    places = [
        at
        for at, (_, data, field) in enumerate(_fields(payload))
        if field.holds(ATTR) and _entry(data, field)[0] == key
    ]
    return _replaced(payload, places, new) if places else _appended(payload, new)


def with_name(payload: Payload, name: str) -> Payload:
    """The payload under another name."""
    return _replaced(payload, _places(payload, NAME), encoded(NAME, name.encode()))


def with_input(payload: Payload, slot: int, text: str) -> Payload:
    """The payload with another input in this slot (control inputs count, as in NodeDef.input)."""
    return _replaced(payload, [_places(payload, INPUT)[slot]], encoded(INPUT, text.encode()))


def with_inputs(payload: Payload, texts: Sequence[str]) -> Payload:
    """The payload with these inputs, instead of all that it has."""
    new = b"".join(encoded(INPUT, text.encode()) for text in texts)
    places = _places(payload, INPUT)
    return _replaced(payload, places, new) if places else _appended(payload, new)


def is_same(payload: Payload, other: Payload) -> bool:
    """Whether two payloads are the same bytes."""
    return b"".join(map(piece_bytes, payload)) == b"".join(map(piece_bytes, other))


def _entry(data: Source, field: Field) -> tuple[str, Span]:
    key, value = "", Span(data, field.end, field.end)
    for part in fields(data.data, field.value, field.end):
        if part.holds(1):
            key = utf8(data.data, part.value, part.end)
        elif part.holds(2):
            value = Span(data, part.value, part.end)
    return key, value


def _fields(payload: Payload) -> Iterator[tuple[Piece, Source, Field]]:
    for piece in payload:
        span = Span(Source(piece), 0, len(piece)) if isinstance(piece, bytes) else piece
        for field in fields(span.source.data, span.start, span.end):
            yield piece, span.source, field


def _appended(payload: Payload, new: bytes) -> Payload:
    if payload and isinstance(payload[-1], bytes):
        return [*payload[:-1], payload[-1] + new]
    return [*payload, new]


def _places(payload: Payload, number: int) -> list[int]:
    return [at for at, (_, _, field) in enumerate(_fields(payload)) if field.holds(number)]


def _replaced(payload: Payload, places: list[int], new: bytes) -> Payload:
    """The payload without the fields at these places, counted from 0; `new` at the last of them."""
    out: Payload = []
    dropped = set(places)
    for at, (_, source, field) in enumerate(_fields(payload)):
        if at in dropped:
            out.append(new if at == places[-1] else b"")
        elif field.end - field.start >= LARGE:
            out.append(Span(source, field.start, field.end))
        else:
            out.append(source.data[field.start : field.end])
    return payload_of(out)


def payload_of(pieces: Iterable[Piece]) -> Payload:
    """The payload of these fields: small ones that lie side by side as one piece."""
    out: Payload = []
    for is_bytes, some in groupby(pieces, lambda piece: isinstance(piece, bytes)):
        side_by_side = list(some)
        out += [b"".join(map(piece_bytes, side_by_side))] if is_bytes else side_by_side
    return out
