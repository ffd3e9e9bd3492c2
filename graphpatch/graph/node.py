"""Nodes: the bytes of one NodeDef, and the bodies that hold nodes in columns.

A payload is the NodeDef's fields in their order, as pieces: small ones as bytes, large ones (the
tensor of a Const) as a span of the file. A body is the main graph or a function of the library.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from graphpatch import names, opdefs
from graphpatch.errors import ModelError, did_you_mean
from graphpatch.graph.record import PROVENANCE_ATTR, Author, NodeRecord, read_strings
from graphpatch.graph.wire import (
    BYTES,
    LARGE,
    Field,
    Piece,
    Source,
    Span,
    encoded,
    entry,
    field_at,
    fields,
    message,
    piece_bytes,
    utf8,
)
from graphpatch.protos import AttrValue, NodeDef
from graphpatch.protos import OpDef as OpDefProto
from graphpatch.shown import one_line

HEAD = b"\n\x12\x1a"  # tags of name, op and input in NodeDef
ATTR = 5  # in NodeDef
NAME, ENTRY = b"\n", b"*"  # the tags of the name, and of an attr
MAIN = "main"
PROVENANCE = PROVENANCE_ATTR.encode()
RECORD = encoded(1, PROVENANCE)  # begins the entry of a record
COLOCATION = "_class"
COLOCATED = encoded(1, COLOCATION.encode())
MANY = 256  # tensors from which on the list of a node is kept

Uses = list[tuple[int, int]]
"""The uses of an op: who reads it, and in which slot of NodeDef.input."""


class Payload(msgspec.Struct, frozen=True, gc=False):
    """The bytes of a NodeDef: `small` without fields as large as weights, and where these lie.

    `parts` are what lies before, between and behind the large fields; empty where there are none.
    """

    small: bytes
    large: tuple[Span, ...] = ()
    parts: tuple[bytes, ...] = ()

    @property
    def pieces(self) -> list[Piece]:
        """Return the whole NodeDef."""
        if not self.large:
            return [self.small]
        pieces: list[Piece] = [*self.parts]
        for place, span in enumerate(self.large):
            pieces.insert(2 * place + 1, span)
        return pieces

    @classmethod
    def of(cls, parts: tuple[bytes, ...], large: tuple[Span, ...] = ()) -> Payload:
        """Return the payload of these parts and large fields; of one part, these come behind it."""
        parts = parts if len(parts) > len(large) else (*parts, *[b""] * len(large))
        return cls(b"".join(parts), large, parts if large else ())

    def attr_spans(self) -> dict[str, Span]:
        """Return where each attr's serialized AttrValue lies, unread."""
        source = Source(self.small)
        small = (attr_entry(source, part) for part in fields(source.data, 0, len(source.data)))
        return {key: value for key, value in (*small, *map(large_entry, self.large)) if key}

    def mentions(self, key: str) -> bool:
        """Tell whether the node may have this attr; quick, and wrong only where it says yes."""
        return bool(self.large) or key.encode() in self.small


def payload_at(source: Source, start: int) -> Payload:
    """Return the payload of the large NodeDef at `start`, whose record counts as small."""
    at, end = entry(source, start)
    parts, large = list[bytes](), list[Span]()
    for field in fields(source.data, at, end):
        is_large = field.end - field.value >= LARGE and field.number >= ATTR
        if is_large and attr_entry(source, field)[0] != PROVENANCE_ATTR:
            parts.append(source.data[at : field.start])
            large.append(Span(source, field.start, field.end))
            at = field.end
    return Payload.of((*parts, source.data[at:end]), tuple(large))


def attr_entry(source: Source, field: Field) -> tuple[str, Span]:
    """Return the attr that a field of a NodeDef is, and where its AttrValue lies; "" for none."""
    key, value = "", Span(source, field.end, field.end)
    for part in fields(source.data, field.value, field.end) if field.holds(ATTR) else ():
        if part.holds(1):
            key = utf8(source.data, part.value, part.end)
        elif part.holds(2):
            value = Span(source, part.value, part.end)
    return key, value


