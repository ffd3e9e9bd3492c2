"""Lanes, order and folds of random graphs: what must hold of every picture."""

from __future__ import annotations

import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphpatch.page.folds import ABSENT, LINES_ALL_OPEN, Fold, folds, lane_columns
from graphpatch.page.line_order import in_reading_order, scopes

# On a busy machine one draw may take seconds.
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

Reads = list[list[int] | None]


@st.composite
def lists(draw: st.DrawFn) -> Reads:
    """For each line those further down that it reads; some lines are not there."""
    count = draw(st.integers(1, 30))
    there = [draw(st.integers(0, 9)) > 0 for _ in range(count)]
    return [
        sorted(
            draw(st.sets(st.integers(row + 1, count - 1), max_size=4))
            & {n for n in range(count) if there[n]}
        )
        if there[row] and row + 1 < count
        else ([] if there[row] else None)
        for row in range(count)
    ]


def lanes(reads: Reads) -> dict[int, int]:
    """For each line that is read, the first that reads it: its lane leads from there to it."""
    firsts: dict[int, int] = {}
    for row, read in enumerate(reads):
        for producer in read or ():
            firsts.setdefault(producer, row)
    return firsts


@quick
@given(lists())
def test_every_line_that_is_there_has_a_column(reads: Reads) -> None:
    assert [column == ABSENT for column in lane_columns(reads)] == [read is None for read in reads]


@quick
@given(lists())
def test_no_lane_crosses_a_knot(reads: Reads) -> None:
    found = lane_columns(reads)
    for producer, first in lanes(reads).items():
        between = found[first + 1 : producer]
        assert found[producer] not in between


@quick
@given(lists())
def test_no_two_lanes_are_one(reads: Reads) -> None:
    """In the gap behind each line, every lane has a column of its own."""
    found, begun = lane_columns(reads), lanes(reads)
    for row in range(len(reads)):
        here = [found[p] for p, first in begun.items() if first <= row < p]
        assert len(here) == len(set(here))


@quick
@given(lists())
def test_a_chain_stays_in_its_column(reads: Reads) -> None:
    """What one line alone reads, and reads alone, stands right below it where nothing joins."""
    chain: Reads = [[row + 1] for row in range(len(reads) - 1)] + [[]]
    assert set(lane_columns(chain)) == {0}


@quick
@given(lists())
def test_no_more_columns_than_lanes_are_open(reads: Reads) -> None:
    found, begun = lane_columns(reads), lanes(reads)
    widest = max(
        sum(first < row <= producer for producer, first in begun.items())
        + (row not in begun and reads[row] is not None)
        for row in range(len(reads))
    )
    assert max(found) < max(widest, 1) + 1


NAMES = st.lists(st.sampled_from(["a", "b", "a/x", "a/y", "a/x/p", "b/x"]), min_size=1, max_size=4)


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    """A graph of named ops in scopes, with cycles or without."""
    count = draw(st.integers(1, 25))
    names = [
        f"{draw(st.sampled_from(['a', 'b', 'a/x', 'a/x/p', 'c']))}/op{n}" for n in range(count)
    ]
    is_cyclic = draw(st.booleans())
    return {
        name: [
            names[n]
            for n in sorted(draw(st.sets(st.integers(0, count - 1), max_size=3)))
            if is_cyclic or n > place
        ]
        for place, name in enumerate(names)
    }


@quick
@given(graphs())
def test_every_line_is_there_once(reads: dict[str, list[str]]) -> None:
    order = in_reading_order(reads, list(reads)[:1], {name: name for name in reads})
    assert sorted(order) == sorted(reads)


@quick
@given(graphs())
def test_a_line_comes_after_all_that_read_it(reads: dict[str, list[str]]) -> None:
    order = in_reading_order(reads, [], {name: name for name in reads})
    place = {name: n for n, name in enumerate(order)}
    back = [(a, b) for a, read in reads.items() for b in read if place[b] <= place[a]]
    for reader, producer in back:  # only where a circle leads back
        assert reaches(reads, producer, reader)


def reaches(reads: dict[str, list[str]], one: str, other: str) -> bool:
    seen, todo = set[str](), [one]
    while todo:
        name = todo.pop()
        if name == other:
            return True
        if name not in seen:
            seen.add(name)
            todo += reads[name]
    return False


@quick
@given(graphs())
def test_folds_lie_in_each_other_and_share_a_scope(reads: dict[str, list[str]]) -> None:
    order = in_reading_order(reads, [], {name: name for name in reads})
    found = folds(order, {0})
    for one in found:
        assert one.first < one.last
        assert all(name.startswith(f"{one.name}/") for name in order[one.first : one.last + 1])
        around = [o for o in found if o.first <= one.first and one.last <= o.last and o is not one]
        assert len(around) == one.depth
        assert not any(o.first < one.first <= o.last < one.last for o in found)


def test_a_scope_in_two_stretches_folds_twice() -> None:
    names = ["a/1", "a/2", "b/1", "a/3", "a/4"]
    assert folds(names, ()) == [Fold(0, 1, 0, "a", True), Fold(3, 4, 0, "a", True)]


def test_of_a_long_list_what_is_to_be_shown_is_open() -> None:
    names = [f"{scope}/{n}" for scope in "abc" for n in range(LINES_ALL_OPEN)]
    found = folds(names, {LINES_ALL_OPEN + 3})
    assert [(one.name, one.is_open) for one in found] == [("a", False), ("b", True), ("c", False)]


@quick
@given(lists(), st.data())
def test_a_folded_stretch_is_crossed_by_no_lane(reads: Reads, data: st.DataObject) -> None:
    """The knot of a folded scope stands in the column of its first line."""
    found = lane_columns(reads)
    first = data.draw(st.integers(0, len(reads) - 1))
    last = data.draw(st.integers(first, len(reads) - 1))
    there = [row for row in range(first, last + 1) if found[row] != ABSENT]
    if there:
        through = {found[p] for p, begin in lanes(reads).items() if begin < first and p > last}
        assert found[there[0]] not in through


def test_the_scopes_of_a_name() -> None:
    assert scopes("a/b/c") == ("a", "b")
    assert scopes("a") == ()
    assert len(scopes("/".join("abcdefghijklmnopqrstuvwxyz"))) == 12


def test_a_loop_of_many_lines_is_ordered_in_one_walk() -> None:
    count = 30_000
    reads = {str(n): [str((n + 1) % count), str((n * 7 + 3) % count)] for n in range(count)}
    before = time.process_time()
    order = in_reading_order(reads, [], {name: name for name in reads})
    assert time.process_time() - before < 6
    assert sorted(order) == sorted(reads)
