from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpatch.errors import ModelError
from graphpatch.graph import node as nodedef
from graphpatch.graph import wire
from graphpatch.graph.node import Payload
from graphpatch.graph.wire import LARGE, Source, Span
from graphpatch.protos import NodeDef
from tests import graphs
from tests.graphs import const, node

STRANGE = wire.encoded(77, b"?" * 40) + b"\x98\x06\x01"
RELU = node("relu", "Relu", "x", "y:1", "^z", device="/cpu:0", alpha=0.5, _note=b"hello")
CONST = const("c", 4 * LARGE)


def payload(message: NodeDef | bytes) -> Payload:
    raw = message if isinstance(message, bytes) else message.SerializeToString(deterministic=True)
    return nodedef.payload_at(Source(wire.encoded(1, raw)), 0)


def parsed(found: Payload) -> NodeDef:
    return NodeDef.FromString(graphs.joined(found))


@pytest.mark.parametrize("message", [RELU, CONST, NodeDef()])
def test_a_payload_is_the_bytes_of_the_node(message: NodeDef) -> None:
    raw = message.SerializeToString(deterministic=True)
    assert graphs.joined(payload(message)) == raw
    assert graphs.joined(payload(raw + STRANGE)) == raw + STRANGE


def test_of_a_large_node_the_tensor_stays_where_it_is() -> None:
    spans = [piece for piece in payload(CONST) if isinstance(piece, Span)]
    assert len(spans) == 1
    assert wire.size(spans) > 4 * LARGE
    assert wire.size(payload(CONST)) - wire.size(spans) < 100


@pytest.mark.parametrize("message", [RELU, CONST])
def test_attrs_are_those_of_the_node(message: NodeDef) -> None:
    found = payload(message)
    spans = nodedef.attr_spans(found)
    assert spans.keys() == message.attr.keys()
    for key, value in message.attr.items():
        assert nodedef.mentions(found, key)
        assert nodedef.attr_value(spans[key]) == value
        span = nodedef.attr_span(found, key)
        assert span is not None
        assert nodedef.attr_value(span) == value
    assert nodedef.attr_span(found, "no such attr") is None


def test_a_value_that_looks_like_an_attr_is_none() -> None:
    found = payload(node("key", "Relu", "key", other=b"key"))
    assert nodedef.mentions(found, "key")
    assert nodedef.attr_span(found, "key") is None


# Each change: what it does to the NodeDef. All else must be left, fields that nobody knows too.
CHANGES: dict[str, tuple[Callable[[Payload], Payload], Callable[[NodeDef], object]]] = {
    "a new attr": (
        lambda p: nodedef.with_attr(p, "new", graphs.attr("Relu6").SerializeToString()),
        lambda n: n.attr["new"].CopyFrom(graphs.attr("Relu6")),
    ),
    "an attr replaced": (
        lambda p: nodedef.with_attr(p, "dtype", graphs.attr("int32").SerializeToString()),
        lambda n: n.attr["dtype"].CopyFrom(graphs.attr("int32")),
    ),
    "a large attr replaced": (
        lambda p: nodedef.with_attr(p, "value", graphs.attr(b"x" * 99).SerializeToString()),
        lambda n: n.attr["value"].CopyFrom(graphs.attr(b"x" * 99)),
    ),
    "an attr dropped": (
        lambda p: nodedef.with_attr(p, "dtype", None),
        lambda n: n.attr.pop("dtype", None),
    ),
    "an attr that is not there dropped": (
        lambda p: nodedef.with_attr(p, "other", None),
        lambda n: None,
    ),
    "inputs": (
        lambda p: nodedef.with_inputs(p, ["a/b:2", "^a"]),
        lambda n: n.input.__setitem__(slice(None), ["a/b:2", "^a"]),
    ),
    "no inputs": (
        lambda p: nodedef.with_inputs(p, []),
        lambda n: n.ClearField("input"),
    ),
}


@pytest.mark.parametrize("size", [4, LARGE + 1, 4 * LARGE])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_changes_that_and_nothing_else(change: str, size: int) -> None:
    message = const("c", size)
    message.input.extend(["x", "^y", "^z"])
    do, expected = CHANGES[change]
    raw = message.SerializeToString(deterministic=True)
    changed = do(payload(raw[:3] + STRANGE + raw[3:] + STRANGE))
    expected(message)
    expected_bytes = STRANGE * 2
    found = NodeDef.FromString(graphs.joined(changed))
    assert found.SerializeToString(deterministic=True).endswith(expected_bytes)
    found.DiscardUnknownFields()
    assert found == message


@given(st.permutations(range(6)), st.sampled_from(["a", "b", "new"]), st.booleans())
def test_fields_stay_in_their_order(order: list[int], key: str, drop: bool) -> None:
    entries = {one: nodedef.attr_entry(one, b"") for one in "ab"}
    fields = [wire.encoded(1, b"n"), wire.encoded(2, b"O"), STRANGE, wire.encoded(3, b"x")]
    fields = [[*fields, *entries.values()][place] for place in order]
    value = None if drop else b"\x28\x01"
    new = [] if drop else [nodedef.attr_entry(key, b"\x28\x01")]
    if key in entries:
        at = fields.index(entries[key])
        expected = [*fields[:at], *new, *fields[at + 1 :]]
    else:
        expected = [*fields, *new]
    changed = nodedef.with_attr(payload(b"".join(fields)), key, value)
    assert graphs.joined(changed) == b"".join(expected)


def test_where_a_field_stands_twice_the_last_one_counts() -> None:
    # Concatenated messages merge: of a text and of a map entry the last one counts.
    twice = RELU.SerializeToString() + node("last", "Elu", _note=b"last").SerializeToString()
    found = payload(twice)
    assert nodedef.attr_value(nodedef.attr_spans(found)["_note"]).s == b"last"
    changed = nodedef.with_attr(found, "_note", graphs.attr(b"new").SerializeToString())
    assert parsed(changed).attr["_note"].s == b"new"
    assert "_note" not in parsed(nodedef.with_attr(found, "_note", None)).attr


def test_an_attr_that_is_none_is_refused() -> None:
    broken = payload(wire.encoded(1, b"n") + nodedef.attr_entry("T", b"\x17"))
    with pytest.raises(ModelError, match="not a protobuf"):
        nodedef.attr_value(nodedef.attr_spans(broken)["T"])
    with pytest.raises(ModelError, match="not UTF-8"):
        nodedef.attr_spans(payload(wire.encoded(5, wire.encoded(1, b"\xff"))))
