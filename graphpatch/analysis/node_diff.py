"""In what two NodeDefs differ, in words; provenance does not count, and weights by content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest

from graphpatch.analysis.same import describe_difference, same_bytes
from graphpatch.graph import attrs, provenance
from graphpatch.graph.attrs import constant
from graphpatch.graph.node import Node, attr_span, attr_spans, attr_value
from graphpatch.graph.wire import message, piece_bytes
from graphpatch.protos import NodeDef
from graphpatch.table import cut_short

NOTHING = "(none)"


def differences(before: Node, after: Node) -> list[str]:
    """Return each difference in a line; none where they are equal."""
    changes = []
    if before.op != after.op:
        changes.append(f"op type: {before.op} -> {after.op}")
    for slot, (old, new) in enumerate(zip_longest(before.inputs, after.inputs, fillvalue=NOTHING)):
        if old != new:
            changes.append(f"input {slot}: {old} -> {new}")
    if _rest(before) == _rest(after):
        return changes
    if before.device != after.device:
        changes.append(f"device: {before.device or NOTHING} -> {after.device or NOTHING}")
    return changes + list(_changed_attrs(before, after))


def _rest(node: Node) -> object:
    """Return the device and attrs of a small NodeDef, to be compared; of a large one its bytes."""
    payload = node.body.payload(node.index)
    if len(payload) > 1:
        return payload
    rest = message(NodeDef, piece_bytes(payload[0]))
    for field in ("name", "op", "input"):
        rest.ClearField(field)
    rest.attr.pop(provenance.PROVENANCE_ATTR, None)
    return rest


def _changed_attrs(before: Node, after: Node) -> Iterator[str]:
    old, new = (attr_spans(node.body.payload(node.index)) for node in (before, after))
    for key in sorted((old.keys() | new.keys()) - {provenance.PROVENANCE_ATTR}):
        if key not in old or key not in new:
            yield f"attr {key}: {_attr_in_words(before, key)} -> {_attr_in_words(after, key)}"
        elif not same_bytes(old[key], new[key]):
            yield from _changed_values(before, after, key)


def _changed_values(before: Node, after: Node, key: str) -> Iterator[str]:
    """Yield an attr that is there in other bytes: whether it says something else."""
    if key == "value":
        old, new = constant(before), constant(after)
        if old is not None and new is not None:
            difference = describe_difference(old, new)
            if difference:
                yield f"value: {difference}"
            return
    spans = [attr_span(node.body.payload(node.index), key) for node in (before, after)]
    values = [attr_value(span) for span in spans if span is not None]
    if values[0] != values[1]:
        yield f"attr {key}: {_attr_in_words(before, key)} -> {_attr_in_words(after, key)}"


def _attr_in_words(node: Node, key: str) -> str:
    value = node.attr(key)
    return NOTHING if value is None else cut_short(json.dumps(attrs.as_json(value)), 60)
