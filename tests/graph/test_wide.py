"""Nodes of very many inputs or outputs: bounded, and read in proportion to their size."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any, SupportsIndex

import pytest

import graphpatch
from graphpatch.differentiation.shapes import Shapes, Sizes
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.errors import ModelError
from graphpatch.formats import Model, load
from graphpatch.graph import editor as edit
from graphpatch.graph import node as nodedef
from graphpatch.graph import wire
from graphpatch.graph.graph import MOST_LISTED
from graphpatch.graph.node import Node
from graphpatch.graph.record import Author
from graphpatch.protos import GraphDef
from tests import graphs
from tests.graphs import attr, function, graphdef, node
from tests.test_shown import ran

GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
STOP = {"match": {"op": "Relu"}, "patch": {"stop_gradient": True}}
X = node("x", "Placeholder", dtype=attr("float32"))
COMMANDS = (
    ("ops", "m.pb"),
    ("ops", "m.pb", "**"),
    ("apply", "@guided_backprop", "m.pb", "--dry-run"),
    ("doctor", "m.pb"),
    ("view", "m.pb", "-o", "page.html"),
    ("diff", "m.pb", "m.pb"),
    ("verify", "--no-run", "m.pb", "m.pb"),
)


def split(outputs: int, name: str = "s") -> object:
    return node(name, "Split", "x", "x", num_split=outputs, T=attr("float32"))


def added(inputs: int) -> object:
    return node("s", "AddN", *["x"] * inputs, N=inputs, T=attr("float32"))


@pytest.mark.parametrize("graph", [
    graphdef(X, split(1 << 26), node("r", "Relu", "s:3")),
    graphdef(X, node("s", "AddN", "x", N=1 << 40, T=attr("float32"))),
    graphdef(X, node("y", "f", "x"), functions=[
        function("f", ["a"], [node("s", "Split", "a", "a", num_split=1 << 26)], {"o": "a"})]),
    graphdef(X, *(split(MOST_LISTED // 4, f"s{n}") for n in range(5))),
], ids=["outputs", "inputs", "in a function", "many nodes"])  # fmt: skip
def test_a_few_bytes_that_ask_for_millions_of_tensors(graph: object) -> None:
    with pytest.raises(ModelError, match="all lists of tensors together may be 2,000,000 longer"):
        load(graph)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_a_node_of_many_inputs_is_walked_over_a_few_times(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = graphdef(X, added(6_000), node("r", "Relu", "s"))
    Path("m.pb").write_bytes(graph.SerializeToString())
    walked, fields = list[object](), wire.fields

    def counted(*args: object) -> object:
        for one in fields(*args):  # type: ignore[arg-type]
            walked.append(one)
            yield one

    monkeypatch.setattr(nodedef, "fields", counted)
    assert ran(*command)[0] == 0
    assert len(walked) < 12 * 6_000


def test_the_attrs_of_a_large_node_are_those_that_it_has_now() -> None:
    graph = load(graphdef(X, added(20_000))).graphs[0].copy()
    found = graph.main.node("s")
    assert found.attr("N") is not None
    assert len(found.arguments or ()) == 20_000
    before = found.body.payload(found.index)
    edit.Editor(graph, None).set_attr(found, "N", None)
    assert found.body.payload(found.index) != before
    assert found.attr("N") is None
    assert Node(found.body, found.index).attr_names == ["T", "_graphpatch"]


def one_reader(count: int) -> GraphDef:
    """A function of so many Relus, all read by one op."""
    relus = [node(f"r{k}", "Relu", "a") for k in range(count)]
    read = [f"r{k}:activations:0" for k in range(count)]
    body = [*relus, node("s", "AddN", *read, N=count, T=attr("float32"))]
    return graphdef(
        X, node("y", "f", "x"), functions=[function("f", ["a"], body, {"o": "s:sum:0"})]
    )


@pytest.mark.parametrize("rule", [GUIDED, STOP], ids=["guided", "stop"])
def test_one_reader_of_many_patched_ops_is_written_once(rule: dict[str, object]) -> None:
    """It was written for each: 2,000 took 60 s."""

    def written(count: int) -> Model:
        model = graphpatch.apply([rule], one_reader(count)).model
        graphs.joined(model.pieces())
        return model

    assert graphs.steps(partial(written, 400)) < 2.2 * graphs.steps(partial(written, 200))
    assert Node(written(20).graphs[0].functions["f"], 0).name == "r0/forward"


def test_a_formula_for_an_op_of_many_inputs_is_written_in_linear_time() -> None:
    """Each input asked for the names of all."""
    rule = {"match": {"op": "AddN"}, "patch": {"override_gradient": {"formula": "dy * 2"}}}

    def written(inputs: int) -> None:
        graphpatch.apply([rule], graphdef(X, added(inputs)))

    assert graphs.steps(partial(written, 600)) < 2.2 * graphs.steps(partial(written, 300))


class Searched(list[int]):
    """An order of ops that counts those that a search passes."""

    passed = 0

    def index(self, value: int, start: SupportsIndex = 0, stop: SupportsIndex = sys.maxsize) -> int:
        at = super().index(value, start, stop)
        self.passed += at - int(start)
        return at


def test_ops_beside_a_wide_op_are_placed_by_short_searches() -> None:
    """Each was searched among all: 65,536 outputs took more than five minutes."""
    graph = load(graphdef(X, node("u", "Unpack", "x", num=900, T=attr("float32")))).graphs[0].copy()
    editor, wide = edit.Editor(graph, Author("rule", "id")), graph.main.node("u")
    wide.body.placed[wide.index] = order = Searched([wide.index])
    clean = editor.add("clean", "Identity", ["u"], {"T": attr("float32")}, wide)
    for output in range(900):
        stop = editor.add("stop", "StopGradient", [f"u:{output}"], {"T": attr("float32")}, wide)
        both = [stop.tensor(0), clean.tensor(0)]
        editor.add("both", "AddN", both, {"N": attr(2), "T": attr("float32")}, wide)
    names = [Node(wide.body, index).name for index in order]
    assert names[:2] + names[900:904] == ["u", "stop_899", "stop", "clean", "both_899", "both_898"]
    assert order.passed < 10 * len(order)


def test_a_reader_that_waits_to_be_written_is_copied_as_it_is() -> None:
    graph = load(one_reader(20)).graphs[0].copy()
    editor, reader = edit.Editor(graph, Author("rule", "id")), graph.functions["f"].node("s")
    editor.set_input(reader, 3, "a")
    other = graph.copy()
    edit.Editor(other, Author("rule", "id")).set_input(other.functions["f"].node("s"), 4, "a")
    assert reader.inputs[3:5] == ("a", "r4:activations:0")
    assert other.functions["f"].node("s").inputs[3:5] == ("a", "a")
    assert b"r4" in graphs.joined(reader.body.payload(reader.index).pieces)


def test_the_shape_of_an_input_is_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    body = graphs.main(X, added(1000))
    asked, inferred = list[Tensor](), Shapes._inferred

    def counted(shapes: Shapes, tensor: Tensor, read: Any) -> Sizes:
        asked.append(tensor)
        return inferred(shapes, tensor, read)

    monkeypatch.setattr(Shapes, "_inferred", counted)
    Shapes(Wiring(body)).of((body.by_name["s"], 0))
    assert asked == [(body.by_name["x"], 0), (body.by_name["s"], 0)]


def test_the_inputs_of_an_op_are_not_read_for_each_of_its_outputs() -> None:
    def asked(count: int) -> None:
        several = node("i", "IdentityN", *["x"] * count, T=attr(["float32"] * count))
        body = graphs.main(X, several)
        shapes, index = Shapes(Wiring(body)), body.by_name["i"]
        assert {shapes.of((index, output)) for output in range(count)} == {None}

    assert graphs.steps(partial(asked, 400)) < 2.2 * graphs.steps(partial(asked, 200))


def test_a_filter_at_each_of_many_inputs_lists_them_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 6,000 inputs they were listed 12,000 times, in 10 s."""
    listed = list[str]()
    data_inputs = Node.data_inputs.fget
    monkeypatch.setattr(
        Node, "data_inputs", property(lambda op: listed.append(op.name) or data_inputs(op))
    )
    rule = {"match": {"op": "AddN"}, "patch": {"filter_gradient": "reverse", "at": "inputs"}}
    wide = node("y", "AddN", *["x"] * 300, T=attr("float32"), N=300)
    graphpatch.apply([rule], graphdef(X, wide).SerializeToString())
    assert len(listed) < 100
