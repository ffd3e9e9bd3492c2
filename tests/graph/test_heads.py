from __future__ import annotations

from array import array

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from graphpatch.errors import ModelError
from graphpatch.graph import graph as heads
from graphpatch.graph import wire
from graphpatch.graph.graph import RUN, read_heads, scan
from graphpatch.graph.node import Heads
from graphpatch.graph.wire import LARGE, Source
from graphpatch.protos import GraphDef
from tests import graphs
from tests.graphs import const, node


def read(raw: bytes) -> Heads:
    source = Source(raw)
    return read_heads(source, scan(source, 0, len(raw), 1)[0], 1)


def serialized(*nodes: bytes) -> bytes:
    return b"".join(wire.encoded(1, one) for one in nodes)


def test_names_op_types_and_inputs_in_the_order_of_the_file() -> None:
    message = graphs.sample()
    found = read(message.SerializeToString())
    assert found.names == [one.name for one in message.node]
    assert found.ops == [one.op for one in message.node]
    assert found.inputs == [tuple(one.input) for one in message.node]
    assert not found.marked


@given(st.lists(st.sampled_from([0, 10, LARGE - 100, LARGE, LARGE + 1, 3 * LARGE]), max_size=8))
def test_large_nodes_among_small_ones(sizes: list[int]) -> None:
    nodes = [const(f"c{place}", size) for place, size in enumerate(sizes)]
    nodes = [
        one
        for const in nodes
        for one in (const, node(f"{const.name}/read", "Identity", const.name))
    ]
    found = read(GraphDef(node=nodes).SerializeToString())
    assert found.names == [one.name for one in nodes]
    assert found.ops == [one.op for one in nodes]
    assert found.inputs == [tuple(one.input) for one in nodes]


def test_of_large_nodes_the_weights_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    parse = heads._parse

    def spied(source: Source, start: int, end: int, number: int) -> object:
        given.append(end - start)
        return parse(source, start, end, number)

    monkeypatch.setattr(heads, "_parse", spied)
    nodes = [const("a", LARGE), node("b", "NoOp"), const("c", 9 * LARGE), const("d", 8)]
    found = read(GraphDef(node=nodes).SerializeToString())
    assert found.names == ["a", "b", "c", "d"]
    assert sum(given) < 200


def test_fields_in_any_order_and_fields_that_nobody_knows() -> None:
    strange = wire.encoded(77, b"?" * 40) + b"\x98\x06\x01"
    head = [wire.encoded(3, b"a:1"), strange, wire.encoded(2, b"Relu"), wire.encoded(1, b"n")]
    tensor = wire.encoded(5, b"\0" * 2 * LARGE)
    small, large = b"".join(head), b"".join([tensor, *head])
    found = read(serialized(small, large, small))
    assert found.names == ["n"] * 3
    assert found.ops == ["Relu"] * 3
    assert found.inputs == [("a:1",)] * 3


def test_more_than_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "RUN", 64)
    found = read(serialized(*(node(f"n{k}", "NoOp").SerializeToString() for k in range(100))))
    assert found.names == [f"n{k}" for k in range(100)]
    assert RUN > LARGE


def test_progress_is_told_from_start_to_end() -> None:
    raw = serialized(*(const(f"c{k}", LARGE).SerializeToString() for k in range(3)))
    source, told = Source(raw), list[tuple[str, int, int]]()
    read_heads(source, scan(source, 0, len(raw), 1)[0], 1, lambda *args: told.append(args))
    assert [what for what, _, _ in told] == ["reading"] * 3
    assert [total for _, _, total in told] == [len(raw)] * 3
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert told[-1][1] == len(raw)


@pytest.mark.parametrize("size", [4, LARGE])
def test_provenance_marks_a_body(size: int) -> None:
    plain = read(serialized(const("c").SerializeToString()))
    touched = const("c", size)
    touched.attr["_graphpatch"].s = b""
    assert not plain.marked
    assert read(serialized(touched.SerializeToString())).marked


def test_other_fields_of_the_graph_are_kept_apart() -> None:
    raw = graphs.sample().SerializeToString()
    starts, others = scan(Source(raw), 0, len(raw), 1)
    assert len(starts) == len(graphs.sample().node)
    assert sorted(field.number for field in others) == [2, 4]
    assert scan(Source(b""), 0, 0, 1) == (array("Q"), [])


def test_a_graph_cut_short_is_refused_at_every_byte_that_ends_no_field() -> None:
    raw = graphs.sample().SerializeToString()
    whole = {0, *(field.end for field in wire.fields(raw, 0, len(raw)))}
    for end in set(range(len(raw))) - whole:
        with pytest.raises(ModelError, match="truncated"):
            scan(Source(raw[:end]), 0, end, 1)


@pytest.mark.parametrize("padding", [0, LARGE])
@pytest.mark.parametrize(
    "broken",
    [
        b"\x0a\x02\xff\xfe\x12\x04Relu",  # a name that is not UTF-8
        b"\x0a\x01a\x12\x7fRelu",  # an op type that is longer than its node
        b"\x0a\x01a\x17",  # a wire type that does not exist
    ],
)
def test_a_node_that_is_none_is_refused(broken: bytes, padding: int) -> None:
    large = wire.encoded(5, b"\0" * padding) if padding else b""
    with pytest.raises(ModelError):
        read(serialized(b"\x0a\x01b\x12\x04NoOp", large + broken))


# Each is a field of a NodeDef with a name before it; protobuf reads none of them.
BROKEN_BEHIND_THE_HEAD = {
    "a dtype without an end": wire.encoded(5, b"\x0a\x01T\x12\x020\xb8"),
    "a dtype's group": wire.encoded(5, b"\x0a\x01T\x12\x02\x0b\x01"),
    "a key that is not UTF-8": wire.encoded(5, b"\x0a\x01\xff\x12\x020\x01"),
    "a device that is not UTF-8": wire.encoded(4, b"\xff"),
}


@pytest.mark.parametrize("padding", [0, LARGE])
@pytest.mark.parametrize("field", BROKEN_BEHIND_THE_HEAD.values(), ids=BROKEN_BEHIND_THE_HEAD)
def test_a_node_whose_attrs_are_broken_is_refused_by_name(field: bytes, padding: int) -> None:
    sound = node("a", "NoOp").SerializeToString()
    large = wire.encoded(77, b"\0" * padding) if padding else b""
    raw = serialized(sound, node("b", "Relu", "a").SerializeToString() + large + field, sound)
    with pytest.raises(DecodeError):
        GraphDef.FromString(raw)
    at = len(serialized(sound))
    with pytest.raises(ModelError, match=f"the node 'b' at byte {at} is broken; TensorFlow"):
        read(raw)


def test_the_byte_of_a_broken_node_is_that_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "RUN", 64)
    good = [node(f"n{k}", "NoOp").SerializeToString() for k in range(100)]
    field = BROKEN_BEHIND_THE_HEAD["a dtype without an end"]
    raw = serialized(*good, node("b", "NoOp").SerializeToString() + field, *good)
    with pytest.raises(ModelError, match=f"'b' at byte {len(serialized(*good))} is broken"):
        read(raw)


def test_a_node_field_with_a_tag_of_two_bytes_is_not_lost() -> None:
    # Legal, if nobody writes it: a tag of more bytes than it needs.
    one = node("a", "NoOp").SerializeToString()
    raw = b"\x8a\x00" + wire.varint(len(one)) + one
    assert GraphDef.FromString(raw).node[0].name == "a"
    with pytest.raises(ModelError, match="longer than it needs"):
        read(raw)
