"""Ops of one form: what an edit asks of them is asked once, of one op that stands for them all.

A NodeDef is a name, the names that it reads, and its form: all else, and how long these names are.
The op that stands for a form has stand-ins of the same length where its own names would be.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from tensorboard.compat.proto.attr_value_pb2 import AttrValue

from graphpatch import names
from graphpatch.graph.body import Body, Node
from graphpatch.graph.heads import LARGE, PROVENANCE, Heads, entry
from graphpatch.graph.nodedef import INPUT, NAME, OP, attr_entry, attr_span, attr_value
from graphpatch.graph.wire import BYTES, encoded, piece_bytes

VARYING = ("_output_shapes", "_class")
"""Attrs that often differ from node to node. No patch reads them: it passes them on."""

MOST = 24  # names that an op of a form has: its own, and those that it reads
FIRST = 0x7C0  # of the letters that stand-ins begin with, two bytes each
TEXT_TAGS = bytes((NAME << 3 | BYTES, OP << 3 | BYTES))
INPUT_TAG = bytes((INPUT << 3 | BYTES,))
MARK = re.compile(rf"[{chr(FIRST)}-{chr(FIRST + MOST + 1)}]")
RAW_MARK = re.compile(b"\xdf[\x80-\x99]")  # the same in bytes
PLAIN = re.compile(r"[A-Za-z0-9_.>/-]{2,}")  # names that JSON spells as they are


class UnlikeError(Exception):
    """An edit asked an op that stands for others what is not a matter of its form."""


@dataclass(eq=False)
class OneOp(Body):
    """A body of one op, which stands for the ops of its form; what is around it is not known."""

    @cached_property
    def readers(self) -> dict[str, list[tuple[int, int]]]:
        """Raises UnlikeError: ops of one form have other readers each."""
        raise UnlikeError

    def producer(self, tensor: str) -> Node | None:
        """Raises UnlikeError: ops of one form read other ops each."""
        raise UnlikeError


class Form(NamedTuple):
    """What ops have in common, with stand-ins for what each has of its own."""

    name: str
    op: str
    inputs: tuple[str, ...]
    rest: bytes  # what the NodeDef has behind its inputs

    def node(self, body: Body) -> Node:
        """An op of this form, which stands for those of `body`."""
        payload = _head(self.name, self.op, self.inputs) + self.rest
        heads = Heads(names=[self.name], ops=[self.op], inputs=[self.inputs])
        alone = OneOp(body.label, body.library, body.source, heads)
        alone.edited[0] = [payload]
        return Node(alone, 0)

    def stand_ins(self) -> Iterator[tuple[int, bytes]]:
        """Of each that is there: its place, and its bytes."""
        for text in dict.fromkeys((self.name, *map(names.op_of, self.inputs))):
            if MARK.match(text):
                yield ord(text[0]) - FIRST, text.encode()
        for place, key in enumerate(VARYING, MOST):
            span = attr_span([self.rest], key)
            if span is not None and chr(FIRST + place).encode() in piece_bytes(span):
                yield place, piece_bytes(span)


@dataclass(eq=False)
class Forms:
    """Tells the form of each op of a body."""

    body: Body
    rests: dict[bytes, tuple[bytes, dict[int, bytes]] | None] = field(default_factory=dict)

    def of(self, index: int) -> tuple[Form, list[str], dict[int, bytes]] | None:
        """The form of an op; its names, and other bytes of its own, by their places.

        None where it counts as like no other: an op that was edited, or is spelled in another way
        than TensorFlow spells NodeDefs.
        """
        body, heads = self.body, self.body.heads
        if index >= len(heads.starts) or index in body.edited or index in body.placed:
            return None
        value, end = entry(body.source, heads.starts[index])
        name, op, inputs = heads.names[index], heads.ops[index], heads.inputs[index]
        head = _head(name, op, inputs)
        if end - value >= LARGE or body.source.data[value : value + len(head)] != head:
            return None
        rest = body.source.data[value + len(head) : end]
        if rest not in self.rests:
            self.rests[rest] = _split(rest)
        own, found = [name], self.rests[rest]
        spelled = tuple([_stood_for(text, own) for text in inputs])
        if found is None or len(own) > MOST or not all(map(PLAIN.fullmatch, own)):
            return None
        return Form(_stand_in(0, len(name)), op, spelled, found[0]), own, found[1]


def behind_inputs(node: Node) -> bytes | None:
    """What a NodeDef has behind its inputs: its device and attrs. Most nodes are alike in these.

    None for a large NodeDef, and for one that is spelled in another way than TensorFlow does.
    """
    payload = node.body.payload(node.index)
    if len(payload) != 1 or not isinstance(payload[0], bytes):
        return None
    raw, at = payload[0], 0
    for tag in (*TEXT_TAGS, *INPUT_TAG * len(node.inputs)):
        if raw[at : at + 1] != bytes((tag,)) or raw[at + 1] > 0x7F:
            head = _head(node.name, node.op, node.inputs)  # a name of more than 127 bytes
            return raw[len(head) :] if raw.startswith(head) else None
        at += 2 + raw[at + 1]
    return raw[at:]


def _head(name: str, op: str, inputs: tuple[str, ...]) -> bytes:
    """A NodeDef up to its last input, as TensorFlow spells it."""
    head = encoded(NAME, name.encode()) + encoded(OP, op.encode())
    return head + b"".join([encoded(INPUT, text.encode()) for text in inputs])


@functools.cache
def _stand_in(place: int, length: int) -> str:
    return chr(FIRST + place) + "." * (length - 2)


def _stood_for(text: str, own: list[str]) -> str:
    """An input with a stand-in for the name in it, which is put among the op's own."""
    op = names.op_of(text)
    if len(op) < 2:
        return text
    if op not in own:
        own.append(op)
    if len(own) > MOST:
        return text
    spelled = _stand_in(own.index(op), len(op))
    return spelled if text == op else text.replace(op, spelled, 1)


def _split(rest: bytes) -> tuple[bytes, dict[int, bytes]] | None:
    """The rest of a NodeDef with stand-ins for attrs that vary, and what these are."""
    if PROVENANCE in rest or RAW_MARK.search(rest):
        return None
    found: dict[int, bytes] = {}
    for place, key in enumerate(VARYING, MOST):
        span = attr_span([rest], key)
        value = b"" if span is None else piece_bytes(span)
        stands = _attr_stand_in(place, len(value))
        if span is None or attr_value(span).SerializeToString(deterministic=True) != value:
            continue
        if len(stands) == len(value) and rest.count(attr_entry(key, value)) == 1:
            rest, found[place] = (
                rest.replace(attr_entry(key, value), attr_entry(key, stands)),
                value,
            )
    return rest, found


def _attr_stand_in(place: int, length: int) -> bytes:
    """A serialized AttrValue of so many bytes; of others, where there is none of so many."""
    text = _stand_in(place, max(2, length - (2 if length < 130 else 3)))
    stands: bytes = AttrValue(placeholder=text).SerializeToString(deterministic=True)
    return stands
