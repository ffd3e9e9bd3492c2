"""Patterns that mean nothing: one message each, which shows the place in the text."""

from __future__ import annotations

from typing import Any

import pytest

from graphpatch.errors import PatternError, RulesError
from graphpatch.match.syntax import parse_pattern
from graphpatch.rules import rules_from

# The text with ^ before what the message points at, and the message.
TEXTS: list[tuple[str, str]] = [
    # disconnected
    ("Relu; ^Tanh", "'Tanh' is not linked with 'Relu'"),
    ("a:Conv2D; ^b:Relu -> !Tanh -> a", "'b' is not linked with 'a'"),
    ("x:_ -> ^Add:0 -> Relu; c:Const -> Add:1", "to mean the same one, name it: m:Add"),
    ("^x -> Relu", "no node is called 'x' (any tensor is written x:_, a function"),
    ("a:Conv2D -> ^b:Relu? -> c:Tanh; d:Exp -> b", "make 'd' optional too"),
    # a cycle
    ("a:Relu -> b:Tanh; b ^-> a", "a cycle: a -> b -> a"),
    ("a:Relu -> b:Exp; b ^^-> a", "a cycle: a -> b -> a"),
    # a slot that the op does not have
    ("Relu -> Relu:^1", "Relu has no input 1; it has 0 (features)"),
    ("MatMul[^1] -> Relu", "MatMul has no output 1; it has 0 (product)"),
    ("a:Relu -> m:Mul:0; b:Tanh -> m:^0", "input 0 of 'm' has a source already"),
    ("Relu -> Mul:0:^1", "the slot is 0 already"),
    ("Relu -> Mul:^-1", "slots are counted 0, 1, ..., not -1"),
    ("Relu:^0 -> Tanh", "no link enters here; an input slot stands behind ->"),
    ("Relu -> Tanh[^0]", "no link leaves here; an output stands before ->"),
    ("Relu -> Split[^x]", "the number of a slot is expected behind '[', not 'x'"),
    ("Relu -> Split[1^", "] is expected, not the end"),
    # empty
    ("^;", "an op type or a capture is expected, not ';'"),
    ("^!Relu", "the pattern is empty: it needs an op that is there"),
    ("^Relu? -> Tanh?", "every op of the pattern is optional"),
    # syntax
    ("Conv2D -> ^-> Relu", "an op type or a capture is expected, not '->'"),
    ("Conv2D ^Relu", "a link, ; or the end is expected, not 'Relu'"),
    ("Relu -> ^(Tanh)", "there are no brackets: what goes on elsewhere is written after ;"),
    ("Relu^, Tanh", "chains are separated by ;"),
    ("Relu ^<- Tanh", "links go from an op to the one that reads it: A -> B"),
    ("Relu ^→ Tanh", "a link is written ->"),
    ("Relu ^+ Tanh", "a run of one or more ops is written ->+"),
    ("Relu^& Tanh", "conditions that must hold together are written in the JSON form"),
    # names
    ("a:Relu -> ^a:Tanh", "'a' is named already; to mean it again, write no type"),
    ("act:Relu -> Mul; ^atc -> Exp", "no node is called 'atc'; nearest: act"),
    ("Conv2D -> ^relu", "no node is called 'relu'; nearest: Relu"),
    ("Conv2D -> x:^_|Relu", "_ is any tensor from outside, and no op type beside others"),
    # tensors, marks, values
    ("Relu ^-> x:_", "_ is a tensor from outside: nothing leads to it"),
    ("x:_[^1] -> Relu", "_ is one tensor: it has no outputs to choose from"),
    ("x:_ ^^-> Relu", "_ is a tensor: no control edge leaves it"),
    ("^x:_ -> Relu; x? -> Tanh", "_ is a tensor from outside: it cannot be optional"),
    ("Relu ^^-> Tanh:0", "a control edge has no slots and no run"),
    ("Conv2D -> Relu?^?", "'Relu' is optional already"),
    ("Conv2D -> !^Relu?", "an absent op cannot be optional too"),
    ("Conv2D ^->+ !Relu", "an absent op cannot be a run"),
    ("!Shape ^->+ Conv2D ->+ BiasAdd:0", "an absent op has no run behind it"),
    ("a:Relu -> m:Mul; b:Tanh ^->+ m", "'m' is a run, and entered by this link alone"),
    ("Relu^=3", "only a Const has a value, and only one: Const=0.5"),
    ("Const=^x", "a number is expected behind '=', not 'x'"),
    ("Const=1^~-2", "a tolerance is 0 or more"),
]  # fmt: skip


@pytest.mark.parametrize(("marked", "message"), TEXTS, ids=[marked for marked, _ in TEXTS])
def test_the_message_shows_the_place_in_the_text(marked: str, message: str) -> None:
    column = marked.index("^") + 1  # the mark is the first ^
    text = marked[: column - 1] + marked[column:]
    with pytest.raises(PatternError) as raised:
        parse_pattern(text)
    said, shown, caret = str(raised.value).split("\n")
    assert said.startswith(f"pattern, column {column}: ")
    assert message in said
    assert shown[2:] == text.replace("\n", " ")
    assert caret.index("^") == column + 1  # behind two blanks


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_an_empty_text_has_no_place(text: str) -> None:
    with pytest.raises(PatternError, match=r"^pattern: the pattern is empty"):
        parse_pattern(text)


