"""Small tables and lists for people: what is shown, and how many more there are."""

from __future__ import annotations

import pytest

from graphpatch.table import (
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
    ("texts", "most", "told"),
    [
        ([], 3, ""),
        (["a", "b", "c"], 3, "a, b, c"),
        (["a", "b", "c", "d"], 3, "a, b, c and 1 more"),
        (["a"] * 1003, 3, "a, a, a and 1,000 more"),
    ],
)
def test_the_first_of_some_texts_are_told(texts: list[str], most: int, told: str) -> None:
    assert short(texts, most) == told


def test_they_are_told_with_what_stands_between_them() -> None:
    assert short(["a: b", "c: d", "e: f", "g"], by="; ") == "a: b; c: d; e: f and 1 more"


def test_nothing_more_is_told_where_all_are_shown() -> None:
    assert [and_more("abc", shown) for shown in (2, 3, 4)] == ["and 1 more", "", ""]


def test_a_text_is_cut_short_to_the_most_characters() -> None:
    assert [cut_short("abcdefgh"[:n], 7) for n in (3, 7, 8)] == ["abc", "abcdefg", "abcd..."]


@pytest.mark.parametrize(
    ("count", "word", "told"),
    [(0, "op", "0 ops"), (1, "op", "1 op"), (2, "match", "2 matches"), (1000, "op", "1,000 ops")],
)
def test_a_word_is_counted(count: int, word: str, told: str) -> None:
    assert plural(count, word) == told


def test_a_table_shows_the_first_rows_and_escapes_them() -> None:
    assert IN_LIST == 20
    table = html_table("<t>", ("a", "b"), [(f"<{row}>", row) for row in range(IN_LIST + 2)])
    assert table.startswith("<div><p>&lt;t&gt;</p><table><tr><th>a</th><th>b</th></tr>")
    assert table.count("<tr>") == 1 + IN_LIST + 1
    assert f"<td>&lt;{IN_LIST - 1}&gt;</td>" in table
    assert '<td colspan="2">and 2 more</td>' in table
    assert "more" not in html_table("t", ("a",), [(1,)] * IN_LIST)
    assert "<table>" not in html_table("t", ("a",), [])


def test_a_table_stands_beside_what_there_is() -> None:
    assert beside("<a>", "") == "<a>"
    assert beside("<a>", "<b>") == "<div><a><b></div>"


def test_a_long_path_shows_its_ends() -> None:
    assert path_in_words("abc", 4) == "a -> b -> c"
    assert path_in_words("abcd", 4) == "a -> b -> c -> d"
    assert path_in_words("abcdefg", 4) == "a -> b -> ... 3 more ... -> f -> g"
    many = [str(n) for n in range(2_004)]
    assert path_in_words(many, 2) == "0 -> ... 2,002 more ... -> 2003"