def large_entry(span: Span) -> tuple[str, Span]:
    """Return the same of a field that lies there."""
    source, start, end = span
    return attr_entry(source, field_at(source.data, start, end))


def attr_value(span: Span) -> AttrValue:
    """Return the AttrValue that lies there."""
    return message(AttrValue, span.source.data[span.start : span.end])


def behind_head(raw: bytes, tags: bytes = HEAD) -> bytes:
    """Return a NodeDef behind its name, op type and inputs, as far as these are first and short."""
    at, end = 0, len(raw)
    while at < end and raw[at] in tags and raw[at + 1] < 0x80:
        at += 2 + raw[at + 1]
    return raw[at:]


def are_attrs_left(before: bytes, now: bytes, tags: bytes = HEAD) -> bool:
    """Return whether rules, which write behind them, left device and attrs as they were spelled.

    With the tag of the name alone: op type and inputs too.
    """
    rest, more = behind_head(before, tags), behind_head(now, tags)
    if not more.startswith(rest):
        return False
    more = more[len(rest) :]
    value, end = entry(Source(more), 0) if more[:1] == ENTRY else (0, 0)
    return end == len(more) and (not more or more.startswith(RECORD, value))


class Heads(msgspec.Struct):
    """What is known of each NodeDef of a body, by its place in the file.

    `records` has the strings of the attr in which rules wrote down what they did, where it is.
    """

    starts: array[int] = msgspec.field(default_factory=lambda: array("Q"))
    names: list[str] = msgspec.field(default_factory=list)
    ops: list[str] = msgspec.field(default_factory=list)
    inputs: list[Sequence[str]] = msgspec.field(default_factory=list)
    records: dict[int, list[bytes]] = msgspec.field(default_factory=dict)

    def copy(self) -> Heads:
        """Return the same heads, to be changed; where they lie in the file stays."""
        inputs = [tuple(read) if isinstance(read, list) else read for read in self.inputs]
        return Heads(self.starts, list(self.names), list(self.ops), inputs, self.records)


class Library(msgspec.Struct, eq=False):
    """The functions of a GraphDef, as far as one who calls them must know.

    `signatures` has each function as the op type of its calls, `gradients` its gradient function.
    `producer` is the GraphDef's version, `rules` are those that changed the graph, in their order.
    `graph` gives the graph, while it lives: a function that is kept does not keep its file open.
    """

    signatures: dict[str, opdefs.OpDef] = msgspec.field(default_factory=dict)
    gradients: dict[str, str] = msgspec.field(default_factory=dict)
    producer: int = 0
    rules: list[Author] = msgspec.field(default_factory=list)
    graph: Callable[[], Any] = lambda: None

    def opdef(self, op: str) -> opdefs.OpDef | None:
        """Return what this op type looks like; None where library and TensorFlow have none."""
        return self.signatures.get(op) or opdefs.lookup(op)

    def copy(self) -> Library:
        """Return the same functions, to be added to without this one seeing it."""
        return Library(dict(self.signatures), dict(self.gradients), self.producer, list(self.rules))


