"""Payloads: the bytes of a NodeDef, whose fields as large as weights stay where they are."""

from __future__ import annotations

import pytest

from graphpatch.errors import ModelError
from graphpatch.graph import node as nodedef
from graphpatch.graph import wire
from graphpatch.graph.node import Payload
from graphpatch.graph.wire import LARGE, Source
from graphpatch.protos import NodeDef
from tests import graphs
from tests.graphs import const, node

STRANGE = wire.encoded(77, b"?" * 40) + b"\x98\x06\x01"
RELU = node("relu", "Relu", "x", "y:1", "^z", device="/cpu:0", alpha=0.5, _note=b"hello")
CONST = const("c", 4 * LARGE)


def payload(message: NodeDef | bytes) -> Payload:
    raw = message if isinstance(message, bytes) else message.SerializeToString(deterministic=True)
    return nodedef.payload_at(Source(wire.encoded(1, raw)), 0)


@pytest.mark.parametrize("message", [RELU, CONST, NodeDef()])
def test_a_payload_is_the_bytes_of_the_node(message: NodeDef) -> None:
    raw = message.SerializeToString(deterministic=True)
    assert graphs.joined(payload(message).pieces) == raw
    assert graphs.joined(payload(raw + STRANGE).pieces) == raw + STRANGE


def test_of_a_large_node_the_tensor_stays_where_it_is() -> None:
    (field,) = payload(CONST).large
    assert field.key == "value"
    assert len(payload(CONST).small) < 100
    assert not payload(RELU).large


@pytest.mark.parametrize("message", [RELU, CONST])
def test_attrs_are_those_of_the_node(message: NodeDef) -> None:
    pieces = payload(message)
    spans = pieces.attr_spans()
    assert spans.keys() == message.attr.keys()
    for key, value in message.attr.items():
        assert pieces.mentions(key)
        assert nodedef.attr_value(spans[key]) == value


def test_a_value_that_looks_like_an_attr_is_none() -> None:
    pieces = payload(node("key", "Relu", "key", other=b"key"))
    assert pieces.mentions("key")
    assert "key" not in pieces.attr_spans()


def test_where_a_field_stands_twice_the_last_one_counts() -> None:
    # Concatenated messages merge: of a text and of a map entry the last one counts.
    twice = RELU.SerializeToString() + node("last", "Elu", _note=b"last").SerializeToString()
    assert nodedef.attr_value(payload(twice).attr_spans()["_note"]).s == b"last"


def test_an_attr_that_is_none_is_refused() -> None:
    broken = wire.encoded(5, wire.encoded(1, b"T") + wire.encoded(2, b"\x17"))
    with pytest.raises(ModelError, match="not a protobuf"):
        nodedef.attr_value(payload(wire.encoded(1, b"n") + broken).attr_spans()["T"])
    with pytest.raises(ModelError, match="not UTF-8"):
        payload(wire.encoded(5, wire.encoded(1, b"\xff"))).attr_spans()
