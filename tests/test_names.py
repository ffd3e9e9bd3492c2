from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpatch import names
from graphpatch.graph.check import IN_FUNCTION
from graphpatch.names import TensorName, fresh, op_of, parse

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
