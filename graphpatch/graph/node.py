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
from graphpatch.protos import AttrValue, NodeDef
from graphpatch.protos import OpDef as OpDefProto
from graphpatch.shown import one_line

NAME, OP, INPUT, DEVICE, ATTR = 1, 2, 3, 4, 5
_HEAD_TAGS = (NAME << 3 | BYTES, OP << 3 | BYTES)
_INPUT_TAG = (INPUT << 3 | BYTES,)

MAIN = "main"
PROVENANCE = PROVENANCE_ATTR.encode()
COLOCATION, COLOCATED = "_class", b"_class"

MOST_ALIKE = 1 << 10  # bytes of a node up to which it shares its lists of tensors with nodes alike
MANY = 256  # tensors from which on the list of a larger node is kept
MOST_LISTS = 1 << 12  # lists of tensors that a body keeps

Payload = list[Piece]


def payload_at(source: Source, start: int) -> Payload:
    """Return the payload of the NodeDef whose field starts at `start`."""
    value, end = entry(source, start)
    if end - value < LARGE:
        return [source.data[value:end]]
    pieces: Payload = []
    start = value
    for field in fields(source.data, value, end):
        if field.end - field.value >= LARGE:
            pieces += [source.data[start : field.start]] if start < field.start else []
            pieces.append(Span(source, field.start, field.end))
            start = field.end
    return [*pieces, source.data[start:end]] if start < end else pieces


def payload_of(pieces: Iterable[Piece]) -> Payload:
    """Return the payload of these fields: small ones that lie side by side become one piece."""
    payload: Payload = []
    for is_bytes, run in groupby(pieces, lambda piece: isinstance(piece, bytes)):
        side_by_side = list(run)
        payload += [b"".join(map(piece_bytes, side_by_side))] if is_bytes else side_by_side
    return payload


def payload_fields(payload: Payload) -> Iterator[tuple[int, Piece]]:
    """Yield the number and the bytes of each field of a NodeDef, large fields as spans."""
    for source, field in _fields(payload):
        yield field.number, _field_piece(source, field)


def _field_piece(source: Source, field: Field) -> Piece:
    if field.end - field.start >= LARGE:
        return Span(source, field.start, field.end)
    return source.data[field.start : field.end]


def _fields(payload: Payload) -> Iterator[tuple[Source, Field]]:
    for piece in payload:
        span = Span(Source(piece), 0, len(piece)) if isinstance(piece, bytes) else piece
        for field in fields(span.source.data, span.start, span.end):
            yield span.source, field


def _entry(data: Source, field: Field) -> tuple[str, Span]:
    """Return the key of an entry of NodeDef.attr, and where its AttrValue lies."""
    key, value = "", Span(data, field.end, field.end)
    for part in fields(data.data, field.value, field.end):
        if part.holds(1):
            key = utf8(data.data, part.value, part.end)
        elif part.holds(2):
            value = Span(data, part.value, part.end)
    return key, value


def attr_key(span: Span) -> str:
    """Return the attr that a field of a NodeDef is; "" where it is none."""
    (field,) = fields(span.source.data, span.start, span.end)
    return _entry(span.source, field)[0] if field.holds(ATTR) else ""


def attr_spans(payload: Payload) -> dict[str, Span]:
    """Return where each attr's serialized AttrValue lies, unread."""
    return dict(_entry(source, field) for source, field in _fields(payload) if field.holds(ATTR))


def attr_span(payload: Payload, key: str) -> Span | None:
    """Return where one attr's serialized AttrValue lies; None where there is no such attr."""
    return attr_spans(payload).get(key) if mentions(payload, key) else None


def attr_value(span: Span) -> AttrValue:
    """Return the AttrValue that lies there."""
    return message(AttrValue, span.source.data[span.start : span.end])


def mentions(payload: Payload, key: str) -> bool:
    """Tell whether the payload may have this attr; quick, and wrong only where it says yes."""
    name = key.encode()
    return any(isinstance(piece, Span) or name in piece for piece in payload)


def carries_record(payload: Payload) -> bool:
    """Tell whether the payload may have a record of rules; spans are asked for their key."""
    for piece in payload:
        if PROVENANCE in piece if isinstance(piece, bytes) else attr_key(piece) == PROVENANCE_ATTR:
            return True
    return False


