"""Damaged files: whatever is in them, the answer is a message, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphpatch import GraphpatchError, apply, load
from graphpatch.analysis import ops
from graphpatch.graph.check import foreign
from graphpatch.graph.wire import LARGE
from tests import graphs
from tests.draws import draws
from tests.graphs import const

MATCH = {"attr": {"T": "float32"}, "dtype": "float32", "body": "main"}
RULES = [
    {"match": MATCH, "patch": {"stop_gradient": True}},
    {"match": {"op": "Round"}, "patch": {"straight_through": True}},
]


def sample() -> list[bytes]:
    graph = graphs.sample()
    graph.library.gradient.add(function_name="f", gradient_func="g")
    large = graphs.graphdef(const("c", LARGE), *graph.node, functions=graph.library.function)
    meta = graphs.metagraph(graph, "serve")
    texts = [text_format.MessageToString(message).encode() for message in (graph, meta)]
    raw = [one.SerializeToString(deterministic=True) for one in (graph, meta, large)]
    return [*raw, graphs.saved_model(meta), *texts]


SAMPLES = sample()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A model with some bytes changed, dropped, added or put elsewhere."""
    raw = bytearray(draw(st.sampled_from(SAMPLES)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, min(len(raw) - 1, 2000)))
        end = at + draw(st.integers(0, 4))
        if draw(st.booleans()):
            raw[at] = draw(st.sampled_from([0, 1, 0x0A, 0x12, 0x1A, 0x7F, 0x80, 0xFF, raw[at] ^ 1]))
        else:
            raw[at:end] = draw(st.binary(max_size=4))
    return bytes(raw)


@settings(
    max_examples=draws(600),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(damaged())
def test_a_damaged_model_is_read_or_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "model.pb"
    path.write_bytes(raw)
    said: list[str] = []
    for use in (describe, patch):
        try:
            use(path)
        except GraphpatchError as error:
            said.append(str(error))
    assert all(said), "a message that says nothing"


def describe(path: Path) -> None:
    model = load(path)
    assert sum(ops.count_types(model).values()) == model.node_count
    for graph in model.graphs:
        assert all(foreign(graph))
    for node in ops.all_ops(model):
        assert ops.op_document(node)["name"] == node.name


def patch(path: Path) -> None:
    model = load(path)
    before = graphs.joined(model.pieces())
    try:
        result = apply(RULES, model)
        result.model.save(path.with_name("out.pb"))
        assert load(path.with_name("out.pb")).node_count == result.model.node_count
    finally:
        assert graphs.joined(model.pieces()) == before


@pytest.mark.parametrize("raw", SAMPLES)
def test_what_is_not_damaged_is_patched(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "model.pb"
    path.write_bytes(raw)
    describe(path)
    patch(path)
    assert (tmp_path / "out.pb").is_file()
