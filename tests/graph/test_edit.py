from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from graphpatch.errors import PatchError
from graphpatch.graph import provenance
from graphpatch.graph.check import check_graph
from graphpatch.graph.editor import Editor
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body
from graphpatch.graph.record import Author
from graphpatch.patches.editing import Report, RuleEditor
from graphpatch.protos import FunctionDef, NodeDef
from tests import graphs
from tests.graphs import attr, function, graphdef, node

T = {"T": attr("float32")}


def split_and_readers() -> list[NodeDef]:
    return [
        node("split", "Split", "axis", "x", num_split=2),
        node("sum", "Add", "split", "split:1", "^split"),
        node("again", "Neg", "split:0"),
    ]


def in_function() -> FunctionDef:
    nodes = [
        node("split", "Split", "axis", "x", num_split=2),
        node("sum", "Add", "split:output:0", "split:output:1", "^split"),
        node("relu", "Relu", "sum:z:0"),
        node("elu", "Elu", "sum:z:0"),
    ]
    return function("f", ["axis", "x"], nodes, {"y": "relu:activations:0", "s": "split:output:1"})


def graph_of_both() -> Graph:
    main = [node("axis", "Const", dtype="int32"), node("x", "Placeholder"), *split_and_readers()]
    return graphs.opened(graphdef(*main, functions=[in_function()]))


@pytest.fixture
def graph() -> Graph:
    graph = graph_of_both().copy()
    for body in graph.bodies:  # made before the edits, so that these must keep them right
        assert body.readers
        assert body.by_type
    return graph


@pytest.fixture
def editor(graph: Graph) -> Editor:
    return Editor(graph, Author("rule", "id"))


def was(body: Body) -> dict[str, str]:
    """What each op that a rule touched was called before; nothing for one that was added."""
    found = {one.name: provenance.record(one) for one in body}
    return {
        name: "" if record.is_added else NodeDef.FromString(record.original[0]).name
        for name, record in found.items()
        if record is not None
    }