def attr_entry(key: str, value: bytes) -> bytes:
    """Return a serialized AttrValue as an entry of NodeDef.attr."""
    return encoded(ATTR, encoded(1, key.encode()) + encoded(2, value))


def with_attr(payload: Payload, key: str, value: bytes | None) -> Payload:
    """Return the payload with this attr: in its old place, else at the end; None drops it.

    Every other byte stays as it was, fields that we don't know included.
    """
    new = b"" if value is None else attr_entry(key, value)
    if not mentions(payload, key):
        return payload_of([*payload, new]) if new else payload
    return _replaced(payload, new, lambda at, of: of.holds(ATTR) and _entry(at, of)[0] == key)


def with_inputs(payload: Payload, texts: Sequence[str]) -> Payload:
    """Return the payload with these inputs, instead of all that it has."""
    new = b"".join(encoded(INPUT, text.encode()) for text in texts)
    return _replaced(payload, new, lambda at, of: of.holds(INPUT))


def _replaced(payload: Payload, new: bytes, is_old: Callable[[Source, Field], bool]) -> Payload:
    """Return the payload with `new` in place of the last of the old fields, and without these."""
    pieces: Payload = []
    last = None
    for source, field in _fields(payload):
        if is_old(source, field):
            last = len(pieces)
        else:
            pieces.append(_field_piece(source, field))
    pieces.insert(len(pieces) if last is None else last, new)
    return payload_of(pieces)


def head_bytes(name: str, op: str, inputs: Sequence[str]) -> bytes:
    """Return a NodeDef up to its last input, as TensorFlow spells it."""
    head = encoded(NAME, name.encode()) + encoded(OP, op.encode())
    return head + b"".join([encoded(INPUT, text.encode()) for text in inputs])


