from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpatch import names
from graphpatch.errors import RulesError
from graphpatch.graph.check import IN_FUNCTION
from graphpatch.names import TensorName, fresh, glob_test, is_glob, one_of, op_of, parse, regex_test

SPELLED = {
    "op": TensorName("op"),
    "op:1": TensorName("op", 1),
    "^op": TensorName("op", control=True),
    "op:out:0": TensorName("op", 0, "out"),
    "scope/op:output_shapes:3": TensorName("scope/op", 3, "output_shapes"),
}


@pytest.mark.parametrize(("text", "name"), SPELLED.items())
def test_each_spelling_is_taken_apart_and_put_together(text: str, name: TensorName) -> None:
    assert parse(text) == name
    assert str(name) == text
    assert op_of(text) == name.op


def test_spellings_that_are_one_tensor_and_that_are_not() -> None:
    assert [str(parse(text)) for text in ("op:0", "op:1:0")] == ["op", "op:1:0"]
    assert [parse(text).full for text in ("op", "op:0", "a/op:1")] == ["op:0", "op:0", "a/op:1"]
    assert parse("op:1:0") == TensorName("op", 0, "1") != parse("op:1")


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("0", True), ("12", True), ("123456789", True), ("1234567890", False), ("12345678901", False),
     ("", False), ("-1", False), ("x", False), ("1a", False), ("²", False), ("٣", False)],
)  # fmt: skip
def test_the_number_of_an_output(text: str, is_one: bool) -> None:
    assert names.is_index(text) == is_one
    assert parse(f"op:{text}").index == (int(text) if is_one else 0)


@given(
    st.from_regex(IN_FUNCTION, fullmatch=True),
    st.integers(0, 1000),
    st.from_regex(r"[a-z_][a-z0-9_]*", fullmatch=True) | st.just(""),
    st.booleans(),
)
def test_what_is_put_together_is_taken_apart(op: str, index: int, arg: str, control: bool) -> None:
    name = TensorName(op, control=True) if control else TensorName(op, index, arg)
    assert parse(str(name)) == name
    assert op_of(str(name)) == op


def test_a_fresh_name_is_the_first_that_is_free() -> None:
    for taken, name in (((), "a"), (("b", "a_1"), "a"), (("a",), "a_1"), (("a", "a_2"), "a_1")):
        assert fresh("a", taken) == name
    assert fresh("a", frozenset({"a", "a_1", "a_2"})) == "a_3"


def test_a_fresh_name_takes_few_looks() -> None:
    """A thousand rules on one op, and so as many names, took 14 s."""
    asked = list[str]()

    class Taken:
        def __contains__(self, name: object) -> bool:
            asked.append(str(name))
            return name == "a" or str(name) in {f"a_{number}" for number in range(1, 1000)}

    assert fresh("a", Taken()) == "a_1000"
    assert len(asked) < 25


@pytest.mark.parametrize(
    ("texts", "are"),
    [([], True), (["a", "b/c_1"], True), ([""], False), (["a b"], False), (["a", "b:0"], False)],
)
def test_names_that_tensorflow_takes(texts: list[str], are: bool) -> None:
    assert names.are_spelled(texts) == are
    assert not names.are_spelled([*texts, "-a"], never_first="-")


# Globs mean what they say letter by letter; expressions what Python reads; in linear time.

# A glob, the names that it means, and names that it must leave.
GLOBS: dict[str, tuple[list[str], list[str]]] = {
    "relu": (["relu"], ["relu1", "a/relu", "Relu", "relu/a", ""]),
    "a/relu": (["a/relu"], ["relu", "b/a/relu", "a/b/relu"]),
    "*": (["relu", "a", ""], ["a/relu"]),
    "relu*": (["relu", "relu1", "relu_1"], ["relu/a", "a/relu"]),
    "a/*": (["a/b", "a/relu1"], ["a", "a/b/c", "b/a/c"]),
    "a/*/c": (["a/b/c"], ["a/c", "a/b/b/c"]),
    "a/**": (["a/b", "a/b/c", "a/b/c/d"], ["a", "ab/c", "b/a/c"]),
    "**": (["a", "a/b", "a/b/c", ""], []),
    "**/relu": (["relu", "a/relu", "a/b/relu"], ["a/relu1", "prelu", "a/prelu"]),
    "a/**/c": (["a/c", "a/b/c", "a/b/b/c"], ["a/bc", "ac", "c"]),
    "**/conv*/**": (["conv1/w", "a/conv/b/c"], ["conv1", "a/conv"]),
    "a**": (["a", "a/b", "ab/c"], ["b/a"]),
    "relu?": (["relu1", "relu_"], ["relu", "relu12", "relu/"]),
    "a+(b)$": (["a+(b)$"], ["aab"]),
}


