"""The longest files come first, and none is named that is gone."""

from __future__ import annotations

from types import SimpleNamespace

from tests import order


def test_the_longest_come_first_and_tests_stay_in_order() -> None:
    assert [str(path) for path in order.PLACES if not path.is_file()] == []
    first, last = order.HERE / order.LONGEST[0], order.HERE / order.LONGEST[-1]
    files = [order.HERE / "a.py", last, order.HERE / "b.py", first]
    items = [SimpleNamespace(path=path, name=name) for path in files for name in "ab"]
    order.longest_first(items)
    expected = [first, last, order.HERE / "a.py", order.HERE / "b.py"]
    assert [(item.path, item.name) for item in items] == [(p, n) for p in expected for n in "ab"]
