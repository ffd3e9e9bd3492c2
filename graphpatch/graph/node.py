"""Nodes: the bytes of one NodeDef, and the bodies that hold nodes in columns.

A payload is the NodeDef's fields in their order, as pieces: small ones as bytes, large ones (the
tensor of a Const) as a span of the file. A body is the main graph or a function of the library.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.op_def_pb2 import OpDef as OpDefProto

from graphpatch import names, opdefs
from graphpatch.errors import ModelError, did_you_mean
from graphpatch.graph.record import PROVENANCE_ATTR, Author, NodeRecord, node_record, read_attr
from graphpatch.graph.wire import (
    BYTES,
    LARGE,
    Field,
    Piece,
    Source,
    Span,
    encoded,
    entry,
    fields,
    message,
    piece_bytes,
    utf8,
)
from graphpatch.opdefs import FlatArg
from graphpatch.shown import one_line

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


MOST_ALIKE = 1 << 10  # bytes of a node up to which it is asked what others are alike
MOST_FORMS = 1 << 12  # of small nodes, whose lists of tensors are kept
MANY = 256  # tensors from which on a list of a node's tensors is kept


class Heads(msgspec.Struct):
    """What is known of each NodeDef of a body, by its place in the file."""

    starts: array[int] = msgspec.field(default_factory=lambda: array("Q"))
    names: list[str] = msgspec.field(default_factory=list)
    ops: list[str] = msgspec.field(default_factory=list)
    inputs: list[Sequence[str]] = msgspec.field(default_factory=list)
    marked: list[int] = msgspec.field(default_factory=list)  # those that may carry a record

    def copy(self) -> Heads:
        """The same heads, to be changed; where they lie in the file stays."""
        inputs = [tuple(one) if isinstance(one, list) else one for one in self.inputs]
        return Heads(self.starts, list(self.names), list(self.ops), inputs, list(self.marked))


class Large(msgspec.Struct, eq=False):
    """Payloads, where attrs lie, and lists of tensors, of large nodes; lists of all that are alike.

    What is kept holds for one payload: a node that is edited gets another one.
    """

    # Payloads by start in the file, spans by index.
    payloads: dict[int, Payload] = msgspec.field(default_factory=dict)
    spans: dict[int, tuple[Payload, Mapping[str, Span]]] = msgspec.field(default_factory=dict)
    lists: dict[tuple[int, str], tuple[Payload, list[FlatArg]]] = msgspec.field(
        default_factory=dict
    )

    forms: dict[tuple[str, str, bytes], list[FlatArg]] = msgspec.field(default_factory=dict)

    def payload(self, source: Source, start: int) -> Payload:
        """The payload of the NodeDef of the file whose field starts at `start`."""
        data, value = source.data, start + 2
        if (size := data[start + 1]) < 0x80:  # nearly all: no calls for them
            return [data[value : value + size]]
        if start in self.payloads:
            return self.payloads[start]
        value, end = entry(source, start)
        if end - value < LARGE:
            return [data[value:end]]
        self.payloads[start] = payload = payload_at(source, start)
        return payload

    def attr_spans(self, index: int, payload: Payload) -> Mapping[str, Span]:
        """Where each attr's serialized AttrValue lies."""
        known, spans = self.spans.get(index, (None, {}))
        if known is not payload:
            spans = attr_spans(payload)
            if len(payload) > 1 or is_wide(payload):
                self.spans[index] = payload, spans
        return spans

    def attr_span(self, index: int, payload: Payload, key: str) -> Span | None:
        """Where one attr's serialized AttrValue lies; None where there is no such attr."""
        may_be = is_wide(payload) or mentions(payload, key)
        return self.attr_spans(index, payload).get(key) if may_be else None

    def tensors(
        self, index: int, payload: Payload, which: str, found: Callable[[], list[FlatArg]]
    ) -> list[FlatArg]:
        """The inputs or outputs (`which`) of a node; `found` tells them the first time."""
        known, tensors = self.lists.get((index, which), (None, []))
        if known is None or known != payload:
            tensors = found()
            if len(tensors) >= MANY:
                self.lists[index, which] = payload, tensors
        return tensors

    def alike(
        self, form: tuple[str, str, bytes], found: Callable[[], list[FlatArg]]
    ) -> list[FlatArg]:
        """The inputs or outputs of a small node, by its op type, which of both, and its attrs."""
        tensors = found()
        if len(self.forms) < MOST_FORMS:
            self.forms[form] = tensors
        return tensors


MAIN = "main"
PROVENANCE = PROVENANCE_ATTR.encode()
COLOCATION, COLOCATED = "_class", b"_class"

# A list, or where one is edited that is long a dict without values.
Uses: TypeAlias = "list[tuple[int, int]] | dict[tuple[int, int], None]"