class EditedNode(msgspec.Struct, eq=False):
    """A node that is edited: its NodeDef without fields as large as weights, these, its record."""

    node: NodeDef
    record: NodeRecord
    large: tuple[Span, ...] = ()
    written: Payload | None = None

    def current(self) -> NodeDef:
        """Return the NodeDef, with its record as it is now."""
        self.node.attr[PROVENANCE_ATTR].list.s[:] = self.record.texts()
        return self.node

    def payload(self) -> Payload:
        """Return the serialized NodeDef, with its record."""
        if self.written is None:
            raw = self.current().SerializeToString(deterministic=True)
            self.written = Payload.of((raw,), self.large)
        return self.written

    def keep_large(self) -> None:
        """Put the large fields into the record, as an edit drops them from the node."""
        if self.record.original:
            pieces = Payload.of(self.record.original, self.large).pieces
            self.record.original = (b"".join(map(piece_bytes, pieces)),)
        self.large = ()


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
    lies: tuple[Field, ...] = ()  # of a function: the library that it is part of, and where it is
    edited: dict[int, Payload | EditedNode] = msgspec.field(default_factory=dict)
    placed: dict[int, list[int]] = msgspec.field(default_factory=dict)
    root: dict[int, int] = msgspec.field(default_factory=dict)
    renamed: dict[int, str] = msgspec.field(default_factory=dict)
    returns: dict[str, str] = msgspec.field(default_factory=dict)  # outputs before rules
    cut: list[tuple[int, int]] = msgspec.field(default_factory=list)  # spans that were dropped
    is_ours: bool = False  # a function that a patch added

    # Large nodes and records are read once. `tensors` are those of nodes that have many.
    large: dict[int, tuple[Payload, NodeDef]] = msgspec.field(default_factory=dict)
    records: dict[int, NodeRecord] = msgspec.field(default_factory=dict)
    tensors: dict[tuple[int, str], opdefs.FlatArgs] = msgspec.field(default_factory=dict)
    model: Body | None = None  # what `provenance.as_model` returns, as long as it holds

    def __repr__(self) -> str:
        return f"<Body: {self.label}>"

    def __len__(self) -> int:
        return len(self.heads.names)

    def __iter__(self) -> Iterator[Node]:
        return (Node(self, index) for index in range(len(self)))

    @property
    def is_main(self) -> bool:
        """Return whether this is the graph itself, not a function of its library."""
        return self.signature is None

    @cached_property
    def by_name(self) -> dict[str, int]:
        """Return the index of each op, by its name."""
        return dict(zip(self.heads.names, range(len(self)), strict=True))

    @cached_property
    def by_type(self) -> dict[str, list[int]]:
        """Return the indices of the ops of each op type."""
        indices: dict[str, list[int]] = defaultdict(list)
        for index, op in enumerate(self.heads.ops):
            indices[op].append(index)
        return dict(indices)

    @cached_property
    def readers(self) -> dict[str, Uses]:
        """Return who reads an op, data or control: (index, slot in NodeDef.input) of each use."""
        uses: dict[str, Uses] = defaultdict(list)
        for index, inputs in enumerate(self.heads.inputs):
            for slot, text in enumerate(inputs):
                # Most inputs are an op's output 0, spelled as its name: no call for them.
                plain = ":" not in text and text[:1] != "^"
                uses[text if plain else names.op_of(text)].append((index, slot))
        return dict(uses)

    @cached_property
    def returned(self) -> dict[str, list[str]]:
        """Return the outputs of the function that each op, or argument, gives."""
        outputs: dict[str, list[str]] = {}
        for key, text in self.ret.items():
            outputs.setdefault(names.op_of(text), []).append(key)
        return outputs

    @cached_property
    def arguments(self) -> dict[str, int]:
        """Return the inputs of the function, with their DataType; none in the main graph."""
        args = self.signature.input_arg if self.signature is not None else ()
        return {arg.name: arg.type for arg in args}

    def in_file_order(self) -> Sequence[int]:
        """Return the nodes as they are written: those that were added stand beside their root."""
        if not self.placed:
            return range(len(self))
        roots = range(len(self.heads.starts))
        return [index for root in roots for index in self.placed.get(root, (root,))]

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
            return edited.payload() if isinstance(edited, EditedNode) else edited
        if index not in self.large:
            start = self.heads.starts[index]
            value, end = entry(self.source, start)
            if end - value < LARGE:
                return Payload(self.source.data[value:end])
            payload = payload_at(self.source, start)
            self.large[index] = payload, message(NodeDef, payload.small)
        return self.large[index][0]

    def form(self, index: int) -> bytes | int:
        """Return the device and attrs of a node, without its record and colocation, as bytes.

        Of a node with fields as large as weights: its index.
        """
        payload = self.payload(index)
        if payload.large:
            return index
        rest = behind_head(payload.small)
        is_plain = not self.may_be_signed(index) and COLOCATED not in rest
        if is_plain and rest[:1] not in HEAD:
            return rest
        source, at = Source(rest), 0
        parts: list[bytes] = []
        while at + 1 < len(rest) and rest[at] & 7 == BYTES:  # as all fields of a NodeDef are
            value, end = entry(source, at)
            if rest[at] not in HEAD and not rest.startswith((RECORD, COLOCATED), value):
                parts.append(rest[at:end])
            at = end
        return b"".join([*parts, rest[at:]])

    def node_def(self, index: int) -> NodeDef:
        """Return the NodeDef without fields as large as weights; only `editor` changes it."""
        return self._parsed(index)[0]

    def _parsed(self, index: int, key: str = "") -> tuple[NodeDef, tuple[Span, ...]]:
        """Return the NodeDef and its large fields; of a small one without this attr, nothing."""
        edited = self.edited.get(index)
        if isinstance(edited, EditedNode):
            return edited.current(), edited.large
        payload = self.payload(index)
        if edited is None and index in self.large:
            return self.large[index][1], payload.large
        is_asked = payload.mentions(key)
        return message(NodeDef, payload.small) if is_asked else NodeDef(), payload.large

    def attr(self, index: int, key: str) -> AttrValue | None:
        """Return the value of an attr of a node, or None. Of large attrs it reads that alone."""
        proto, large = self._parsed(index, key)
        for large_key, value in map(large_entry, large):
            if large_key == key:
                return attr_value(value)
        small: AttrValue | None = proto.attr.get(key)
        return small

    def may_be_signed(self, index: int) -> bool:
        """Tell whether a node may carry a record; quick, and wrong only where it says yes."""
        return index in self.edited or index in self.heads.records

    def signed(self) -> list[int]:
        """Return the nodes that may carry a record, as `may_be_signed`, in their order."""
        records = self.heads.records
        return sorted(records.keys() | self.edited.keys()) if self.edited else list(records)

    def record(self, index: int) -> NodeRecord | None:
        """Return what rules wrote down on a node; ModelError where graphpatch did not write it."""
        edited = self.edited.get(index)
        if isinstance(edited, EditedNode):
            return edited.record
        if edited is not None:
            value = self.attr(index, PROVENANCE_ATTR)
            return None if value is None else self._read_record(index, value.list.s)
        if index not in self.records and index in self.heads.records:
            self.records[index] = self._read_record(index, self.heads.records[index])
        return self.records.get(index)

    def _read_record(self, index: int, strings: Sequence[bytes]) -> NodeRecord:
        try:
            return read_strings(strings)
        except ValueError as error:
            raise ModelError(
                f"{Node(self, index)}: its attr {PROVENANCE_ATTR} is not one that graphpatch "
                f"wrote: {error}"
            ) from None

    def touched(self) -> Mapping[int, NodeRecord]:
        """Return what rules wrote down on nodes, by their indices, in the order of these."""
        if self.edited:
            records = ((index, self.record(index)) for index in self.signed())
            return {index: record for index, record in records if record is not None}
        in_file, read = self.heads.records, self._read_record
        if len(self.records) < len(in_file):
            self.records = {index: read(index, strings) for index, strings in in_file.items()}
        return self.records

    def written(self) -> dict[int, bytes]:
        """Return the NodeDefs that carry a record, serialized, in the order of the file."""
        if not self.edited:
            return {index: self.payload(index).small for index in self.heads.records}
        signed = self.heads.records.keys() | self.edited.keys()
        order = filter(signed.__contains__, self.in_file_order())
        return {at: raw for at in order if PROVENANCE in (raw := self.payload(at).small)}

    def open_node(self, index: int) -> EditedNode:
        """Open a node to be changed by `editor`, or signed: first, its record keeps it as it is.

        Large fields stay out of the record as long as they stay in the node.
        """
        edited = self.edited.get(index)
        if not isinstance(edited, EditedNode):
            payload, record = self.payload(index), self.record(index)
            record = (
                NodeRecord(original=payload.parts or (payload.small,))
                if record is None
                else replace(record)
            )
            edited = EditedNode(message(NodeDef, payload.small), record, payload.large)
            self.edited[index] = edited
        edited.written = None
        return edited

    @cached_property
    def places(self) -> dict[int, int]:
        """Return where an op in `placed` was when last searched: it only moves to the end."""
        return {}

    def copy(self, library: Library) -> Body:
        """Return the same nodes, to be changed without this body seeing it."""
        heads = self.heads.copy()
        body = replace(self, library=library, heads=heads, tensors={}, model=None)
        body.edited = {index: self.payload(index) for index in self.edited}
        body.ret, body.returns = dict(self.ret), dict(self.returns)
        body.root, body.renamed = dict(self.root), dict(self.renamed)
        body.placed = {root: list(order) for root, order in self.placed.items()}
        return body


