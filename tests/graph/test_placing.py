"""Where added ops come to stand among those that were added before."""

from __future__ import annotations

from random import Random

import pytest

from graphpatch.graph import long_order
from graphpatch.graph.edit import Editor
from graphpatch.graph.edits import Author
from graphpatch.graph.long_order import SIZE, LongOrder
from graphpatch.graph.placing import LONG
from tests import graphs
from tests.graphs import attr, graphdef, node


def test_a_long_order_is_a_list() -> None:
    draw, expected = Random(7), list(range(0, 30_000, 10))
    found = LongOrder(expected)
    for number in range(1, 30_000, 10):
        at = draw.choice([0, 1, len(expected), draw.randrange(len(expected))])
        expected.insert(at, number)
        found.insert(at, number)
    assert list(found) == expected
    assert len(found) == len(expected)
    assert all(found.index(number) == expected.index(number) for number in expected[::37])
    assert max(map(len, found.parts)) < 2 * SIZE


def test_a_copy_of_a_long_order_is_its_own() -> None:
    found = LongOrder([3, 1])
    copy = found.copy()
    copy.insert(1, 2)
    assert (list(found), list(copy)) == ([3, 1], [3, 2, 1])


def test_a_number_or_place_that_is_not_in_a_long_order() -> None:
    with pytest.raises(ValueError, match="5 is not in the order"):
        LongOrder([3, 1]).index(5)
    with pytest.raises(IndexError, match="no place 7"):
        LongOrder([3, 1]).insert(7, 5)


@pytest.mark.parametrize("reads", ["s", "the one before", "s and the fifth"])
def test_ops_beside_one_another_are_in_the_same_order_however_many(reads: str) -> None:
    """Those that read `s` alone stand right behind it, others behind what they read."""
    graph = graphs.opened(
        graphdef(node("s", "Placeholder", dtype=attr("float32")), node("end", "NoOp"))
    )
    body, count = graph.main, 2 * LONG
    editor, beside, expected = Editor(graph, Author("r", "1")), body.node("s"), [0]
    for number in range(count):
        new = 2 + number
        last = f"n{number - 1}" if number else "s"
        fifth = "n4" if number > 4 else "s"
        read = {"s": ["s"], "the one before": [last], "s and the fifth": ["s", fifth]}[reads]
        editor.add(f"n{number}", "AddN", read, {}, beside)
        behind = {"s": 0, "the one before": new - 1 if number else 0}
        expected.insert(expected.index(behind.get(reads, 6 if number > 4 else 0)) + 1, new)
    assert isinstance(body.placed[0], LongOrder)
    assert list(body.placed[0]) == expected
    editor.add("first", "Identity", ["end"], {}, beside, before=True)
    copied = graph.copy()
    assert list(copied.main.placed[0]) == [count + 2, *expected]
    written = graphs.written(graph)
    assert graphs.written(copied) == written
    names = [one.name for one in graphs.opened(written).main]
    assert names[:2] == ["first", "s"]
    assert names[-1] == "end"


def test_placing_one_op_of_many_looks_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search in all of them took a minute where a node has 60,000 outputs."""
    seen = [0]

    class Counted(list[int]):
        def index(self, *given: object) -> int:
            found = super().index(*given)  # type: ignore[arg-type]
            seen[0] += found + 1
            return found

    def counting(order: LongOrder, place: int, numbers: list[int]) -> None:
        part = Counted(numbers)
        order.parts.insert(place, part)
        order.part_of.update(dict.fromkeys(numbers, part))

    monkeypatch.setattr(long_order.LongOrder, "_part", counting)
    graph = graphs.opened(graphdef(node("s", "Placeholder", dtype=attr("float32"))))
    editor, beside = Editor(graph, Author("r", "1")), graph.main.node("s")
    count = 5 * SIZE
    for number in range(count):
        last = f"n{number - 1}" if number else "s"
        editor.add(f"n{number}", "Identity", [last], {}, beside)
    assert isinstance(graph.main.placed[0], LongOrder)
    assert 0 < seen[0] < count * (2 * SIZE + 1)
    assert len(graph.main.placed[0].parts) >= 4