def test_of_a_long_text_it_shows_what_is_around() -> None:
    with pytest.raises(PatternError) as raised:
        parse_pattern("Relu -> " * 60 + "= -> " + "Relu -> " * 60 + "Relu")
    _, shown, caret = str(raised.value).split("\n")
    assert len(shown) <= 102
    assert shown[caret.index("^")] == "="


RELU, TANH = {"op": "Relu"}, {"op": "Tanh"}
BOTH = {"a": RELU, "b": TANH}
JSON: dict[str, tuple[Any, str]] = {
    "all absent": ({"nodes": {"a": RELU}, "absent": ["a"]}, "pattern.nodes: the pattern is empty"),
    "disconnected": ({"nodes": BOTH}, "pattern, node 'b': 'b' is not linked with 'a'"),
    "a cycle": ({"nodes": BOTH, "edges": [["a", "b"], ["b", "a"]]},
     "pattern.edges[1]: a cycle: a -> b -> a"),
    "no such input": ({"nodes": BOTH, "edges": [["a", "b", {"input": 1}]]},
     "pattern.edges[0][2].input: Tanh has no input 1; it has 0 (x)"),
    "no such output": ({"nodes": BOTH, "edges": [["a", "b", {"output": 1}]]},
     "pattern.edges[0][2].output: Relu has no output 1; it has 0 (activations)"),
    "an unknown end": ({"nodes": {"act": RELU}, "edges": [["act", "atc"]]},
     "pattern.edges[0]: no node is called 'atc'; nearest: act"),
    "a tensor that is a node": ({"nodes": BOTH, "edges": [["a", "b"]], "tensors": ["a"]},
     "pattern.tensors: 'a' is a node: a name is one or the other"),
    "absent without a link": ({"nodes": BOTH, "absent": ["b"]},
     "pattern, node 'b': nothing says where 'b' must be absent"),
    "absent beside absent": ({"nodes": {**BOTH, "c": RELU}, "edges": [["a", "b"], ["b", "c"]],
     "absent": ["b", "c"]},
     "pattern.edges[1]: an absent op is linked to ops that are there, not to another"),
    "too many optional ops": ({"nodes": {f"n{k}": RELU for k in range(11)},
     "edges": [[f"n{k}", f"n{k + 1}"] for k in range(10)],
     "optional": [f"n{k}" for k in range(10)]}, "pattern, node 'n8': more than 8 optional ops"),
    "an empty list": ([], "pattern: the list is empty: it needs a pattern"),
    "an unknown closed op": ({"nodes": BOTH, "closed": ["c"], "edges": [["a", "b"]]},
     "pattern.closed: no node is called 'c'; legal: a, b"),
    "one bad of several": (["Relu", {"nodes": {}}], "pattern.nodes: the pattern is empty"),
    "an unknown key": ({"nodes": BOTH, "edge": []}, ".pattern: unknown key 'edge'; nearest: edges"),
    "a value that means nothing": ({"nodes": {"a": {"name_regex": "("}}},
     "name_regex '(' is not a regular expression"),
    "a bad pattern in a pattern": ({"nodes": {"a": {"pattern": "Relu ->"}}},
     "pattern, column 8: an op type or a capture is expected, not the end"),
}  # fmt: skip


@pytest.mark.parametrize(("pattern", "message"), JSON.values(), ids=JSON)
def test_of_the_json_form_the_message_walks_to_the_key(pattern: Any, message: str) -> None:
    with pytest.raises(RulesError) as raised:
        rules_from([{"match": {"pattern": pattern}, "patch": {"stop_gradient": True}}])
    assert message in str(raised.value)
    assert str(raised.value).startswith("rules[0]")


SWISH = "x:_ -> s:Sigmoid -> mul:Mul; x -> mul; mul -> !e:Exp"
ON: list[tuple[Any, Any, str]] = [
    (SWISH, "mull", f"no op of the pattern is called 'mull'; nearest: mul\n  {SWISH}"),
    (SWISH, "x", f"no op of the pattern is called 'x'; legal: s, mul, match\n  {SWISH}"),
    (SWISH, ["mul", "e"], f"no op of the pattern is called 'e'; legal: s, mul, match\n  {SWISH}"),
    ("Relu", [], "names of the pattern's ops"),
    ("Relu", ["Relu", "match"], "names of the pattern's ops"),
    ({"nodes": {"a": RELU}}, "b", "called 'b'; legal: a, match"),
    (["a:Relu", "b:Tanh"], "a", "called 'a'; legal: b, match\n  b:Tanh"),
]


@pytest.mark.parametrize(("pattern", "on", "message"), ON, ids=str)
def test_an_unknown_capture_in_on_is_told_with_the_pattern(
    pattern: Any, on: Any, message: str
) -> None:
    rule = {"match": {"pattern": pattern}, "patch": {"stop_gradient": True, "on": on}}
    with pytest.raises(RulesError) as raised:
        rules_from([rule])
    assert "patch.on: " in str(raised.value)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A -> B:" + "9" * 5_000, "a number has at most 400 characters"),
        ("A -> B:" + "9" * 30, "slots are counted 0, 1, ..., not 9999"),
        ("A[" + "9" * 5_000 + "] -> B", "a number has at most 400 characters"),
        ("A|" * 6_000 + "B", "12,001 characters, and 10,000 is the most"),
    ],
)
def test_what_nobody_writes_is_refused(text: str, message: str) -> None:
    with pytest.raises(PatternError, match=message):
        parse_pattern(text)
