"""Order, folds and lanes of random graphs, as the page's script lays them out in Chromium."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from tests.draws import draws
from tests.page.browser import Opened, browser

DIGITS = Path(__file__).parent.parent.parent / "scripts/models/digits.pb"
SCOPES = ["", "a/", "a/b/", "a/b/c/", "d/"]

LAID_OUT = """
graphs => graphs.map(drawn => {
  const few = { marks: {}, findings: {}, calls: {}, carried: {}, plots: {} };
  const none = drawn.names.map(() => 0), inputs = drawn.names.map(() => []);
  const side0 = { flow: drawn.names.map(() => 3), arrives: none, edges: drawn.edges };
  const columns = { types: none, tensors: none, attrs: none, inputs, sides: [side0] };
  const tables = { types: ["Relu"], tensors: [""], attrs: [{}], findings: [], plots: [] };
  const bodies = [{ ...few, ...drawn, ...columns }];
  const [body] = readBodies({ bodies, tables, defaults: {}, graphs: [], run: null });
  for (const place of drawn.closed) {
    if (body.folds.length) body.folds[place % body.folds.length].isOpen = false;
  }
  const part = new Row(null, "function", body, ALL), rows = [];
  part.addTo(rows);
  const [side] = part.sides;
  return {
    order: body.byNumber.map(line => line.row), at: [...part.at], knots: [...side.knots],
    lanes: side.lanes, group: body.group, folds: body.folds,
    names: body.lines.map(line => line.name), kinds: rows.map(row => row.kind),
  };
})
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("page") / "digits.html"
    graphpatch.view(DIGITS).save(path)
    with browser() as chrome:
        opened = Opened(chrome, path)
        yield opened.page
        opened.close()


def drawn_graph(seed: int) -> dict[str, Any]:
    """A graph of ops in scopes, with loops or without; some of its scopes are to be closed."""
    chance = random.Random(seed)
    count = chance.randint(1, 60)
    reach, is_cyclic = chance.choice([3, 20, count]), chance.random() < 0.3
    edges = []
    for row in range(count):
        later = range(0 if is_cyclic else row + 1, min(count, row + 1 + reach))
        read = chance.sample(later, min(len(later), chance.randint(0, 3)))
        edges.append([number for producer in sorted(read) for number in (producer, 3)])
    names = [f"{chance.choice(SCOPES)}op{row}" for row in range(count)]
    leaves = [row for row in range(count) if not edges[row] and chance.random() < 0.5]
    closed = [chance.randrange(20) for _ in range(chance.randint(0, 3))]
    return {
        "names": names,
        "edges": edges,
        "ends": {"0": "target"},
        "variables": leaves,
        "closed": closed,
        "is_cyclic": is_cyclic,
    }


@pytest.fixture(scope="module")
def laid_out(page: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    graphs = [drawn_graph(seed) for seed in range(draws(240))]
    return list(zip(graphs, page.evaluate(LAID_OUT, graphs), strict=True))


def edges_of(graph: dict[str, Any], laid: dict[str, Any]) -> list[tuple[int, int]]:
    """Each edge, from the row of the reader to the row of what it reads."""
    order = laid["order"]
    return [
        (order[reader], order[producer])
        for reader, edges in enumerate(graph["edges"])
        for producer in edges[::2]
    ]


def test_a_line_comes_after_all_that_read_it(laid_out: list[Any]) -> None:
    """Where no loop leads back; a line of a loop comes after those that a loop before it reads."""
    for graph, laid in laid_out:
        assert sorted(laid["order"]) == list(range(len(graph["names"])))  # each line is there once
        edges = edges_of(graph, laid)
        back = [(reader, producer) for reader, producer in edges if producer <= reader]
        back = [edge for edge in back if edge[1] < laid["group"]]
        if not graph["is_cyclic"]:
            assert back == []
        reads: dict[int, list[int]] = {}
        for reader, producer in edges:
            reads.setdefault(reader, []).append(producer)
        for reader, producer in back:
            seen, todo = set[int](), [producer]
            while todo:
                row = todo.pop()
                if row not in seen:
                    seen.add(row)
                    todo += reads.get(row, ())
            assert reader in seen


def test_variables_stand_together_at_the_end(laid_out: list[Any]) -> None:
    for graph, laid in laid_out:
        grouped = [laid["order"][line] for line in graph["variables"]]
        if len(grouped) > 3:
            count = len(graph["names"])
            assert sorted(grouped) == list(range(count - len(grouped), count))
            assert "group" in laid["kinds"]
        else:
            assert "group" not in laid["kinds"]


def test_folds_lie_in_each_other_and_share_a_scope(laid_out: list[Any]) -> None:
    for _, laid in laid_out:
        folds = [fold for fold in laid["folds"] if not fold.get("isGroup")]
        for fold in folds:
            assert fold["first"] < fold["last"]
            inside = laid["names"][fold["first"] : fold["last"] + 1]
            assert all(name.startswith(f"{fold['name']}/") for name in inside)
            rows = set(range(fold["first"], fold["last"] + 1))
            for other in folds:  # one lies in the other, or they are apart
                others = set(range(other["first"], other["last"] + 1))
                assert rows & others in (rows, others, set())


def test_every_edge_has_its_lane_and_no_two_lanes_are_one(laid_out: list[Any]) -> None:
    for graph, laid in laid_out:
        at, lanes = laid["at"], laid["lanes"]
        edges = [
            (at[reader], at[producer])
            for reader, producer in edges_of(graph, laid)
            if at[reader] < at[producer] and producer < laid["group"]
        ]
        joined = {(start, lane["to"]) for lane in lanes for start, _ in lane["joins"]}
        assert joined == set(edges)
        assert len(lanes) == len({producer for _, producer in edges})
        knots = dict(laid["knots"])
        for row in range(len(laid["kinds"])):
            through = [lane["column"] for lane in lanes if lane["from"] < row < lane["to"]]
            assert knots.get(row) not in through
            below = [lane["column"] for lane in lanes if lane["from"] <= row < lane["to"]]
            assert len(below) == len(set(below))
            ending = [lane["column"] for lane in lanes if lane["to"] == row]
            assert set(ending) <= {knots.get(row)}


FOLDED = "names => foldsOf(names).map(fold => [fold.first, fold.last, fold.name])"


def test_a_scope_in_two_stretches_folds_twice(page: Any) -> None:
    names = ["a/1", "a/2", "b/1", "a/3", "a/4"]
    assert page.evaluate(FOLDED, names) == [[0, 1, "a"], [3, 4, "a"]]
    assert page.evaluate(FOLDED, ["a/b/1", "a/b/2", "c"]) == [[0, 1, "a/b"]]


def test_a_loop_of_many_lines_is_ordered(page: Any) -> None:
    count = 800
    edges = [[(row + 1) % count, 3, (row * 7 + 3) % count, 3] for row in range(count)]
    names = [str(row) for row in range(count)]
    graph = {"names": names, "edges": edges, "ends": {}, "variables": [], "closed": []}
    [laid] = page.evaluate(LAID_OUT, [graph])
    assert sorted(laid["order"]) == list(range(count))