class Library(msgspec.Struct, eq=False):
    """The functions of a GraphDef, as far as one who calls them must know.

    `signatures` has each function as the op type of its calls, `gradients` its gradient function.
    `producer` is the GraphDef's version, `rules` are those that changed the graph, in their order.
    `bodies` and `function` give the graph's, while it lives.
    """

    signatures: dict[str, opdefs.OpDef] = msgspec.field(default_factory=dict)
    gradients: dict[str, str] = msgspec.field(default_factory=dict)
    producer: int = 0
    rules: list[Author] = msgspec.field(default_factory=list)
    bodies: Callable[[], Iterable[Body]] = tuple
    function: Callable[[str], Body | None] = lambda name: None

    def opdef(self, op: str) -> opdefs.OpDef | None:
        """What this op type looks like, or None where neither library nor TensorFlow has it."""
        return self.signatures.get(op) or opdefs.lookup(op)

    def copy(self) -> Library:
        """The same functions, to be added to without this one seeing it."""
        return Library(dict(self.signatures), dict(self.gradients), self.producer, list(self.rules))


class EditedNode(msgspec.Struct, eq=False):
    """A node that is edited: its NodeDef without fields as large as weights, these, its record."""

    node: NodeDef
    large: list[Span]
    record: NodeRecord
    written: Payload | None = None

    @classmethod
    def open(cls, payload: Payload, record: NodeRecord | None) -> EditedNode:
        """A node to be edited: the first time, it is kept in its record as it is."""
        spans = [one for one in payload if isinstance(one, Span)]
        large = [one for one in spans if record is None or attr_key(one) != PROVENANCE_ATTR]
        node = message(NodeDef, b"".join(one for one in payload if isinstance(one, bytes)))
        if record is None:
            record = node_record(_around_large(payload))
        else:
            node.attr.pop(PROVENANCE_ATTR, None)
        return cls(node, large, record)

    def payload(self) -> Payload:
        """The serialized NodeDef, with its record."""
        if self.written is None:
            self.node.attr[PROVENANCE_ATTR].list.CopyFrom(self.record.attr())
            self.written = [self.node.SerializeToString(deterministic=True), *self.large]
        return self.written

    def keep_large(self) -> None:
        """Put the large fields into the record, as an edit drops them from the node."""
        if self.large and not self.record.is_added:
            self.record.__dict__["original_bytes"] = (joined(self.record.original, self.large),)
        self.large = []


def _around_large(payload: Payload) -> tuple[bytes, ...]:
    """The parts of a NodeDef before, between and behind its large fields."""
    parts = [b""]
    for piece in payload:
        if isinstance(piece, bytes):
            parts[-1] += piece
        else:
            parts.append(b"")
    return tuple(parts)


def joined(parts: Iterable[bytes], large: Iterable[Span]) -> bytes:
    """The NodeDef of these parts, with large fields between them."""
    fields = [piece_bytes(one) for one in large]
    return b"".join(part + one for part, one in zip(parts, [*fields, b""], strict=True))