class Node(NamedTuple):
    """One op of a body, seen through its index; cheap to make, and read on demand."""

    body: Body
    index: int  # type: ignore[assignment]  # instead of the method that tuples have

    @property
    def name(self) -> str:
        """Return the op's name."""
        return self.body.heads.names[self.index]

    @property
    def op(self) -> str:
        """Return the op type."""
        return self.body.heads.ops[self.index]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return NodeDef.input: data inputs first, then control inputs."""
        return tuple(self.body.heads.inputs[self.index])

    @property
    def data_inputs(self) -> tuple[str, ...]:
        """Return the tensors it reads."""
        return tuple([text for text in self.inputs if text[:1] != "^"])

    @property
    def device(self) -> str:
        """Return the device that the NodeDef asks for."""
        return str(self.body.node_def(self.index).device)

    @property
    def attr_names(self) -> list[str]:
        """Return the attrs that the NodeDef carries."""
        return sorted(self.attr_spans())

    def attr(self, key: str) -> AttrValue | None:
        """Return the value of an attr, or None. Of large attrs it reads that one alone."""
        return self.body.attr(self.index, key)

    def attrs(self) -> Mapping[str, AttrValue]:
        """Return the attrs that the NodeDef carries, large tensors left out."""
        attrs: Mapping[str, AttrValue] = self.body.node_def(self.index).attr
        return attrs

    def attr_spans(self) -> Mapping[str, Span]:
        """Return where each attr's serialized AttrValue lies."""
        return self.body.payload(self.index).attr_spans()

    @property
    def opdef(self) -> opdefs.OpDef | None:
        """Return what its op type looks like: a function of the library, or a known op."""
        return self.body.library.opdef(self.op)

    @property
    def outputs(self) -> list[opdefs.FlatArg] | None:
        """Return its outputs, one for each tensor; None for an op type that we don't know."""
        return self._tensors("outputs")

    @property
    def arguments(self) -> list[opdefs.FlatArg] | None:
        """Return its data inputs as its op type declares them; None for an unknown type."""
        return self._tensors("inputs")

    def _tensors(self, which: str) -> list[opdefs.FlatArg] | None:
        body, opdef = self.body, self.opdef
        if opdef is None or (self.index, which) in body.tensors:
            return body.tensors.get((self.index, which))
        try:
            tensors = opdefs.flatten(opdef, getattr(opdef, which), self.attrs().get)
        except ModelError as error:
            raise ModelError(f"{self}: {error}") from error
        if len(tensors) >= MANY:
            body.tensors[self.index, which] = tensors
        return tensors

    def tensor(self, output: int) -> str:
        """Return how an input spells output `output` of this op, in this body."""
        if self.body.is_main:
            return str(names.TensorName(self.name, output))
        outputs = self.outputs
        if outputs is None:
            raise ModelError(f"{self}: the outputs of op type {self.op} are not known")
        return f"{self.name}:{outputs[output].name}:{outputs[output].index}"

    def __str__(self) -> str:
        place = "" if self.body.is_main else f" in function {one_line(self.body.label)}"
        return f"{one_line(self.op)} {self.name!r}{place}"
