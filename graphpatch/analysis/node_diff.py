"""In what two NodeDefs differ, in words; provenance does not count, and weights by content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest

from graphpatch.analysis.same import describe_difference, same_bytes
from graphpatch.graph import attrs, provenance
from graphpatch.graph.attrs import constant
from graphpatch.graph.node import Node, attr_span, attr_spans, attr_value
from graphpatch.table import cut_short

NOTHING = "(none)"


def differences(one: Node, other: Node) -> list[str]:
    """Each difference in a line; none where they are equal."""
    found = []
    if one.op != other.op:
        found.append(f"op type: {one.op} -> {other.op}")
    for slot, (left, right) in enumerate(zip_longest(one.inputs, other.inputs, fillvalue=NOTHING)):
        if left != right:
            found.append(f"input {slot}: {left} -> {right}")
    if one.device != other.device:
        found.append(f"device: {one.device or NOTHING} -> {other.device or NOTHING}")
    return found + list(_changed_attrs(one, other))


def _changed_attrs(one: Node, other: Node) -> Iterator[str]:
    left, right = (attr_spans(node.body.payload(node.index)) for node in (one, other))
    for key in sorted((left.keys() | right.keys()) - {provenance.PROVENANCE_ATTR}):
        if key not in left or key not in right:
            yield f"attr {key}: {_attr_in_words(one, key)} -> {_attr_in_words(other, key)}"
        elif not same_bytes(left[key], right[key]):
            yield from _changed_values(one, other, key)


def _changed_values(one: Node, other: Node, key: str) -> Iterator[str]:
    """An attr that is there in other bytes: whether it says something else."""
    if key == "value":
        left, right = constant(one), constant(other)
        if left is not None and right is not None:
            told = describe_difference(left, right)
            if told:
                yield f"value: {told}"
            return
    spans = [attr_span(node.body.payload(node.index), key) for node in (one, other)]
    values = [attr_value(span) for span in spans if span is not None]
    if values[0] != values[1]:
        yield f"attr {key}: {_attr_in_words(one, key)} -> {_attr_in_words(other, key)}"


def _attr_in_words(node: Node, key: str) -> str:
    value = node.attr(key)
    return NOTHING if value is None else cut_short(json.dumps(attrs.as_json(value)), 60)
