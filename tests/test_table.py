"""Small tables and lists for people: what is shown, and how many more there are."""

from __future__ import annotations

import pytest

from graphpatch.shown import (
    IN_LIST,
    and_more,
    beside,
    cut_short,
    html_table,
    path_in_words,
    plural,
    short,
)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ("", ""),
        ("abc", "a, b, c"),
        ("abcd", "a, b, c and 1 more"),
        ("a" * 1003, "a, a, a and 1,000 more"),
    ],
)
def test_the_first_of_some_texts_are_told(texts: str, told: str) -> None:
    assert short([*texts], 3) == told
    assert short([*texts], 3, by="; ") == told.replace(", a", "; a").replace(", b, c", "; b; c")
    assert [and_more("abc", shown) for shown in (2, 3, 4)] == ["and 1 more", "", ""]


def test_a_word_is_counted_and_a_text_cut_short() -> None:
    counted = [plural(0, "op"), plural(1, "op"), plural(2, "match"), plural(1000, "op")]
    assert counted == ["0 ops", "1 op", "2 matches", "1,000 ops"]
    assert [cut_short("abcdefgh"[:n], 7) for n in (3, 7, 8)] == ["abc", "abcdefg", "abcd..."]


def test_a_table_shows_the_first_rows_and_escapes_them() -> None:
    assert IN_LIST == 20
    table = html_table("<t>", ("a", "b"), [(f"<{row}>", row) for row in range(IN_LIST + 2)])
    assert table.startswith("<div><p>&lt;t&gt;</p><table><tr><th>a</th><th>b</th></tr>")
    assert table.count("<tr>") == 1 + IN_LIST + 1
    assert f"<td>&lt;{IN_LIST - 1}&gt;</td>" in table
    assert '<td colspan="2">and 2 more</td>' in table
    assert "more" not in html_table("t", ("a",), [(1,)] * IN_LIST)
    assert "<table>" not in html_table("t", ("a",), [])
    assert [beside("<a>", more) for more in ("", "<b>")] == ["<a>", "<div><a><b></div>"]


def test_a_long_path_shows_its_ends() -> None:
    assert path_in_words("abc", 4) == "a -> b -> c"
    assert path_in_words("abcd", 4) == "a -> b -> c -> d"
    assert path_in_words("abcdefg", 4) == "a -> b -> ... 3 more ... -> f -> g"
    many = [str(n) for n in range(2_004)]
    assert path_in_words(many, 2) == "0 -> ... 2,002 more ... -> 2003"