class Body(msgspec.Struct, eq=False, dict=True, weakref=True):
    """The nodes of the main graph or of one function, by index.

    The first nodes are those of the file, in its order; nodes that a patch added come after
    them: `placed` has, for a node of the file, the order in which it and the nodes that were added
    beside it are written (`root` is the way back), and `renamed` the name in the file of each op
    that has another one now. Only `edit` changes a body.
    """

    label: str
    library: Library
    source: Source
    heads: Heads
    ret: dict[str, str] = msgspec.field(default_factory=dict)
    signature: OpDefProto | None = None
    others: list[Field] = msgspec.field(default_factory=list)
    file_ret: dict[str, str] = msgspec.field(default_factory=dict)
    edited: dict[int, Payload | EditedNode] = msgspec.field(default_factory=dict)
    placed: dict[int, list[int]] = msgspec.field(default_factory=dict)
    root: dict[int, int] = msgspec.field(default_factory=dict)
    renamed: dict[int, str] = msgspec.field(default_factory=dict)
    returns: dict[str, str] = msgspec.field(default_factory=dict)  # outputs before rules
    records: dict[int, tuple[object, NodeRecord | None]] = msgspec.field(default_factory=dict)
    cut: list[int] = msgspec.field(default_factory=list)  # where nodes of the file were dropped
    is_ours: bool = False  # a function that a patch added
    large: Large = msgspec.field(default_factory=Large)

    def __repr__(self) -> str:
        return f"<Body: {self.label}>"

    def __len__(self) -> int:
        return len(self.heads.names)

    def __iter__(self) -> Iterator[Node]:
        return (Node(self, index) for index in range(len(self)))

    @property
    def is_main(self) -> bool:
        """Whether this is the graph itself, not a function of its library."""
        return self.signature is None

    @cached_property
    def by_name(self) -> dict[str, int]:
        """The index of each op, by its name."""
        return dict(zip(self.heads.names, range(len(self)), strict=True))

    @cached_property
    def by_type(self) -> dict[str, list[int]]:
        """The indices of the ops of each op type."""
        found: dict[str, list[int]] = defaultdict(list)
        for index, op in enumerate(self.heads.ops):
            found[op].append(index)
        return dict(found)

    @cached_property
    def marks(self) -> bytearray:
        """Which nodes of the file may carry provenance: 1 for each that may."""
        marks = bytearray(len(self))
        for index in self.heads.marked:
            marks[index] = 1
        return marks

    def may_be_signed(self, index: int) -> bool:
        """Whether a node may carry provenance; quick, and wrong only where it says yes."""
        return index in self.edited or (index < len(self.marks) and bool(self.marks[index]))

    @cached_property
    def readers(self) -> dict[str, Uses]:
        """Who reads an op, data or control: (index, slot in NodeDef.input) of each use."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for index, inputs in enumerate(self.heads.inputs):
            for slot, text in enumerate(inputs):
                # Most inputs are an op's output 0, spelled as its name: no call for them.
                plain = ":" not in text and text[:1] != "^"
                found[text if plain else names.op_of(text)].append((index, slot))
        return {**found}

    @cached_property
    def returned(self) -> dict[str, list[str]]:
        """The outputs of the function that each op, or argument, gives."""
        found: dict[str, list[str]] = {}
        for key, text in self.ret.items():
            found.setdefault(names.op_of(text), []).append(key)
        return found

    @cached_property
    def arguments(self) -> dict[str, int]:
        """The inputs of the function, with their DataType; none in the main graph."""
        args = self.signature.input_arg if self.signature is not None else ()
        return {arg.name: arg.type for arg in args}

    def node(self, name: str) -> Node:
        """The op of this name; ModelError names the nearest where there is none."""
        if name not in self.by_name:
            near = did_you_mean(name, self.heads.names)
            raise ModelError(f"no op {name!r} in {self.label}{near}")
        return Node(self, self.by_name[name])

    def producer(self, tensor: str) -> Node | None:
        """The op that gives a tensor, as an input spells it; None for a function's argument."""
        index = self.by_name.get(names.op_of(tensor))
        return None if index is None else Node(self, index)

    def payload(self, index: int) -> Payload:
        """The serialized NodeDef as it is now."""
        edited = self.edited.get(index)
        if edited is None:
            return self.large.payload(self.source, self.heads.starts[index])
        return edited if isinstance(edited, list) else edited.payload()

    def record(self, index: int) -> NodeRecord | None:
        """What rules wrote down on a node; ModelError where it is not what graphpatch writes."""
        if not self.may_be_signed(index):
            return None
        edited = self.edited.get(index)
        if isinstance(edited, EditedNode):
            return edited.record
        known = self.records.get(index)
        if known is None or known[0] is not edited:
            known = self.records[index] = edited, self._read_record(index)
        return known[1]

    def _read_record(self, index: int) -> NodeRecord | None:
        payload = self.payload(index)
        if len(payload) == 1 and isinstance(payload[0], bytes):
            return self.read_record(index, message(NodeDef, payload[0]).attr.get(PROVENANCE_ATTR))
        span = attr_span(payload, PROVENANCE_ATTR)
        return self.read_record(index, None if span is None else attr_value(span))

    def read_record(self, index: int, value: AttrValue | None) -> NodeRecord | None:
        """The record that this attr of a node is; ModelError where it is none of ours."""
        try:
            return None if value is None else read_attr(value)
        except ValueError as error:
            raise ModelError(
                f"{Node(self, index)}: its attr {PROVENANCE_ATTR} is not one that graphpatch "
                f"wrote: {error}"
            ) from None

    def first_touched(self) -> int | None:
        """The node that comes first in the file of those that carry a record."""
        may_be: Iterable[int] = self.heads.marked
        if self.edited:
            may_be = sorted({self.root.get(index, index) for index in (*may_be, *self.edited)})
        for root in may_be:
            for index in self.placed.get(root, (root,)):
                if self.record(index) is not None:
                    return index
        return None

    def open_node(self, index: int) -> EditedNode:
        """A node to be changed, which only `edit` does."""
        edited = self.edited.get(index)
        if not isinstance(edited, EditedNode):
            record = self.record(index)
            edited = self.edited[index] = EditedNode.open(self.payload(index), record)
        edited.written = None
        return edited

    def copy(self, library: Library) -> Body:
        """The same nodes, to be changed without this body seeing it."""
        body = replace(self, library=library, heads=self.heads.copy(), ret=dict(self.ret))
        body.large, body.records = Large(), {}
        body.edited = {index: self.payload(index) for index in self.edited}
        body.root, body.renamed = dict(self.root), dict(self.renamed)
        body.returns = dict(self.returns)
        body.placed = {root: list(order) for root, order in self.placed.items()}
        return body


