"""The longest files come first, and none is named that is gone."""

from __future__ import annotations

from types import SimpleNamespace

from tests import order


def test_the_files_are_there() -> None:
    assert [str(path) for path in order.PLACES if not path.is_file()] == []


def test_the_longest_come_first_and_tests_stay_in_order() -> None:
    first, last = order.HERE / order.LONGEST[0], order.HERE / order.LONGEST[-1]
    given = [order.HERE / "test_docs.py", order.HERE / "a.py", last, order.HERE / "b.py", first]
    items = [SimpleNamespace(path=path, name=name) for path in given for name in "ab"]
    order.longest_first(items)
    found = [(item.path, item.name) for item in items]
    sorted_files = [
        first,
        order.HERE / "test_docs.py",
        last,
        order.HERE / "a.py",
        order.HERE / "b.py",
    ]
    assert found == [(path, name) for path in sorted_files for name in "ab"]
