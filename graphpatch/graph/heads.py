"""Names, op types and inputs of many NodeDefs at once, their attrs left unread.

Runs of small NodeDefs go to protobuf in one call each, as a message that knows only the first
three fields of NodeDef; of a large one (a Const with weights) only the head is walked over.
"""

from __future__ import annotations

import functools
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from graphpatch.errors import ModelError
from graphpatch.graph.wire import BYTES, Field, Source, field_at, fields, utf8

LARGE = 1 << 14  # bytes from which on a NodeDef is read head first
RUN = 1 << 22  # bytes that go to protobuf in one call
MOST_NODES = 2_000_000  # of one body; the largest graph that we know has 400,000
LEAST = 6  # bytes of a NodeDef with a name and an op type
PROVENANCE = b"_graphpatch"

Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Heads:
    """What is known of each NodeDef of a body, by its place in the file."""

    starts: array[int] = field(default_factory=lambda: array("Q"))
    names: list[str] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    inputs: list[tuple[str, ...]] = field(default_factory=list)
    marked: list[range] = field(default_factory=list)  # among these, some may carry provenance


def read_heads(
    source: Source, starts: array[int], number: int, progress: Progress | None = None
) -> Heads:
    """The heads of the NodeDefs whose fields (of this number) start at `starts`.

    Raises ModelError where one of them is no NodeDef.
    """
    heads = Heads(starts)
    for start, end, large in _runs(source, starts):
        raw = b"" if large else source.data[start:end]
        first = len(heads.names)
        _append(heads, _large_head(source, start) if large else _parse(raw, number, start))
        if "" in heads.names[first:] or "" in heads.ops[first:]:
            raise ModelError(f"a node at byte {start} or behind has no name, or no op type")
        if large or PROVENANCE in raw:
            heads.marked.append(range(first, len(heads.names)))
        if progress is not None:
            progress("reading", end, len(source.data))
    return heads


def scan(source: Source, start: int, end: int, number: int) -> tuple[array[int], list[Field]]:
    """Where the fields `number` of the message from `start` to `end` start, and all other fields.

    Raises ModelError where the bytes are no message, or end in the middle of a field.
    """
    data, tag, starts, others, at = source.data, number << 3 | BYTES, array("Q"), [], start
    append = starts.append
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
    except IndexError:
        at = end + 1
    if at != end:
        raise ModelError(f"truncated: the last of its nodes should end at byte {at}, not {end}")
    if len(starts) > MOST_NODES:
        raise ModelError(f"{len(starts):,} nodes; graphpatch reads up to {MOST_NODES:,}")
    return starts, others


def _append(heads: Heads, nodes: Any) -> None:
    # Three comprehensions are a third faster than one loop, which counts at a million nodes.
    heads.names += [node.name for node in nodes]
    heads.ops += [sys.intern(node.op) for node in nodes]
    # A slice is copied in one call, where tuple() alone asks for each input.
    heads.inputs += [tuple(node.input[:]) for node in nodes]


def _parse(raw: bytes, number: int, start: int) -> Any:
    try:
        return _messages()[number].FromString(raw).node
    except DecodeError as error:
        raise ModelError(f"not a GraphDef: the nodes at byte {start} do not parse") from error


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
    for start in starts:
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


@dataclass(slots=True)
class _Head:
    name: str = ""
    op: str = ""
    input: list[str] = field(default_factory=list)


def _large_head(source: Source, start: int) -> list[_Head]:
    head = _Head()
    value, end = entry(source, start)
    for part in fields(source.data, value, end):
        if part.number > 3 or part.wire != BYTES:
            continue
        found = utf8(source.data, part.value, part.end)
        if part.number == 3:
            head.input.append(found)
        else:
            setattr(head, "name" if part.number == 1 else "op", found)
    return [head]


@functools.cache
def _messages() -> dict[int, Any]:
    """For each field number that holds NodeDefs, a message that has only their heads."""
    file = descriptor_pb2.FileDescriptorProto(
        name="graphpatch/heads.proto", package="graphpatch", syntax="proto3"
    )
    node = file.message_type.add(name="Head")
    for number, (name, label) in enumerate([("name", 1), ("op", 1), ("input", 3)], 1):
        node.field.add(name=name, number=number, type=9, label=label)
    for number in (1, 3):
        nodes = file.message_type.add(name=f"Heads{number}").field
        nodes.add(name="node", number=number, type=11, label=3, type_name=".graphpatch.Head")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = {n: pool.FindMessageTypeByName(f"graphpatch.Heads{n}") for n in (1, 3)}
    return {n: message_factory.GetMessageClass(message) for n, message in found.items()}
