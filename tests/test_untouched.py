"""What no rule touched is written back byte for byte: over random graphs, for each patch kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpatch import Model, apply
from graphpatch.graph import provenance, wire
from graphpatch.graph.check import check_graph
from graphpatch.graph.wire import LARGE
from graphpatch.protos import GraphDef, NodeDef
from tests import graphs
from tests.draws import draws
from tests.graphs import const, in_memory, node

UNARY = ("Relu", "Relu6", "Tanh", "Identity", "Round", "Sign")
PATCHES: list[dict[str, Any]] = [
    {"override_gradient": {"registered": "Mine"}},
    {"override_gradient": "identity"},
    {"filter_gradient": {"clip": {"min": -1, "max": 1}}},
    {"filter_gradient": {"scale": 0.5}, "at": "inputs"},
    {"stop_gradient": True},
    {"stop_gradient": True, "at": "inputs"},
    {"straight_through": True},
]


@st.composite
def unknown_fields(draw: st.DrawFn) -> bytes:
    """Fields that no message has, of any wire type."""
    kinds = [
        wire.encoded(draw(st.integers(50, 3000)), draw(st.binary(max_size=20))),
        wire.varint(100 << 3 | wire.VARINT) + wire.varint(draw(st.integers(0, 2**64 - 1))),
        wire.varint(101 << 3 | wire.FIXED32) + b"abcd",
        wire.varint(102 << 3 | wire.FIXED64) + b"abcdefgh",
    ]
    return b"".join(draw(st.lists(st.sampled_from(kinds), max_size=2)))


@st.composite
def serialized(draw: st.DrawFn, message: NodeDef) -> bytes:
    """The NodeDef, its fields in any order (that of inputs kept), with unknown fields between."""
    raw = message.SerializeToString(deterministic=True)
    fields = [raw[one.start : one.end] for one in wire.fields(raw, 0, len(raw))]
    inputs = [one for one in fields if one[0] >> 3 == 3]
    if draw(st.booleans()):
        places = draw(st.permutations(range(len(fields))))
        ordered = iter(inputs)
        shuffled = [fields[place] for place in places]
        fields = [next(ordered) if one[0] >> 3 == 3 else one for one in shuffled]
    at = draw(st.integers(0, len(fields)))
    return b"".join([*fields[:at], draw(unknown_fields()), *fields[at:]])


@st.composite
def bodies(draw: st.DrawFn, arguments: tuple[str, ...], in_function: bool) -> list[NodeDef]:
    """Nodes that read arguments and one another; sometimes large constants among them."""
    suffix = dict.fromkeys(("Const", "Identity"), "output")
    suffix |= dict.fromkeys(("Relu", "Relu6"), "activations")
    tensors, names, out = list(arguments), list[str](), []
    for place in range(draw(st.integers(1, 7))):
        name = draw(st.sampled_from(["", "a/", "a/b/"])) + f"n{place}"
        op = draw(st.sampled_from([*UNARY, *UNARY, "Const", "Add"]))
        if op == "Const" or not tensors:
            size = draw(st.sampled_from([4, 4, LARGE, 5 * LARGE]))
            made, op = const(name, size), "Const"
        else:
            read = [draw(st.sampled_from(tensors)) for _ in range(2 if op == "Add" else 1)]
            made = node(name, op, *read)
        if draw(st.booleans()) and names:
            made.input.append(f"^{draw(st.sampled_from(names))}")
        if draw(st.booleans()):
            made.device = "/device:GPU:0"
        names.append(name)
        arg = suffix.get(op, "z" if op == "Add" else "y")
        tensors.append(f"{name}:{arg}:0" if in_function else name)
        out.append(made)
    return out


@dataclass
class Built:
    """A serialized graph, with the bytes of each node by its body and name."""

    raw: bytes
    nodes: dict[tuple[str, str], bytes] = field(default_factory=dict)


@st.composite
def built(draw: st.DrawFn) -> Built:
    """A GraphDef of a main graph and functions, its top-level fields in any order."""
    result = Built(b"")
    parts = [wire.encoded(1, one) for one in draw(nodes("main", (), result))]
    at = 0
    for place in range(draw(st.integers(0, 2))):
        signature = graphs.function(f"f{place}", ["x"], [], {"y": "x"}).SerializeToString()
        inner = [wire.encoded(3, one) for one in draw(nodes(f"f{place}", ("x",), result))]
        function = wire.encoded(1, b"".join([signature, *inner]) + draw(unknown_fields()))
        library = wire.encoded(2, function + draw(unknown_fields()))
        at = draw(st.integers(at, len(parts)))
        parts.insert(at, library)
        at += 1
    for extra in (b"\x22\x03\x08\xbf\x08", draw(unknown_fields())):
        parts.insert(draw(st.integers(0, len(parts))), extra)
    result.raw = b"".join(parts)
    return result


@st.composite
def nodes(draw: st.DrawFn, label: str, arguments: tuple[str, ...], result: Built) -> list[bytes]:
    made = draw(bodies(arguments, in_function=label != "main"))
    found = [draw(serialized(message)) for message in made]
    result.nodes |= {(label, m.name): raw for m, raw in zip(made, found, strict=True)}
    return found


def written(model: Model) -> dict[tuple[str, str], bytes]:
    """The bytes of each node as written, in order, by body and name."""
    raw = graphs.joined(model.pieces())
    return {
        (body.label, one.name): graphs.joined(body.payload(one.index).pieces)
        for body in graphs.opened(raw).bodies
        for one in body
    }


def touched(model: Model) -> set[tuple[str, str]]:
    graph = graphs.opened(graphs.joined(model.pieces()))
    return {(body.label, one.name) for body in graph.bodies for one in provenance.touched(body)}


@settings(max_examples=draws(100), deadline=None)
@given(built())
def test_a_graph_that_nobody_touched_is_the_same_file(built: Built) -> None:
    model = in_memory(built.raw)
    assert graphs.joined(model.pieces()) == built.raw
    assert graphs.joined(model.copy().pieces()) == built.raw
    assert written(model) == built.nodes
    assert list(written(model)) == list(built.nodes)
    nothing = {"match": {"op": "NoSuchOp"}, "patch": {"stop_gradient": True}, "expect": 0}
    assert graphs.joined(apply([nothing], model).model.pieces()) == built.raw


@pytest.mark.every(3)
@pytest.mark.parametrize("patch", PATCHES, ids=str)
@settings(max_examples=draws(100), deadline=None)
@given(st.data())
def test_what_no_rule_touched_is_the_same_bytes(patch: dict[str, Any], data: st.DataObject) -> None:
    built = data.draw(built_graphs)
    model = in_memory(built.raw)
    legal = [key for key, raw in built.nodes.items() if NodeDef.FromString(raw).op in UNARY]
    wanted = data.draw(st.lists(st.sampled_from(legal), min_size=1, unique=True)) if legal else []
    rules = [
        {"match": {"name": name, "body": label}, "patch": patch, "name": f"{label}/{name}"}
        for label, name in wanted
    ]
    result = apply(rules, model).model if rules else model.copy()
    check_left_alone(built, model, result)


built_graphs = built()


def check_left_alone(built: Built, model: Model, result: Model) -> None:
    """Assert that of the untouched nodes every byte is there, in the order that they had."""
    assert graphs.joined(model.pieces()) == built.raw
    raw = graphs.joined(result.pieces())
    check_graph(graphs.opened(raw))
    changed, now = touched(result), written(result)
    kept = {key: old for key, old in built.nodes.items() if key not in changed}
    assert {key: now[key] for key in kept} == kept
    assert [key for key in now if key in kept] == list(kept)
    assert changed or raw == built.raw
    before, after = GraphDef.FromString(built.raw), GraphDef.FromString(raw)
    assert (after.versions, unknown(raw)) == (before.versions, unknown(built.raw))
    old, new = (
        {one.signature.name: one.signature for one in graph.library.function}
        for graph in (before, after)
    )
    assert {name: new[name] for name in old} == old


def unknown(raw: bytes) -> list[bytes]:
    """The fields of a GraphDef that none has, in their order."""
    return [raw[f.start : f.end] for f in wire.fields(raw, 0, len(raw)) if f.number > 5]
