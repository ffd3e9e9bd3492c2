"""Regular expressions: as Python reads them, in linear time; what RE2 lacks is an error."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpatch.errors import RulesError
from graphpatch.match.glob import whole

EXPRESSIONS = st.lists(
    st.sampled_from(["a", "b", "/", ".", "*", "+?", "?", "|", "(", ")", "[ab]", "[^a]", "{0,2}"]),
    max_size=8,
).map("".join)


@given(EXPRESSIONS, st.text("ab/", max_size=8))
def test_it_means_what_python_means(expression: str, text: str) -> None:
    try:
        python = re.compile(expression)
    except re.error:
        return
    if re.search(r"[+*?}]\+", expression):
        return  # possessive: Python's alone
    assert whole(expression)(text) == (python.fullmatch(text) is not None)


@pytest.mark.parametrize("expression", ["(a+)+$", "(a|a)*c", "(a*)*(a*)*c", "(.*)*x", ".*.*.*.*y"])
def test_a_long_name_takes_no_long_time(expression: str) -> None:
    started = time.process_time()
    assert not whole(expression)("a" * 5_000 + "b")
    assert time.process_time() - started < 1


LACKS = "in RE2's syntax, which has no lookarounds, backreferences, conditions, comments, atomic"
REFUSED = {
    **dict.fromkeys(["(?=a)b", "(?<!a)b", r"(a)\1", r"a\Z", "a{1001}", "a++", "(?>a)"], LACKS),
    "(?#c)a": LACKS,
    "aa?{9999999999}({1,1000}|(?i){1,1000}": "in RE2's syntax",
    "a{,3}": "a repeat needs its least number: write {0,3}",
    "(": "missing ): ( (in RE2's syntax)",
    "\ud800": "not valid Unicode",
    "([a-z]{1,500}[0-9]{1,500}){1}" * 100: "steps, and 10,000 is the most",
}


@pytest.mark.parametrize(("expression", "message"), REFUSED.items())
def test_what_it_has_not_is_said(expression: str, message: str) -> None:
    with pytest.raises(RulesError) as error:
        whole(expression)
    assert message in str(error.value)
    assert len(str(error.value)) < 500


def test_a_name_that_is_no_ascii() -> None:
    assert whole("caf.")("café")
    assert not whole("x")("\udcff")


def test_a_long_expression_is_refused_before_it_is_compiled() -> None:
    with pytest.raises(RulesError, match="20,000 characters, and 10,000 is the most"):
        whole("a" * 20_000)