class Node(NamedTuple):
    """One op of a body, seen through its index; cheap to make, and read on demand."""

    body: Body
    index: int  # type: ignore[assignment]  # instead of the method that tuples have

    @property
    def name(self) -> str:
        """The op's name."""
        return self.body.heads.names[self.index]

    @property
    def op(self) -> str:
        """The op type."""
        return self.body.heads.ops[self.index]

    @property
    def inputs(self) -> tuple[str, ...]:
        """NodeDef.input: data inputs first, then control inputs."""
        return tuple(self.body.heads.inputs[self.index])

    @property
    def data_inputs(self) -> tuple[str, ...]:
        """The tensors it reads."""
        return tuple([text for text in self.inputs if text[:1] != "^"])

    @property
    def device(self) -> str:
        """The device that the NodeDef asks for."""
        return text_field(self.body.payload(self.index), DEVICE)

    @property
    def attr_names(self) -> list[str]:
        """The attrs that the NodeDef carries."""
        return sorted(self.attr_spans())

    def attr(self, key: str) -> AttrValue | None:
        """The value of an attr, or None where the NodeDef has none. Reads that attr alone."""
        payload = self.body.payload(self.index)
        if len(payload) == 1 and isinstance(payload[0], bytes) and len(payload[0]) < LARGE:
            return attr_values(payload).get(key) if mentions(payload, key) else None
        span = self.body.large.attr_span(self.index, payload, key)
        return None if span is None else attr_value(span)

    def attrs(self) -> Mapping[str, AttrValue]:
        """The attrs that the NodeDef carries, large tensors left out."""
        payload = self.body.payload(self.index)
        if len(payload) == 1:  # protobuf is quick where it may read all of it
            return attr_values(payload)
        return attr_values(payload, self.attr_spans())

    @property
    def opdef(self) -> opdefs.OpDef | None:
        """What its op type looks like: a function of the library, or an op TensorFlow knows."""
        return self.body.library.opdef(self.op)

    @property
    def outputs(self) -> list[opdefs.FlatArg] | None:
        """Its outputs, one for each tensor; None for an op type that we don't know."""
        return self._flat("outputs")

    @property
    def arguments(self) -> list[opdefs.FlatArg] | None:
        """Its data inputs as its op type declares them; None for a type that we don't know."""
        return self._flat("inputs")

    def tensor(self, output: int) -> str:
        """How an input spells output `output` of this op, in this body."""
        if self.body.is_main:
            return str(names.TensorName(self.name, output))
        flat = self.outputs
        if flat is None:
            raise ModelError(f"{self}: the outputs of op type {self.op} are not known")
        return f"{self.name}:{flat[output].name}:{flat[output].index}"

    def behind_inputs(self) -> bytes | None:
        """What its NodeDef has behind its inputs, as `nodedef.behind_inputs` tells it.

        The record of rules and the colocation are left out: ops that are alike but for them are
        alike.
        """
        body, index = self
        heads = body.heads
        rest = behind_inputs(
            body.payload(index), heads.names[index], heads.ops[index], heads.inputs[index]
        )
        if rest is not None and (body.may_be_signed(index) or COLOCATED in rest):
            rest = without_attrs(rest, (PROVENANCE_ATTR, COLOCATION))
        return rest

    def attr_spans(self) -> Mapping[str, Span]:
        """Where each attr's serialized AttrValue lies."""
        return self.body.large.attr_spans(self.index, self.body.payload(self.index))

    def _flat(self, which: str) -> list[opdefs.FlatArg] | None:
        op = self.op
        if (opdef := self.body.library.opdef(op)) is None:
            return None
        payload, large = self.body.payload(self.index), self.body.large
        small = len(payload[0]) < MOST_ALIKE
        rest = self.behind_inputs() if small else None
        if rest is not None and (form := (op, which, rest)) in large.forms:
            return large.forms[form]

        def found() -> list[opdefs.FlatArg]:
            return opdefs.flatten(getattr(opdef, which), self.attrs().get)

        try:
            if rest is not None:
                return large.alike(form, found)
            return large.tensors(self.index, payload, which, found)
        except ModelError as error:
            raise ModelError(f"{self}: {error}") from error

    def __str__(self) -> str:
        place = "" if self.body.is_main else f" in function {one_line(self.body.label)}"
        return f"{one_line(self.op)} {self.name!r}{place}"
