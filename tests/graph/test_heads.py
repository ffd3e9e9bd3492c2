from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from graphpatch.errors import ModelError
from graphpatch.graph import graph as reading
from graphpatch.graph import wire
from graphpatch.graph.graph import read_nodes
from graphpatch.graph.node import Heads
from graphpatch.graph.wire import LARGE, Source
from graphpatch.protos import GraphDef, NodeDef
from tests import graphs
from tests.graphs import const, node


def read(raw: bytes) -> Heads:
    return read_nodes(Source(raw), 0, len(raw), 1)[0]


def serialized(*nodes: bytes) -> bytes:
    return b"".join(wire.encoded(1, raw) for raw in nodes)


def columns(heads: Heads) -> list[tuple[str, str, tuple[str, ...]]]:
    return list(zip(heads.names, heads.ops, map(tuple, heads.inputs), strict=True))


def expected(nodes: list[NodeDef]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(proto.name, proto.op, tuple(proto.input)) for proto in nodes]


@given(st.lists(st.sampled_from([0, 10, LARGE - 100, LARGE, LARGE + 1, 3 * LARGE]), max_size=8))
def test_large_nodes_among_small_ones(sizes: list[int]) -> None:
    nodes = [node("n" * LARGE, "Relu", "x" * LARGE)]
    for place, size in enumerate(sizes):
        nodes += [const(f"c{place}", size), node(f"c{place}/read", "Identity", f"c{place}")]
    assert columns(read(GraphDef(node=nodes).SerializeToString())) == expected(nodes)


def test_of_large_nodes_the_weights_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    parse = reading._parse

    def spied(source: Source, start: int, end: int, number: int) -> object:
        sizes.append(end - start)
        return parse(source, start, end, number)

    monkeypatch.setattr(reading, "_parse", spied)
    nodes = [const("a", LARGE), node("b", "NoOp"), const("c", 9 * LARGE), const("d", 8)]
    assert read(GraphDef(node=nodes).SerializeToString()).names == ["a", "b", "c", "d"]
    assert sum(sizes) < 200


def test_fields_in_any_order_and_fields_that_nobody_knows() -> None:
    strange = wire.encoded(77, b"?" * 40) + b"\x98\x06\x01"
    head = [wire.encoded(3, b"a:1"), strange, wire.encoded(2, b"Relu"), wire.encoded(1, b"n")]
    small, large = b"".join(head), b"".join([wire.encoded(9, b"\0" * 2 * LARGE), *head])
    assert columns(read(serialized(small, large, small))) == [("n", "Relu", ("a:1",))] * 3


def test_progress_is_told_from_start_to_end() -> None:
    raw = serialized(*(const(f"c{k}", LARGE).SerializeToString() for k in range(3)))
    told = list[tuple[str, int, int]]()
    read_nodes(Source(raw), 0, len(raw), 1, lambda *args: told.append(args))
    third = len(raw) // 3
    assert told == [("reading", third * k, len(raw)) for k in (1, 2, 3)]


@pytest.mark.parametrize("size", [4, LARGE])
def test_the_strings_of_records_are_read(size: int) -> None:
    touched = const("c", size)
    assert not read(serialized(touched.SerializeToString())).records
    strings = [b"{}", b"" if size == 4 else b"x" * LARGE]
    touched.attr["_graphpatch"].list.s[:] = strings
    other = node("_graphpatch", "NoOp").SerializeToString()
    heads = read(serialized(other, touched.SerializeToString(), other))
    assert heads.records == {1: strings}


def test_a_graph_cut_short_is_refused_at_every_byte_that_ends_no_field() -> None:
    raw = graphs.sample().SerializeToString()
    whole = {0, *(field.end for field in wire.fields(raw, 0, len(raw)))}
    for end in set(range(len(raw))) - whole:
        with pytest.raises(ModelError, match="truncated"):
            read(raw[:end])
        with pytest.raises(ModelError, match="truncated"):
            read_nodes(Source(raw), 0, end, 1)


@pytest.mark.parametrize("padding", [0, LARGE])
@pytest.mark.parametrize(
    "broken",
    [
        b"\x0a\x02\xff\xfe\x12\x04Relu",  # a name that is not UTF-8
        b"\x0a\x01a\x12\x7fRelu",  # an op type that is longer than its node
        b"\x0a\x01a\x17",  # a wire type that does not exist
        b"\x0a\x01a",  # no op type
        b"\x12\x04Relu",  # no name
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
def test_a_node_whose_attrs_are_broken_is_refused_by_name(
    field: bytes, padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "RUN", 64)  # bytes: the node is in none of the first runs
    sound = [node(f"n{k}", "NoOp").SerializeToString() for k in range(20)]
    large = wire.encoded(77, b"\0" * padding) if padding else b""
    raw = serialized(*sound, node("b", "Relu", "a").SerializeToString() + large + field, *sound)
    with pytest.raises(DecodeError):
        GraphDef.FromString(raw)
    at = len(serialized(*sound))
    with pytest.raises(ModelError, match=f"the node 'b' at byte {at} is broken; TensorFlow"):
        read(raw)
    assert columns(read(serialized(*sound * 2))) == expected(
        [NodeDef.FromString(one) for one in sound * 2]
    )


def test_a_node_field_with_a_tag_of_two_bytes_is_not_lost() -> None:
    # Legal, if nobody writes it: a tag of more bytes than it needs.
    raw = b"\x8a\x00" + wire.encoded(1, node("a", "NoOp").SerializeToString())[1:]
    assert GraphDef.FromString(raw).node[0].name == "a"
    with pytest.raises(ModelError, match="longer than it needs"):
        read(raw)