def recorded(body: Body, name: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The rules that patched an op, let it read others, and set its key."""
    record = provenance.record(body.node(name))
    assert record is not None
    return record.rules, record.inputs, record.keys


def consistent(graph: Graph) -> Graph:
    """The graph as it is written; in memory it must say the same."""
    again = graphs.opened(graphs.written(graph))
    check_graph(again)
    for new, body in zip(again.bodies, graph.bodies, strict=True):
        assert {n.name: (n.op, n.inputs) for n in new} == {n.name: (n.op, n.inputs) for n in body}
        assert new.ret == body.ret
        assert new.by_name.keys() == body.by_name.keys()
        assert all(body.heads.names[place] == name for name, place in body.by_name.items())
        assert by_names(new, new.by_type) == by_names(body, body.by_type)
        assert reads(new) == reads(body)
    return again


def by_names(body: Body, index: dict[str, list[int]]) -> dict[str, set[str]]:
    return {key: {body.heads.names[place] for place in places} for key, places in index.items()}


def reads(body: Body) -> dict[str, set[tuple[str, int]]]:
    found = {
        name: {(body.heads.names[place], slot) for place, slot in uses}
        for name, uses in body.readers.items()
    }
    return {name: uses for name, uses in found.items() if uses}


def test_an_attr_is_set_and_dropped(graph: Graph, editor: Editor) -> None:
    again = graph.main.node("again")
    editor.set_attr(again, "_gradient_op_type", attr("Relu6"))
    assert consistent(graph).main.node("again").attr("_gradient_op_type") == attr("Relu6")
    editor.set_attr(again, "_gradient_op_type", None)
    assert consistent(graph).main.node("again").attr("_gradient_op_type") is None
    assert recorded(graph.main, "again") == ((0,), (), (0,))
    assert provenance.original(again) == split_and_readers()[2]


@pytest.mark.parametrize("label", ["main", "f"])
def test_another_input(graph: Graph, editor: Editor, label: str) -> None:
    body = graph.body(label)
    before = body.node("sum").inputs
    editor.set_input(body.node("sum"), 1, "x")
    editor.set_input(body.node("sum"), 2, "^axis" if body.is_main else "^relu")
    assert body.node("sum").inputs[:2] == (before[0], "x")
    consistent(graph)
    assert recorded(body, "sum") == ((), (0,), ())
    original = provenance.original(body.node("sum"))
    assert original is not None
    assert tuple(original.input) == before


def test_an_op_is_added_beside_another(graph: Graph, editor: Editor) -> None:
    beside = graph.main.node("sum")
    editor.set_attr(beside, "_class", attr([b"loc:@x"]))
    after = editor.add("sum/new", "Identity", ["sum"], T, beside)
    before = editor.add("sum/old", "Identity", ["x"], T, beside, before=True)
    other = graphs.opened(graphs.sample()).copy()
    beside_relu = Editor(other, None).add("new", "Relu", ["relu"], T, other.main.node("relu"))
    assert consistent(other).main.node("new").device == beside_relu.device == "/cpu:0"
    assert (after.name, after.op, after.inputs) == ("sum/new", "Identity", ("sum",))
    assert before.attr("_class") == attr([b"loc:@x"])
    assert [one.name for one in consistent(graph).main] == [
        "axis", "x", "split", "sum/old", "sum", "sum/new", "again",
    ]  # fmt: skip
    assert was(graph.main) == {"sum": "sum", "sum/new": "", "sum/old": ""}


@pytest.mark.parametrize("label", ["main", "f"])
def test_a_name_that_is_taken_gets_a_number(graph: Graph, editor: Editor, label: str) -> None:
    body, beside = graph.body(label), graph.body(label).node("sum")
    found = [editor.add(name, "NoOp", [], {}, beside).name for name in ("sum", "sum", "x")]
    assert found == ["sum_1", "sum_2", "x_1"]  # x is an op of the graph, an argument of f
    for _ in range(2):
        moved = body.node("sum")
        editor.take_name(editor.make_room(moved), "Identity", [moved.tensor(0)], T)
    written = [one.name for one in consistent(graph).body(label)]
    assert [name for name in written if name.startswith("sum/")] == ["sum/forward", "sum/forward_1"]


def test_an_op_gives_its_name_to_another(graph: Graph, editor: Editor) -> None:
    split = graph.main.node("split")
    typed = {"T": attr(["float32", "float32"])}
    room = editor.make_room(split)
    new = editor.take_name(room, "IdentityN", [split.tensor(0), split.tensor(1)], typed)
    assert (split.name, new.name, new.inputs) == (
        "split/forward", "split", ("split/forward", "split/forward:1"),
    )  # fmt: skip
    found = consistent(graph).main
    assert [one.name for one in found][2:] == ["split/forward", "split", "sum", "again"]
    assert found.node("sum").inputs == ("split", "split:1", "^split")
    assert graphs.parsed(graph).node[4] == split_and_readers()[1]
    assert was(graph.main) == {"split": "", "split/forward": "split"}


def test_in_a_function_outputs_are_spelled_anew(graph: Graph, editor: Editor) -> None:
    body = graph.functions["f"]
    typed = {"T": attr(["float32", "float32"])}
    split, total, relu = map(body.node, ("split", "sum", "relu"))
    room = editor.make_room(split)
    editor.take_name(room, "IdentityN", [split.tensor(0), split.tensor(1)], typed)
    found = consistent(graph).functions["f"]
    assert found.node("split").inputs == ("split/forward:output:0", "split/forward:output:1")
    assert found.node("sum").inputs == ("split:output:0", "split:output:1", "^split")
    assert found.ret == {"y": "relu:activations:0", "s": "split:output:1"}
    for moved in (total, relu):
        editor.take_name(editor.make_room(moved), "Identity", [moved.tensor(0)], T)
    found = consistent(graph).functions["f"]
    assert found.node("sum").inputs == ("sum/forward:z:0",)
    assert found.node("elu").inputs == ("sum:output:0",)
    assert found.node("relu").inputs == ("relu/forward:activations:0",)
    assert found.ret == {"y": "relu:output:0", "s": "split:output:1"}
    assert recorded(body, "elu") == ((), (0,), ())
    assert body.returns == {"y": "relu:activations:0"}


def test_shapes_go_with_the_name_and_stay_with_the_op() -> None:
    shapes = attr([b"shape"])
    message = graphdef(node("a", "Relu", "a", _output_shapes=shapes, _class=[b"loc:@b"]))
    graph = graphs.opened(message).copy()
    editor, moved = Editor(graph, Author("r", "i")), graph.main.node("a")
    new = editor.take_name(editor.make_room(moved), "Identity", [moved.name], T)
    for name in ("a", "a/forward"):
        assert consistent(graph).main.node(name).attr("_output_shapes") == shapes
    assert new.attr("_class") == attr([b"loc:@b"])


def test_in_a_function_an_op_of_unknown_outputs_stays() -> None:
    odd = function("f", ["x"], [node("odd", "NoSuchOp", "x")], {})
    graph = graphs.opened(graphdef(functions=[odd])).copy()
    with pytest.raises(PatchError, match="NoSuchOp 'odd' in function f: its outputs are not known"):
        Editor(graph, Author("r", "i")).make_room(graph.functions["f"].node("odd"))


READERS: dict[str, tuple[str, int, dict[str, tuple[str, ...]], dict[str, str], int]] = {
    "output 0 in both spellings": (
        "main", 0, {"sum": ("new", "split:1", "^split"), "again": ("new",)}, {}, 2,
    ),
    "output 1": ("main", 1, {"sum": ("split", "new", "^split"), "again": ("split:0",)}, {}, 1),
    "in a function": (
        "f", 0, {"sum": ("new:output:0", "split:output:1", "^split")},
        {"y": "relu:activations:0", "s": "split:output:1"}, 1,
    ),
    "what a function returns": (
        "f", 1, {"sum": ("split:output:0", "new:output:0", "^split")},
        {"y": "relu:activations:0", "s": "new:output:0"}, 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", READERS.values(), ids=READERS)
def test_readers_are_sent_elsewhere(graph: Graph, editor: Editor, case: Any) -> None:
    label, output, inputs, ret, count = case
    body = graph.body(label)
    split = body.node("split")
    new = editor.add("new", "Identity", [split.tensor(output)], T, beside=split)
    assert editor.reroute(split, output, new.tensor(0), keep=new.index) == count
    found = consistent(graph).body(label)
    assert {name: found.node(name).inputs for name in inputs} == inputs
    assert found.node("new").inputs == (split.tensor(output),)
    assert found.ret == ret


CHANGES: dict[str, Callable[[Editor], object]] = {
    "attr": lambda e: e.set_attr(e.graph.main.node("again"), "_a", attr(1)),
    "input": lambda e: e.set_input(e.graph.functions["f"].node("elu"), 0, "x"),
    "add": lambda e: e.add("n", "NoOp", [], {}, e.graph.main.node("x")),
    "take name": lambda e: e.take_name(e.make_room(e.graph.main.node("x")), "Identity", [], T),
    "reroute": lambda e: e.reroute(e.graph.main.node("split"), 0, "x", keep=-1),
    "output": lambda e: e.reroute(e.graph.functions["f"].node("relu"), 0, "x", keep=-1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_a_copy_leaves_the_original(change: Callable[[Editor], object]) -> None:
    original = graph_of_both()
    before = graphs.written(original)
    copy = original.copy()
    change(Editor(copy, Author("r", "i")))
    assert graphs.written(original) == before != graphs.written(copy)
    assert all(body.library is copy.library for body in copy.bodies)
    consistent(original)
    consistent(copy)
    again = original.copy()
    change(Editor(again, Author("r", "i")))
    assert graphs.written(again) == graphs.written(copy)


@pytest.mark.parametrize("reads", ["s", "the one before", "s and the fifth"])
def test_ops_beside_one_another_are_in_the_same_order_however_many(reads: str) -> None:
    """Those that read `s` alone stand right behind it, others behind what they read."""
    graph = graphs.opened(
        graphdef(node("s", "Placeholder", dtype=attr("float32")), node("end", "NoOp"))
    )
    body, count = graph.main, 400
    editor, beside, expected = Editor(graph, Author("r", "1")), body.node("s"), [0]
    for number in range(count):
        new = 2 + number
        last = f"n{number - 1}" if number else "s"
        fifth = "n4" if number > 4 else "s"
        read = {"s": ["s"], "the one before": [last], "s and the fifth": ["s", fifth]}[reads]
        editor.add(f"n{number}", "AddN", read, {}, beside)
        behind = {"s": 0, "the one before": new - 1 if number else 0}
        expected.insert(expected.index(behind.get(reads, 6 if number > 4 else 0)) + 1, new)
    assert body.placed[0] == expected
    editor.add("first", "Identity", ["end"], {}, beside, before=True)
    copied = graph.copy()
    assert copied.main.placed[0] == [count + 2, *expected]
    written = graphs.written(graph)
    assert graphs.written(copied) == written
    names = [one.name for one in graphs.opened(written).main]
    assert names[:2] == ["first", "s"]
    assert names[-1] == "end"


def test_what_is_done_once_is_done_again_where_it_raised() -> None:
    graph, done = graphs.opened(graphs.sample()), list[str]()
    editor = RuleEditor(graph, Author("r", "i"), report=Report())

    def fails() -> None:
        done.append("failed")
        raise PatchError("no")

    with pytest.raises(PatchError, match="no"):
        editor.cached("deed", fails)
    for _ in range(3):
        editor.cached("deed", lambda: done.append("done"))
    assert done == ["failed", "done"]
