"""Where added ops come to stand among those that were added before."""

from __future__ import annotations

import pytest

from graphpatch.graph.editor import Editor
from graphpatch.graph.record import Author
from tests import graphs
from tests.graphs import attr, graphdef, node


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
