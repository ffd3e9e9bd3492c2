from __future__ import annotations

import math

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from graphpatch.errors import ModelError, OutputError
from graphpatch.formats import text
from graphpatch.formats.container import GRAPH, META, SAVED, is_text
from graphpatch.graph import wire
from graphpatch.protos import GraphDef, MetaGraphDef
from tests import graphs
from tests.graphs import graphdef, node

SAMPLE = graphs.sample()


@pytest.mark.parametrize("head", [b"node {", b"# \xc3\xa4\r\n\tnode", b"", b" \n"])
def test_text(head: bytes) -> None:
    assert is_text(head)


@pytest.mark.parametrize("head", [SAMPLE.SerializeToString(), b"\x00", b"node\x01", b"\x1b[0m"])
def test_no_text(head: bytes) -> None:
    assert not is_text(head)


def test_a_graph_in_text_form_is_that_graph() -> None:
    data, container = text.parse_text(text_format.MessageToString(SAMPLE).encode())
    assert container is GRAPH
    assert GraphDef.FromString(data) == SAMPLE


def test_it_is_always_the_same_bytes() -> None:
    """Maps come in the order of their keys, whatever the order in the text."""
    one = b'node { name: "n" attr { key: "a" value { i: 1 } } attr { key: "b" value { i: 2 } } }'
    other = b'node { name: "n" attr { key: "b" value { i: 2 } } attr { key: "a" value { i: 1 } } }'
    assert text.parse_text(one) == text.parse_text(other)


@given(st.floats(width=32), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=50))
def test_values_come_through_unchanged(number: float, integer: int, raw: bytes) -> None:
    message = graphdef(node("n", "NoOp", f=number, i=integer, s=raw))
    tensor = message.node[0].attr["value"].tensor
    tensor.float_val.append(number)
    tensor.double_val.append(number / 3)
    tensor.tensor_content = raw
    found = text.unparse([message.SerializeToString()], GRAPH)
    again = GraphDef.FromString(text.parse_text(found)[0])
    if math.isnan(number):
        assert math.isnan(again.node[0].attr["f"].f)
    else:
        assert again == message


def test_fields_that_older_tensorflows_do_not_know_are_found() -> None:
    graph = graphdef(node("n", "NoOp", i=1))
    assert text.newer_fields(text.unparse([graph.SerializeToString()], GRAPH)) == []
    function = graph.library.function.add()
    function.node_def.add(name="debug_info {", op="NoOp").experimental_type.type_id = 1
    function.arg_attr[0].attr["a"].i = 1
    graph.library.registered_gradients.add(gradient_func="f")
    newer = ["experimental_type", "registered_gradients"]
    for message, container in ((graph, GRAPH), (MetaGraphDef(graph_def=graph), META)):
        written = text.unparse([message.SerializeToString()], container)
        assert text.newer_fields(written) == newer


def test_an_any_comes_through_unread() -> None:
    meta = graphs.metagraph(SAMPLE, "serve")
    found = text.unparse([meta.SerializeToString()], META)
    data, container = text.parse_text(found)
    assert container is META
    assert MetaGraphDef.FromString(data) == meta


def test_a_saved_model() -> None:
    raw = graphs.saved_model(graphs.metagraph(SAMPLE, "a"), graphs.metagraph(SAMPLE, "b"))
    found = text.unparse([raw], SAVED)
    assert found.startswith(b"saved_model_schema_version: 1\nmeta_graphs {\n")
    data, container = text.parse_text(found)
    assert container is SAVED
    assert text.unparse([data], SAVED) == found


ERRORS = {
    "a field that is not there": (
        b'node {\n  nmae: "a"\n}',
        "line 2, column 3: .* has no field nmae",
    ),
    "no closing brace": (b'node {\n  name: "a"\n', "(line 2, column 9|line 3, column 1):"),
    "a number for a text": (b"node { name: 3 }", "line 1, column 14:"),
    "a text for a number": (b'version: "x"', "line 1, column 10:"),
    "another message": (b'layer { name: "a" }', "text, but not that of a GraphDef"),
}


@pytest.mark.parametrize(("data", "reason"), ERRORS.values(), ids=ERRORS)
def test_errors_say_line_and_column(data: bytes, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        text.parse_text(data)


@pytest.mark.parametrize("where", ["nowhere", "graph", "node", "attr"])
def test_what_text_cannot_hold_is_refused(where: str) -> None:
    strange = wire.encoded(77, b"?")
    nodedef = wire.encoded(1, b"a") + wire.encoded(2, b"NoOp")
    value = wire.encoded(1, b"T") + wire.encoded(2, b"\x30\x01" + strange * (where == "attr"))
    nodedef += wire.encoded(5, value) + strange * (where == "node")
    raw = wire.encoded(1, nodedef) + strange * (where == "graph")
    if where == "nowhere":
        assert text.unparse([raw], GRAPH).startswith(b'node {\n  name: "a"\n')
        return
    with pytest.raises(OutputError, match="the GraphDef holds fields that graphpatch does not"):
        text.unparse([raw], GRAPH)


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(ModelError, match="should be a GraphDef"):
        text.unparse([wire.encoded(1, b"\x0a\x02\xff\xff")], GRAPH)
