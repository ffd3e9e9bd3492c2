"""The attr by which an op is put on the device of others, which it names as `loc:@NAME`.

TensorFlow refuses a colocation with an op that is not there. The texts are compared as bytes: the
names of ops are UTF-8, and what a hostile model has in this attr need not be.
"""

from __future__ import annotations

from collections.abc import Container

from graphpatch.graph import nodedef
from graphpatch.graph.body import COLOCATION

LOC = b"loc:@"


def located(name: str) -> bytes:
    """How the attr names an op."""
    return LOC + name.encode()


def without_absent(payload: nodedef.Payload, inside: Container[bytes]) -> nodedef.Payload:
    """The NodeDef without colocation with ops that are not `inside`, where they are `located`."""
    span = nodedef.attr_span(payload, COLOCATION)
    if span is None:
        return payload
    value = nodedef.attr_value(span)
    kept = [text for text in value.list.s if text in inside or not text.startswith(LOC)]
    if len(kept) == len(value.list.s):
        return payload
    value.list.s[:] = kept
    raw = value.SerializeToString(deterministic=True) if kept else None
    return nodedef.with_attr(payload, COLOCATION, raw)
