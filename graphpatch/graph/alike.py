"""Ops of one form: what an edit asks of them is asked once, of one op that stands for them all.

A NodeDef is a name, the names that it reads, and its form: all else, and how long these names are.
The op that stands for a form has stand-ins of the same length where its own names would be.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple

import msgspec
from tensorboard.compat.proto.attr_value_pb2 import AttrValue

from graphpatch import names
from graphpatch.graph.body import Body, Node, Uses
from graphpatch.graph.heads import LARGE, PROVENANCE, Heads, entry
from graphpatch.graph.nodedef import (
    INPUT,
    NAME,
    OP,
    attr_entry,
    attr_span,
    attr_value,
    head_bytes,
)
from graphpatch.graph.wire import BYTES, encoded, piece_bytes

VARYING = ("_output_shapes", "_class")
"""Attrs that often differ from node to node. No patch reads them: it passes them on."""

MOST = 24  # names that an op of a form has: its own, and those that it reads
FIRST = 0x7C0  # of the letters that stand-ins begin with, two bytes each
MARK = re.compile(rf"[{chr(FIRST)}-{chr(FIRST + MOST + 1)}]")
RAW_MARK = re.compile(b"\xdf[\x80-\x99]")  # the same in bytes
PLAIN = re.compile(r"[A-Za-z0-9_.>/-]{2,}")  # names that JSON spells as they are
SHORT = 0x80  # bytes from which on a length takes two


class UnlikeError(Exception):
    """An edit asked an op that stands for others what is not a matter of its form."""


class OneOp(Body, eq=False):
    """A body of one op, which stands for the ops of its form; what is around it is not known."""

    @cached_property
    def readers(self) -> dict[str, Uses]:
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
        payload = head_bytes(self.name, self.op, self.inputs) + self.rest
        heads = Heads(names=[self.name], ops=[self.op], inputs=[self.inputs])
        alone = OneOp(body.label, body.library, body.source, heads)
        alone.write(0, [payload])
        return Node(alone, 0)

    def stand_ins(self) -> tuple[list[bytes], list[bytes]]:
        """Those that are there: for the names of an op, and for its other bytes."""
        texts = dict.fromkeys((self.name, *map(names.op_of, self.inputs)))
        own = sorted(text.encode() for text in texts if MARK.match(text))
        spans = [(place, attr_span([self.rest], key)) for place, key in enumerate(VARYING, MOST)]
        return own, [
            piece_bytes(span)
            for place, span in spans
            if span is not None and chr(FIRST + place).encode() in piece_bytes(span)
        ]


FormKey = tuple[str, bytes, tuple[Any, ...]]
"""What tells forms apart: op type, rest, the length of the name and how inputs are spelled."""

AttrBytes = tuple[bytes, ...]
"""The attrs that vary, of one op."""


OwnBytes = tuple[FormKey, tuple[str, ...], tuple[bytes, ...]]
"""By what the form of an op is known, and the names that are the op's own; as bytes too."""


class Forms(msgspec.Struct, eq=False):
    """Tells the forms of the ops of a body."""

    body: Body
    rests: dict[bytes, tuple[bytes, dict[int, bytes]] | None] = msgspec.field(default_factory=dict)

    def of_all(self, indices: Sequence[int]) -> list[OwnBytes | None]:
        """By what the form of each op is known.

        None where it counts as like no other: an op that was added, or is spelled in another way
        than TensorFlow spells NodeDefs. None of the ops may have been edited.
        """
        heads = self.body.heads
        groups: dict[tuple[str, int], list[int]] = {}
        for index in indices:
            groups.setdefault((heads.ops[index], len(heads.inputs[index])), []).append(index)
        found: dict[int, OwnBytes | None] = {}
        for (op, _), group in groups.items():
            there = [index for index in group if index < len(heads.starts)]
            inputs = zip(*[heads.inputs[index] for index in there], strict=True)
            columns = [[heads.names[index] for index in there], *inputs]
            if there and len(columns) <= MOST and all(map(_are_plain, columns)):
                found.update(zip(there, self._plain(op, there, columns), strict=True))
            else:
                found.update((index, self._other(index)) for index in there)
        return [found.get(index) for index in indices]

    def _plain(
        self, op: str, indices: Sequence[int], columns: Sequence[Sequence[str]]
    ) -> list[OwnBytes | None]:
        """Of ops that read output 0 of others alone; columns of their names and of their inputs."""
        raw = [[text.encode() for text in column] for column in columns]
        sizes = [list(map(len, column)) for column in raw]
        parts = [one for both in zip(sizes, raw, strict=True) for one in both]
        heads = map(_format(op, len(columns) - 1).__mod__, zip(*parts, strict=True))
        rests = list(map(self._rest, indices, heads))
        owns = list(zip(*columns, strict=True))
        # Tuples of columns are made without a call in Python for each op.
        keys = zip(repeat(op, len(rests)), rests, zip(*sizes, strict=True), strict=True)
        found: list[OwnBytes | None] = list(zip(keys, owns, zip(*raw, strict=True), strict=True))  # type: ignore[arg-type]
        different = list(map(len, map(set, owns)))
        if None in rests or different.count(len(columns)) < len(owns):
            for place, (count, rest) in enumerate(zip(different, rests, strict=True)):
                if rest is None or count < len(columns):
                    found[place] = self._other(indices[place])
        return found

    def _other(self, index: int) -> OwnBytes | None:
        """Of any op."""
        heads = self.body.heads
        name, op, inputs = heads.names[index], heads.ops[index], heads.inputs[index]
        rest, own = self._rest(index, head_bytes(name, op, inputs)), [name]
        spelled = tuple([_stood_for(text, own) for text in inputs])
        if rest is None or len(own) > MOST or not all(map(PLAIN.fullmatch, own)):
            return None
        return (op, rest, (len(name), *spelled)), tuple(own), tuple(map(str.encode, own))

    def _rest(self, index: int, head: bytes) -> bytes | None:
        """What a NodeDef has behind its inputs; None where it does not begin so, or is large."""
        source, start = self.body.source, self.body.heads.starts[index]
        value, size = start + 2, source.data[start + 1]
        end = value + size
        if size >= SHORT:  # then the length takes more than that byte
            value, end = entry(source, start)
            if end - value >= LARGE or not (end - value) >> 7 * (value - start - 2):
                return None
        raw = source.data[value:end]
        return raw[len(head) :] if raw.startswith(head) else None

    def form(self, key: FormKey) -> tuple[Form, AttrBytes] | None:
        """The form that is known by this, and other bytes that its ops have of their own."""
        op, rest, (length, *spelled) = key
        if rest not in self.rests:
            self.rests[rest] = _split(rest)
        found = self.rests[rest]
        if found is None:
            return None
        inputs = (
            _stand_in(place, one) if isinstance(one, int) else one
            for place, one in enumerate(spelled, 1)
        )
        return Form(_stand_in(0, length), op, tuple(inputs), found[0]), tuple(found[1].values())


def _are_plain(column: Sequence[str]) -> bool:
    """Whether all are names that JSON spells as they are, of less than 128 bytes."""
    sizes = set(map(len, column))
    return min(sizes) >= 2 and max(sizes) < SHORT and names.are_spelled(column)


def _format(op: str, inputs: int) -> bytes:
    """The same for short names, each behind its length."""
    spelled = encoded(OP, op.encode()).replace(b"%", b"%%")
    return (
        b"%c%%c%%b%b" % (NAME << 3 | BYTES, spelled) + b"%c%%c%%b" % (INPUT << 3 | BYTES) * inputs
    )


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