def behind_inputs(payload: Payload, name: str, op: str, inputs: Sequence[str]) -> bytes | None:
    """Return what a NodeDef has behind its inputs: its device and attrs. Most nodes share these.

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


class Heads(msgspec.Struct):
    """What is known of each NodeDef of a body, by its place in the file."""

    starts: array[int] = msgspec.field(default_factory=lambda: array("Q"))
    names: list[str] = msgspec.field(default_factory=list)
    ops: list[str] = msgspec.field(default_factory=list)
    inputs: list[Sequence[str]] = msgspec.field(default_factory=list)
    marked: list[int] = msgspec.field(default_factory=list)  # those that may carry a record

    def copy(self) -> Heads:
        """Return the same heads, to be changed; where they lie in the file stays."""
        inputs = [tuple(read) if isinstance(read, list) else read for read in self.inputs]
        return Heads(self.starts, list(self.names), list(self.ops), inputs, list(self.marked))


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
        """Return what this op type looks like; None where library and TensorFlow have none."""
        return self.signatures.get(op) or opdefs.lookup(op)

    def copy(self) -> Library:
        """Return the same functions, to be added to without this one seeing it."""
        return Library(dict(self.signatures), dict(self.gradients), self.producer, list(self.rules))


class EditedNode(msgspec.Struct, eq=False):
    """A node that is edited: its NodeDef without fields as large as weights, these, its record."""

    node: NodeDef
    large: list[Span]
    record: NodeRecord
    written: Payload | None = None

    @classmethod
    def open(cls, payload: Payload, record: NodeRecord | None) -> EditedNode:
        """Open a node to be edited: the first time, its record keeps it as it is."""
        large = [piece for piece in payload if isinstance(piece, Span)]
        node = _small_fields(payload)
        if record is None:
            return cls(node, large, node_record(_around_large(payload)))
        node.attr.pop(PROVENANCE_ATTR, None)
        large = [span for span in large if attr_key(span) != PROVENANCE_ATTR]
        return cls(node, large, record.copy())

    def payload(self) -> Payload:
        """Return the serialized NodeDef, with its record."""
        if self.written is None:
            self.node.attr[PROVENANCE_ATTR].list.CopyFrom(self.record.attr())
            self.written = [self.node.SerializeToString(deterministic=True), *self.large]
        return self.written

    def keep_large(self) -> None:
        """Put the large fields into the record, as an edit drops them from the node."""
        if self.large and not self.record.is_added:
            spans = [*map(piece_bytes, self.large), b""]
            parts = zip(self.record.original, spans, strict=True)
            self.record.__dict__["original_bytes"] = (b"".join(a + b for a, b in parts),)
        self.large = []


def _small_fields(payload: Payload) -> NodeDef:
    """Return the NodeDef without fields as large as weights."""
    return message(NodeDef, b"".join(piece for piece in payload if isinstance(piece, bytes)))


def _around_large(payload: Payload) -> tuple[bytes, ...]:
    """Return the parts of a NodeDef before, between and behind its large fields."""
    parts = [b""]
    for piece in payload:
        if isinstance(piece, bytes):
            parts[-1] += piece
        else:
            parts.append(b"")
    return tuple(parts)


# The uses of an op: a list, or where one is edited that is long a dict without values.
Uses: TypeAlias = "list[tuple[int, int]] | dict[tuple[int, int], None]"


class Body(msgspec.Struct, eq=False, dict=True, weakref=True):
    """The nodes of the main graph or of one function, by index.

    The first nodes are those of the file, in its order; nodes that a patch added come after
    them: `placed` has, for a node of the file, the order in which it and the nodes that were added
    beside it are written (`root` is the way back), and `renamed` the name in the file of each op
    that has another one now. Only `editor` changes a body.
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
    places: dict[int, int] = msgspec.field(default_factory=dict)  # where each stood at least
    root: dict[int, int] = msgspec.field(default_factory=dict)
    renamed: dict[int, str] = msgspec.field(default_factory=dict)
    returns: dict[str, str] = msgspec.field(default_factory=dict)  # outputs before rules
    cut: list[int] = msgspec.field(default_factory=list)  # where nodes of the file were dropped
    is_ours: bool = False  # a function that a patch added

    # What is asked often. Each answer holds for one payload: an edited node gets another one.
    records: dict[int, tuple[object, NodeRecord | None]] = msgspec.field(default_factory=dict)
    large: dict[int, Payload] = msgspec.field(default_factory=dict)  # by start in the file
    wide: dict[bytes, NodeDef] = msgspec.field(default_factory=dict)  # parsed, by their bytes
    tensors: dict[object, tuple[Payload, list[opdefs.FlatArg]]] = msgspec.field(
        default_factory=dict
    )

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
        indices: dict[str, list[int]] = defaultdict(list)
        for index, op in enumerate(self.heads.ops):
            indices[op].append(index)
        return dict(indices)

    @cached_property
    def marks(self) -> frozenset[int]:
        """The nodes of the file that may carry a record."""
        return frozenset(self.heads.marked)

    def may_be_signed(self, index: int) -> bool:
        """Tell whether a node may carry a record; quick, and wrong only where it says yes."""
        return index in self.edited or index in self.marks

    @cached_property
    def file_records(self) -> dict[int, NodeRecord]:
        """What rules wrote down on nodes as they are in the file."""
        records = {}
        for index in self.heads.marked:
            payload = self.file_payload(index)
            if len(payload) == 1 and isinstance(payload[0], bytes):  # nearly all: no calls for them
                value = message(NodeDef, payload[0]).attr.get(PROVENANCE_ATTR)
            else:
                value = self.attr_in(payload, PROVENANCE_ATTR)
            if value is not None:
                records[index] = self._read_record(index, value)
        return records

    @cached_property
    def readers(self) -> dict[str, Uses]:
        """Who reads an op, data or control: (index, slot in NodeDef.input) of each use."""
        uses: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for index, inputs in enumerate(self.heads.inputs):
            for slot, text in enumerate(inputs):
                # Most inputs are an op's output 0, spelled as its name: no call for them.
                plain = ":" not in text and text[:1] != "^"
                uses[text if plain else names.op_of(text)].append((index, slot))
        return {**uses}

    @cached_property
    def returned(self) -> dict[str, list[str]]:
        """The outputs of the function that each op, or argument, gives."""
        outputs: dict[str, list[str]] = {}
        for key, text in self.ret.items():
            outputs.setdefault(names.op_of(text), []).append(key)
        return outputs

    @cached_property
    def arguments(self) -> dict[str, int]:
        """The inputs of the function, with their DataType; none in the main graph."""
        args = self.signature.input_arg if self.signature is not None else ()
        return {arg.name: arg.type for arg in args}

    def node(self, name: str) -> Node:
        """Return the op of this name; ModelError names the nearest where there is none."""
        if name not in self.by_name:
            near = did_you_mean(name, self.heads.names)
            raise ModelError(f"no op {name!r} in {self.label}{near}")
        return Node(self, self.by_name[name])

    def producer(self, tensor: str) -> Node | None:
        """Return the op that gives a tensor, as an input spells it; None for an argument."""
        index = self.by_name.get(names.op_of(tensor))
        return None if index is None else Node(self, index)

    def payload(self, index: int) -> Payload:
        """Return the serialized NodeDef as it is now."""
        edited = self.edited.get(index)
        if edited is not None:
            return edited if isinstance(edited, list) else edited.payload()
        return self.file_payload(index)

    def file_payload(self, index: int) -> Payload:
        """Return the serialized NodeDef as it is in the file."""
        data, start = self.source.data, self.heads.starts[index]
        if (size := data[start + 1]) < 0x80:  # nearly all: no calls for them
            return [data[start + 2 : start + 2 + size]]
        if (high := data[start + 2]) < 0x80:
            return [data[start + 3 : start + 3 + (size & 0x7F | high << 7)]]
        if start not in self.large:
            self.large[start] = payload_at(self.source, start)
        return self.large[start]

    def parsed(self, raw: bytes) -> NodeDef:
        """Return the NodeDef of these bytes; one that is large, as it has many inputs, is kept."""
        if len(raw) < LARGE:
            return message(NodeDef, raw)
        if raw not in self.wide:
            self.wide[raw] = message(NodeDef, raw)
        return self.wide[raw]

    def attr_in(self, payload: Payload, key: str) -> AttrValue | None:
        """Return the value of an attr in a payload, or None. Of large attrs it reads that alone."""
        name = key.encode()
        for piece in reversed(payload):
            if isinstance(piece, Span):
                if (span := attr_spans([piece]).get(key)) is not None:
                    return attr_value(span)
            elif name in piece:
                value: AttrValue | None = self.parsed(piece).attr.get(key)
                if value is not None:
                    return value
        return None

    def record(self, index: int) -> NodeRecord | None:
        """Return what rules wrote down on a node; ModelError where graphpatch did not write it."""
        edited = self.edited.get(index)
        if isinstance(edited, EditedNode):
            return edited.record
        if edited is None and "file_records" in self.__dict__:  # else this one alone is read
            return self.file_records.get(index)
        if edited is None and index not in self.marks:
            return None
        known = self.records.get(index)
        if known is None or known[0] is not edited:
            value = Node(self, index).attr(PROVENANCE_ATTR)
            record = None if value is None else self._read_record(index, value)
            known = self.records[index] = edited, record
        return known[1]

    def _read_record(self, index: int, value: AttrValue) -> NodeRecord:
        try:
            return read_attr(value)
        except ValueError as error:
            raise ModelError(
                f"{Node(self, index)}: its attr {PROVENANCE_ATTR} is not one that graphpatch "
                f"wrote: {error}"
            ) from None

    def touched(self) -> Mapping[int, NodeRecord]:
        """Return what rules wrote down on nodes, by their indices, in the order of these."""
        if not self.edited:
            return self.file_records
        indices = sorted({*self.heads.marked, *self.edited})
        records = ((index, self.record(index)) for index in indices)
        return {index: record for index, record in records if record is not None}

    def first_touched(self) -> int | None:
        """Return the node that comes first in the file of those that carry a record."""
        roots: Iterable[int] = self.heads.marked
        if self.edited:
            roots = sorted({self.root.get(index, index) for index in (*roots, *self.edited)})
        for root in roots:
            for index in self.placed.get(root, (root,)):
                if self.record(index) is not None:
                    return index
        return None

    def open_node(self, index: int) -> EditedNode:
        """Open a node to be changed, which only `editor` does."""
        edited = self.edited.get(index)
        if not isinstance(edited, EditedNode):
            record = self.record(index)
            edited = self.edited[index] = EditedNode.open(self.payload(index), record)
        edited.written = None
        return edited

    def copy(self, library: Library) -> Body:
        """Return the same nodes, to be changed without this body seeing it."""
        body = replace(self, library=library, heads=self.heads.copy(), ret=dict(self.ret))
        body.records, body.large, body.wide, body.tensors, body.places = {}, {}, {}, {}, {}
        body.edited = {index: self.payload(index) for index in self.edited}
        body.root, body.renamed = dict(self.root), dict(self.renamed)
        body.returns = dict(self.returns)
        if "file_records" in self.__dict__:
            body.file_records = self.file_records
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
        return str(self._small_fields().device)

    @property
    def attr_names(self) -> list[str]:
        """The attrs that the NodeDef carries."""
        return sorted(self.attr_spans())

    def attr(self, key: str) -> AttrValue | None:
        """Return the value of an attr, or None. Of large attrs it reads that one alone."""
        return self.body.attr_in(self.body.payload(self.index), key)

    def attrs(self) -> Mapping[str, AttrValue]:
        """Return the attrs that the NodeDef carries, large tensors left out."""
        attrs: Mapping[str, AttrValue] = self._small_fields().attr
        return attrs

    def attr_spans(self) -> Mapping[str, Span]:
        """Return where each attr's serialized AttrValue lies."""
        return attr_spans(self.body.payload(self.index))

    def _small_fields(self) -> NodeDef:
        payload = self.body.payload(self.index)
        if len(payload) > 1:
            return _small_fields(payload)
        return self.body.parsed(piece_bytes(payload[0]))

    @property
    def opdef(self) -> opdefs.OpDef | None:
        """What its op type looks like: a function of the library, or an op TensorFlow knows."""
        return self.body.library.opdef(self.op)

    @property
    def outputs(self) -> list[opdefs.FlatArg] | None:
        """Its outputs, one for each tensor; None for an op type that we don't know."""
        return self._tensors("outputs")

    @property
    def arguments(self) -> list[opdefs.FlatArg] | None:
        """Its data inputs as its op type declares them; None for a type that we don't know."""
        return self._tensors("inputs")

    def _tensors(self, which: str) -> list[opdefs.FlatArg] | None:
        """Return its inputs or outputs; nodes that are alike share them."""
        body, op = self.body, self.op
        if (opdef := body.library.opdef(op)) is None:
            return None
        payload = body.payload(self.index)
        rest = self.behind_inputs() if len(payload[0]) < MOST_ALIKE else None
        key = (self.index, which) if rest is None else (op, which, rest)
        known = body.tensors.get(key)
        if known is not None and (rest is not None or known[0] == payload):
            return known[1]
        try:
            tensors = opdefs.flatten(getattr(opdef, which), self.attrs().get)
        except ModelError as error:
            raise ModelError(f"{self}: {error}") from error
        is_shared = rest is not None or len(tensors) >= MANY
        if is_shared and (known is not None or len(body.tensors) < MOST_LISTS):
            body.tensors[key] = payload if rest is None else [], tensors
        return tensors

    def tensor(self, output: int) -> str:
        """Return how an input spells output `output` of this op, in this body."""
        if self.body.is_main:
            return str(names.TensorName(self.name, output))
        outputs = self.outputs
        if outputs is None:
            raise ModelError(f"{self}: the outputs of op type {self.op} are not known")
        return f"{self.name}:{outputs[output].name}:{outputs[output].index}"

    def behind_inputs(self) -> bytes | None:
        """Return what its NodeDef has behind its inputs, or None, as `behind_inputs` does.

        The record of rules and the colocation are left out: nodes that differ only in these are
        alike.
        """
        body, index = self
        heads = body.heads
        rest = behind_inputs(
            body.payload(index), heads.names[index], heads.ops[index], heads.inputs[index]
        )
        if rest is not None and (body.may_be_signed(index) or COLOCATED in rest):
            left_out = (encoded(1, PROVENANCE), encoded(1, COLOCATED))
            rest = b"".join(
                rest[field.start : field.end]
                for field in fields(rest, 0, len(rest))
                if not (field.holds(ATTR) and rest.startswith(left_out, field.value))
            )
        return rest

    def __str__(self) -> str:
        place = "" if self.body.is_main else f" in function {one_line(self.body.label)}"
        return f"{one_line(self.op)} {self.name!r}{place}"
