"""Who changed a node: an attr that TensorFlow ignores, written on each node touched or added.

`_graphpatch` is a list of strings, one JSON object an edit, oldest first:
`{"rule": name, "id": fingerprint of the rule, "did": ..., ...}`, where an op was
`added` (`for` the op that the rule was at; `of`: as a clone of that op), `renamed`, `enclosed` in a
function, `shadowed` by another gradient, had an `attr` or `input` changed, or is where an output of
its function is `returned` from, with what was there before, so that the edit can be taken back
(`undo`). On one node of a graph stands besides, as `{"did": "origin", ...}`, what the model was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensorboard.compat.proto.attr_value_pb2 import AttrValue

from graphpatch.errors import ModelError
from graphpatch.graph.body import Body, Node
from graphpatch.graph.nodedef import (
    Payload,
    attr_span,
    attr_value,
    attr_values,
    mentions,
    with_attr,
)

KEY = "_graphpatch"
ORIGIN = "origin"

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Author:
    """The rule on whose behalf a graph is changed."""

    rule: str
    id: str

    def entry(self, did: str, **details: Any) -> bytes:
        """One edit by this rule, as it is written down."""
        from graphpatch.graph import edits

        return edits.write({"rule": self.rule, "id": self.id, "did": did, **details})


def signed(payload: Payload, entry: bytes) -> Payload:
    """The payload with one more edit written down."""
    span = attr_span(payload, KEY)
    value = AttrValue() if span is None else attr_value(span)
    value.list.s.append(entry)
    return with_attr(payload, KEY, value.SerializeToString(deterministic=True))


def rewritten(payload: Payload, found: Sequence[Entry]) -> Payload:
    """The payload with these edits written down, and no others."""
    if not found:
        return with_attr(payload, KEY, None)
    from graphpatch.graph import edits

    value = AttrValue(list=AttrValue.ListValue(s=map(edits.write, found)))
    return with_attr(payload, KEY, value.SerializeToString(deterministic=True))


def entries(node: Node) -> list[Entry]:
    """The edits written down on a node, oldest first; ModelError where they are not ours."""
    return [entry for entry in written(node) if entry["did"] != ORIGIN]


def written(node: Node) -> list[Entry]:
    """All that is written down on a node: its edits, and what the model was before."""
    if not node.body.may_be_signed(node.index):
        return []
    value = _value(node.body.payload(node.index))
    if value is None:
        return []
    from graphpatch.graph import edits  # most models have none, and need no msgspec

    try:
        if value.WhichOneof("value") != "list":
            raise ValueError("it is no list of edits")
        return list(map(edits.read, value.list.s))
    except ValueError as error:
        raise ModelError(
            f"{node}: its attr {KEY} is not one that graphpatch wrote: {error}"
        ) from None


def shadow(node: Node) -> str:
    """The rule that gave an op's outputs another gradient, so that none reaches the op itself."""
    return next((entry["rule"] for entry in entries(node) if entry.get("shadowed")), "")


def clones(body: Body, names: Collection[str]) -> Iterator[Node]:
    """The ops of a body that rules cloned from these."""
    for node in touched(body):
        if any(entry.get("of") in names for entry in entries(node)):
            yield node


def touched(body: Body) -> Iterator[Node]:
    """The nodes of a body that carry provenance."""
    found = {index for some in body.heads.marked for index in some} | body.edited.keys()
    for index in sorted(found):
        if _value(body.payload(index)) is not None:
            yield Node(body, index)


def _value(payload: Payload) -> AttrValue | None:
    if not mentions(payload, KEY):
        return None
    if len(payload) == 1 and isinstance(payload[0], bytes):
        return attr_values(payload).get(KEY)
    span = attr_span(payload, KEY)
    return None if span is None else attr_value(span)