@pytest.mark.parametrize(("glob", "names"), GLOBS.items())
def test_a_glob_means_these_names_and_no_others(
    glob: str, names: tuple[list[str], list[str]]
) -> None:
    meant, left = names
    assert [name for name in meant + left if glob_test(glob)(name)] == meant


@given(st.text(st.characters(exclude_characters="*?", codec="utf-8"), max_size=20))
def test_without_a_wildcard_it_is_a_name(name: str) -> None:
    assert not is_glob(name)
    assert glob_test(name)(name)
    assert not glob_test(name)(name + "x")


@given(st.text("ab/*?", max_size=8), st.text("ab/", max_size=8))
def test_a_glob_is_read_token_by_token(glob: str, name: str) -> None:
    assert is_glob(glob) == any(wildcard in glob for wildcard in "*?")
    assert glob_test(glob)(name) == slowly(glob, name)


def slowly(glob: str, name: str) -> bool:
    """The same, tried out letter by letter."""
    if not glob:
        return not name
    if glob.startswith("**/"):
        scopes = [0] + [place + 1 for place, letter in enumerate(name) if letter == "/"]
        return any(slowly(glob[3:], name[place:]) for place in scopes)
    if glob.startswith("**"):
        return any(slowly(glob[2:], name[place:]) for place in range(len(name) + 1))
    if glob.startswith("*"):
        most = len(name.partition("/")[0])
        return any(slowly(glob[1:], name[place:]) for place in range(most + 1))
    letters = {"?": "ab"}.get(glob[0], glob[0])
    return name[:1] != "" and name[0] in letters and slowly(glob[1:], name[1:])


def test_a_glob_that_is_too_large_is_one_message() -> None:
    with pytest.raises(
        RulesError, match=r"the glob '\*a\*a.*: it has 90,004 characters, and 10,000 is"
    ):
        glob_test("*a" * 15_000)


def test_one_of_several_names_and_globs() -> None:
    is_one = one_of(["relu", "a/*", "x?"])
    names = ["relu", "relu6", "a/b", "a/b/c", "x1", "x", "x?"]
    assert [name for name in names if is_one(name)] == ["relu", "a/b", "x1", "x?"]
    assert not any(map(one_of([]), names))


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
    assert regex_test(expression)(text) == (python.fullmatch(text) is not None)


# An engine that goes back takes more than a lifetime for each of these.
LONG = [
    *(
        (glob_test, text)
        for text in ("**/" * 50 + "x", "******x", "*a" * 40 + "b", "**a*" * 30 + "b")
    ),
    *((regex_test, text) for text in ("(a+)+$", "(a|a)*c", "(a*)*(a*)*c", "(.*)*x", ".*.*.*.*y")),
]


@pytest.mark.parametrize(("read", "text"), LONG)
def test_a_long_name_comes_to_an_end(read: Callable[..., Any], text: str) -> None:
    assert not read(text)("a" * 2_500 + "/a" * 1_250 + "/b/")


LACKS = "in RE2's syntax, which has no lookarounds, backreferences, conditions, comments, atomic"
REFUSED = {
    **dict.fromkeys(["(?=a)b", "(?<!a)b", r"(a)\1", r"a\Z", "a{1001}", "a++", "(?>a)"], LACKS),
    "(?#c)a": LACKS,
    "aa?{9999999999}({1,1000}|(?i){1,1000}": "in RE2's syntax",
    "a{,3}": "a repeat needs its least number: write {0,3}",
    "(": "missing ): ( (in RE2's syntax)",
    "\ud800": "not valid Unicode",
    "a" * 20_000: "20,000 characters, and 10,000 is the most",
    "([a-z]{1,500}[0-9]{1,500}){1}" * 100: "steps, and 10,000 is the most",
}


@pytest.mark.parametrize(("expression", "message"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_it_has_not_is_said(expression: str, message: str) -> None:
    with pytest.raises(RulesError) as error:
        regex_test(expression)
    assert message in str(error.value)
    assert len(str(error.value)) < 500


def test_a_name_that_is_no_ascii() -> None:
    assert regex_test("caf.")("café")
    assert not regex_test("x")("\udcff")
