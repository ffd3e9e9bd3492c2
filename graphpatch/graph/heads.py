"""Names, op types and inputs of many NodeDefs at once, their attrs parsed and not kept.

Runs of small NodeDefs go to protobuf in one call each, so that a broken attr is found before a rule
works on its op. A large one (a Const with weights) is walked over, its weights left unread.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.function_pb2 import FunctionDef
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from graphpatch.errors import ModelError
from graphpatch.graph.flat import node_columns
from graphpatch.graph.wire import BYTES, Field, Source, field_at, fields, utf8

LARGE = 1 << 14  # bytes from which on a NodeDef is read head first
RUN = 1 << 20  # bytes that go to protobuf in one call
MOST_NODES = 2_000_000  # of one body; the largest graph that we know has 400,000
MOST_FIELDS = 500_000  # of one node; the widest op that we know reads 66,000 tensors
MOST_OTHERS = 1_000  # fields of a body that are not nodes, and one more for so many bytes:
BYTES_FOR_ONE = 32
LEAST = 6  # bytes of a NodeDef with a name and an op type
NODE = 1  # number of the field of a GraphDef that holds a node
PROVENANCE = b"_graphpatch"

Progress = Callable[[str, int, int], None]


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


def read_heads(
    source: Source, starts: array[int], number: int, progress: Progress | None = None
) -> Heads:
    """The heads of the NodeDefs whose fields (of this number) start at `starts`.

    Raises ModelError where one of them is not a NodeDef.
    """
    heads = Heads(starts)
    for start, end, large in _runs(source, starts):
        first = len(heads.names)
        if number != NODE or large or not _append_run(heads, source, end):
            nodes = _large_head(source, start) if large else _parse(source, start, end, number)
            _append(heads, nodes, start)
        if large:
            heads.marked.append(first)
        elif source.data.find(PROVENANCE, start, end) >= 0:
            heads.marked += _marked(heads, source, first, end)
        if progress is not None:
            progress("reading", end, len(source.data))
    return heads


def _marked(heads: Heads, source: Source, first: int, end: int) -> Iterator[int]:
    """Of the nodes from this one up to byte `end`, those that mention a record."""
    ends = [*heads.starts[first + 1 : len(heads.names)], end]
    for index, stop in enumerate(ends, first):
        if source.data.find(PROVENANCE, heads.starts[index], stop) >= 0:
            yield index


def scan(source: Source, start: int, end: int, number: int) -> tuple[array[int], list[Field]]:
    """Where the fields `number` of the message from `start` to `end` start, and all other fields.

    Raises ModelError where the bytes are not a message, or end in the middle of a field.
    """
    data, tag, starts, others, at = source.data, number << 3 | BYTES, array("Q"), [], start
    append, most = starts.append, MOST_OTHERS + (end - start) // BYTES_FOR_ONE
    most = most if number != NODE else MOST_OTHERS  # a function has a field for each output
    try:
        while at < end:
            if data[at] == tag:
                append(at)
                size = data[at + 1]
                if size < LEAST:
                    raise ModelError(f"the node at byte {at} has no name, or no op type")
                at = entry(source, at)[1] if size > 0x7F else at + 2 + size
            else:
                others.append(field_at(data, at, end))
                at = others[-1].end
                if len(others) > most:
                    raise ModelError(
                        f"more than {most:,} fields besides its nodes; graphpatch reads no more"
                    )
    except IndexError:
        at = end + 1
    if at != end:
        raise ModelError(
            f"truncated: the last of its nodes should end at byte {at}, not {end}; "
            "copy or download the file again"
        )
    if len(starts) > MOST_NODES:
        raise ModelError(f"{len(starts):,} nodes; graphpatch reads up to {MOST_NODES:,}")
    return starts, others


def _append_run(heads: Heads, source: Source, end: int) -> bool:
    """Append the nodes from the next one up to byte `end`; False where they must be read singly."""
    first = len(heads.names)
    run = heads.starts[first : bisect_left(heads.starts, end, first)]
    data, ends = source.data, [*run[1:], end]
    try:
        found = node_columns([data[start:stop] for start, stop in zip(run, ends, strict=True)])
    except DecodeError:
        return False
    if found is None:
        return False
    heads.names += found.names
    heads.ops += map(sys.intern, found.ops)
    heads.inputs += found.inputs
    return True


def _append(heads: Heads, nodes: Any, start: int) -> None:
    # Three comprehensions are a third faster than one loop, which counts at a million nodes.
    nodes = list(nodes)  # protobuf makes an object for each whenever it is asked for it
    heads.names += [node.name for node in nodes]
    heads.ops += map(sys.intern, [node.op for node in nodes])
    # A slice is copied in one call, where tuple() alone asks for each input.
    heads.inputs += [tuple(node.input[:]) for node in nodes]
    if not all(node.name and node.op for node in nodes):
        raise ModelError(f"a node at byte {start} or behind has no name, or no op type")


def _parse(source: Source, start: int, end: int, number: int) -> Any:
    """The NodeDefs of a run: fields `number` of a GraphDef, or else of a FunctionDef."""
    raw = source.data[start:end]
    try:
        if number == 1:
            return GraphDef.FromString(raw).node
        return FunctionDef.FromString(raw).node_def
    except DecodeError:
        for field in fields(source.data, start, end):
            _refuse_broken(source, field)
        raise ModelError(f"not a GraphDef: the nodes at byte {start} do not parse") from None


def _refuse_broken(source: Source, field: Field) -> None:
    """Raise ModelError where the field holds no NodeDef."""
    try:
        NodeDef.FromString(source.data[field.value : field.end])
    except DecodeError:
        parts = fields(source.data, field.value, field.end)
        names = (utf8(source.data, part.value, part.end) for part in parts if part.holds(1))
        raise _broken(next(names, ""), field.start) from None


def _broken(name: str, start: int) -> ModelError:
    return ModelError(
        f"not a protobuf: the node {name!r} at byte {start} is broken; "
        f"TensorFlow cannot read it either"
    )


def entry(source: Source, start: int) -> tuple[int, int]:
    """Where the value of the length-delimited field at `start` begins and ends."""
    data = source.data
    at = start + 1
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at, at + length
        shift += 7


def _runs(source: Source, starts: array[int]) -> Iterator[tuple[int, int, bool]]:
    """Stretches of adjacent small NodeDefs, and each large one alone: start, end, large."""
    run_start = run_end = -1
    data = source.data
    for start in starts:
        value, end = start + 2, start + 2 + data[start + 1]
        if end - value > 0x7F:  # then the length takes more than that byte
            value, end = entry(source, start)
        if end - value >= LARGE:
            if run_end > run_start:
                yield run_start, run_end, False
            yield start, end, True
            run_start = run_end = end
        elif start == run_end and end - run_start < RUN:
            run_end = end
        else:
            if run_end > run_start:
                yield run_start, run_end, False
            run_start, run_end = start, end
    if run_end > run_start:
        yield run_start, run_end, False


def _large_head(source: Source, start: int) -> list[NodeDef]:
    """The NodeDef without fields as large as weights, which are not read."""
    rest, (value, end) = bytearray(), entry(source, start)
    run = value
    for count, part in enumerate(fields(source.data, value, end)):
        if part.end - part.start >= LARGE and part.number > 3:
            rest += source.data[run : part.start]
            run = part.end
        if count == MOST_FIELDS:
            raise ModelError(
                f"the node at byte {start} has more than {MOST_FIELDS:,} inputs and attrs; "
                f"graphpatch reads no more"
            )
    rest += source.data[run:end]
    try:
        return [NodeDef.FromString(bytes(rest))]
    except DecodeError:
        texts = (part for part in fields(source.data, value, end) if part.holds(1))
        name = next((utf8(source.data, part.value, part.end) for part in texts), "")
        raise _broken(name, start) from None
