"""What is said of a match that found nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import graphpatch
from graphpatch.match import nearest
from graphpatch.match.misses import explain
from graphpatch.match.nearest import elsewhere, nearest_names
from graphpatch.match.pattern import syntax
from graphpatch.match.spec import Match
from tests import graphs
from tests.graphs import function, graphdef, node
from tests.match.pattern.test_traps import scalar


def said(value: Any, *more: Any) -> list[str]:
    found = explain([graphs.opened(graphs.sample()), *more], msgspec.convert(value, Match))
    return [line.strip() for line in found.splitlines()]


SAID: dict[str, tuple[Any, list[str]]] = {
    "an op type": (
        {"op": "Rleu"},
        ["looked at 11 ops", "op 'Rleu': 0 of them; nearest: Relu, Relu6"],
    ),
    "the case of an op type": (
        {"op": "relu"},
        ["looked at 11 ops", "op 'relu': 0 of them; nearest: Relu, Relu6"],
    ),
    "a glob of op types": (
        {"op": "*relu*"},
        ["looked at 11 ops", "op '*relu*': 0 of them; nearest: Relu, Relu6"],
    ),
    "an op type like none": (
        {"op": "Xyz"},
        [
            "looked at 11 ops",
            "op 'Xyz': 0 of them; there are: Const, Identity, Mul, NoOp, Placeholder, ...",
        ],
    ),
    "a name": ({"name": "rleu"}, ["looked at 11 ops", "name 'rleu': 0 of them; nearest: relu"]),
    "a name without its scope": (
        {"name": "relu6"},
        ["looked at 11 ops", "name 'relu6': 0 of them; nearest: relu, tower/relu6"],
    ),
    "a scope": (
        {"name": "tower"},
        [
            "looked at 11 ops",
            "name 'tower': 0 of them; 'tower' is a scope, and 'tower/**' matches 1",
        ],
    ),
    "an output that an op does not have": (
        {"upstream_of": "relu:1"},
        [
            "looked at 11 ops",
            "upstream_of 'relu:1': 0 of them",
            "no tensor is called 'relu:1': Relu 'relu' has 1 output, counted from 0",
        ],
    ),
    "an output that an op does not have, as a name": (
        {"name": "relu:1"},
        ["looked at 11 ops", "name 'relu:1': 0 of them; Relu 'relu' has 1 output, counted from 0"],
    ),
    "a glob": (
        {"name": "towr/*relu*"},
        ["looked at 11 ops", "name 'towr/*relu*': 0 of them; nearest: relu, tower/relu6"],
    ),
    "several": (
        {"op": ["Rleu", "Mull"], "name": "x"},
        [
            "looked at 11 ops",
            "op 'Rleu', 'Mull': 0 of them; nearest: Relu, Relu6, Mul",
            "name 'x': 1 of them",
        ],
    ),
    "a body": (
        {"body": "mian"},
        ["looked at 11 ops", "body 'mian': 0 of them; nearest: main"],
    ),
    "keys that hold alone": (
        {"op": "Relu", "name": "tower/**", "attr": {"T": "float32"}, "dtype": "int32"},
        [
            "looked at 11 ops",
            "op 'Relu': 2 of them",
            "name 'tower/**': 1 of them",
            "attr: 7 of them",
            "dtype: 0 of them",
            "near: Relu 'relu': name is 'relu'; dtype is float32",
            "near: Relu 'relu' in function f: name is 'relu'; dtype is float32",
        ],
    ),
    "attrs": (
        {"op": "Mul", "attr": {"T": {"in": ["int32", "half"]}, "_class": False}},
        [
            "looked at 11 ops",
            "op 'Mul': 1 of them",
            "attr: 0 of them",
            "near: Mul 'Multiply': T is 'float32'",
        ],
    ),
    "a value": (
        {"op": "Const", "value": {">": 5}},
        [
            "looked at 11 ops",
            "op 'Const': 1 of them",
            "value: 0 of them",
            "near: Const 'w': value is [2.369428e-38]",
        ],
    ),
    "inputs": (
        {"op": "Relu", "body": "main", "inputs": {"0": {"op": "Conv2D"}}},
        [
            "looked at 11 ops",
            "body 'main': 10 of them",
            "op 'Relu': 2 of them",
            "inputs: 0 of them",
            "near: Relu 'relu': input 0 is Mul 'Multiply'",
            "near: Relu 'relu' in function f: it is in f; input 0 is a",
        ],
    ),
    "a glob that is meant in any scope": (
        {"name": "rel*6"},
        [
            "looked at 11 ops",
            "name 'rel*6': 0 of them; * stays within a scope: '**/rel*6' matches 1",
        ],
    ),
    "a regular expression as a name": (
        {"name": ".*elu6?"},
        [
            "looked at 11 ops",
            "name '.*elu6?': 0 of them; in rules, name_regex takes expressions: '.*elu6?' "
            "matches 3",
        ],
    ),
    "an expression between slashes": (
        {"name": "/elu/"},
        [
            "looked at 11 ops",
            "name '/elu/': 0 of them; in rules, name_regex takes expressions: '.*elu.*' matches 3",
        ],
    ),
    "a tensor": (
        {"name": "tower/relu6:0"},
        [
            "looked at 11 ops",
            "name 'tower/relu6:0': 0 of them; 'tower/relu6:0' is a tensor, and its op is "
            "'tower/relu6'",
        ],
    ),
    "a regular expression": (
        {"name_regex": "Relu.*"},
        ["looked at 11 ops", "name_regex 'Relu.*': 0 of them"],
    ),
    "a regular expression of a part": (
        {"name_regex": "elu"},
        [
            "looked at 11 ops",
            "name_regex 'elu': 0 of them; the whole name is matched: '.*(elu).*' matches 3",
        ],
    ),
    "keys that no op meets together": (
        {"op": "Mul", "name": "tower/**"},
        [
            "looked at 11 ops",
            "op 'Mul': 1 of them",
            "name 'tower/**': 1 of them",
            "all of these together: 0 of them",
        ],
    ),
    "an attr that no op has": (
        {"attr": {"stride": [1, 1]}},
        ["looked at 11 ops", "attr: 0 of them; no op has an attr 'stride'"],
    ),
    "a value of an attr that no op has": (
        {"attr": {"T": "half"}},
        ["looked at 11 ops", "attr: 0 of them; T is 'float32' (7)"],
    ),
    "a dtype that no op has": (
        {"dtype": "int8"},
        ["looked at 11 ops", "dtype: 0 of them; there are float32 (10)"],
    ),
    "a value that no op has": (
        {"value": 7},
        ["looked at 11 ops", "value: 0 of them; Consts are [2.369428e-38] (1)"],
    ),
    "what is combined": (
        {"any": [{"op": "Gone"}], "not": {"op": "Relu"}},
        ["looked at 11 ops", "any: 0 of them", "any[0]: 0 ops (op 0)", "not: 9 of them"],
    ),
    "what is left out": (
        {"op": "Relu", "not": {"name": "**"}},
        ["looked at 11 ops", "op 'Relu': 2 of them", "not: 0 of them", "not: 11 ops (name 11)"],
    ),
}  # fmt: skip


def test_a_graph_without_ops_has_no_nearest_ones() -> None:
    found = explain([graphs.opened(graphdef())], Match(op="Relu"))
    assert [line.strip() for line in found.splitlines()] == [
        "looked at 0 ops",
        "op 'Relu': 0 of them",
    ]


@pytest.mark.parametrize(("value", "lines"), SAID.values(), ids=SAID)
def test_it_says_why_nothing_was_found(value: Any, lines: list[str]) -> None:
    assert said(value) == lines


# Of each key that has a value: what the nearest op has instead.
WAY = graphs.opened(
    graphdef(
        node("x", "Placeholder"),
        node("z", "Placeholder"),
        node("a", "Relu", "x"),
        node("b", "Relu", "a"),
        node("c", "Tanh", "b"),
        node("apart", "Relu", "z"),
        node("end", "Exp", "apart"),
        node("after", "Neg", "z", "^c"),
        functions=[
            function("f", ["arg"], [node("in_f", "Selu", "arg")], {"y": "in_f:activations:0"})
        ],
    )
)
CUT = "the path leads through ops that `within` or `stop_at` leaves out"
FOUND: dict[str, tuple[Any, list[str]]] = {
    "name": (
        {"name": "r*", "op": "Tanh", "dtype": "float32"},
        ["Tanh 'c': name is 'c'"],
    ),
    "name_regex": (
        {"name_regex": "r.*", "op": "Tanh", "dtype": "float32"},
        ["Tanh 'c': name is 'c'"],
    ),
    "nth": (
        {"op": "Relu", "nth": 7},
        [
            "Relu 'a': it is number 0 (from 0) of 3 in graph order",
            "Relu 'b': it is number 2 (from 0) of 3 in graph order",
            "Relu 'apart': it is number 1 (from 0) of 3 in graph order",
        ],
    ),
    "nth by name": (
        {"op": "Relu", "name": "a*", "nth": {"at": 2, "by": "name"}},
        [
            "Relu 'a': it is number 0 (from 0) of 2 in name order",
            "Relu 'apart': it is number 1 (from 0) of 2 in name order",
            "Relu 'b': name is 'b'; it is none of the 2 that nth counts",
        ],
    ),
    "upstream_of": (
        {"op": "Relu", "name": "ap*", "upstream_of": "c"},
        [
            "Relu 'apart': c is not computed from it; what is, ends in end",
            "Relu 'a': name is 'a'",
            "Relu 'b': name is 'b'",
        ],
    ),
    "upstream_of, nothing behind": (
        {"op": "Exp", "upstream_of": "c"},
        ["Exp 'end': c is not computed from it; nothing is"],
    ),
    "upstream_of, by control edges": (
        {"op": "Tanh", "upstream_of": "after"},
        ["Tanh 'c': after is not computed from it; nothing is"],
    ),
    "upstream_of, within": (
        {"op": "Relu", "name": "a", "upstream_of": {"of": "c", "within": {"op": "Tanh"}}},
        [
            f"Relu 'a': {CUT}",
            f"Relu 'b': name is 'b'; {CUT}",
            "Relu 'apart': name is 'apart'; c is not computed from it; what is, ends in end",
        ],
    ),
    "downstream_of": (
        {"op": "Exp", "downstream_of": "a"},
        ["Exp 'end': it is not computed from a; it is computed from z"],
    ),
    "downstream_of, in a function": (
        {"op": "Selu", "downstream_of": "a"},
        ["Selu 'in_f' in function f: it is not computed from a; it is computed from arg"],
    ),
    "downstream_of, by control edges": (
        {"op": "Neg", "downstream_of": "b"},
        ["Neg 'after': it is not computed from b; it is computed from z"],
    ),
    "downstream_of, stop_at": (
        {"op": "Tanh", "downstream_of": {"of": "x", "stop_at": {"name": "a"}}},
        [f"Tanh 'c': {CUT}"],
    ),
    "between": (
        {"op": "Exp", "between": {"from": "x", "to": "c"}},
        ["Exp 'end': it is not computed from x; it is computed from z, and c is not computed from "
         "it; nothing is"],
    ),
    "between, behind its end": (
        {"op": "Tanh", "between": {"from": "x", "to": "b"}},
        ["Tanh 'c': b is not computed from it; nothing is"],
    ),
    "between, an end": (
        {"op": "Tanh", "between": {"from": "x", "to": "c", "ends": False}},
        ["Tanh 'c': it is an end of the path"],
    ),
    "between, within": (
        {"op": "Relu", "name": "b", "between": {"from": "x", "to": "c", "within": {"op": "Elu"}}},
        [
            f"Relu 'b': {CUT}",
            f"Relu 'a': name is 'a'; {CUT}",
            "Relu 'apart': name is 'apart'; it is not computed from x; it is computed from z, "
            "and c is not computed from it; what is, ends in...",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("value", "near"), FOUND.values(), ids=FOUND)
def test_a_miss_tells_what_the_nearest_ops_have_instead(value: Any, near: list[str]) -> None:
    lines = explain([WAY], msgspec.convert(value, Match)).splitlines()
    assert [line.removeprefix("  near: ") for line in lines if line.startswith("  near: ")] == near


FEW = graphs.opened(
    graphdef(
        node("x", "Placeholder"),
        scalar("c", 2.0),
        node("conv", "Conv2D", "x", "c", padding="SAME"),
        node("m", "Mul", "conv", "c"),
    )
)
ANYWHERE: dict[str, tuple[Any, str]] = {
    "the value of a source": ({"pattern": "c:Const=3 -> m:Mul"}, "    near: Const 'c': value is 2"),
    "the value of the one op": ({"pattern": "Const=[1,0]"}, "    near: Const 'c': value is 2"),
    "the attr of the one op": (
        {"pattern": {"nodes": {"a": {"op": "Conv2D", "attr": {"padding": "VALID"}}}}},
        "    near: Conv2D 'conv': padding is 'SAME'",
    ),
    "beside a pattern, an attr": (
        {"pattern": "Conv2D", "attr": {"padding": "VALID"}},
        "  near: Conv2D 'conv': padding is 'SAME'",
    ),
    "beside a pattern, a name": (
        {"pattern": "Conv2D", "name": "nope/*"},
        "  near: Conv2D 'conv': name is 'conv'",
    ),
    "a slot that is not there": (
        {"op": "Mul", "inputs": {"5": {"op": "Relu"}}},
        "  near: Mul 'm': there is no input 5, input 0 is Conv2D 'conv', input 1 is Const 'c'",
    ),
    "the shape of an input": (
        {"op": "Mul", "inputs": {"1": {"shape": [3]}}},
        "  near: Mul 'm': input 1 is Const 'c' (shape is []), input 0 is Conv2D 'conv'",
    ),
}


@pytest.mark.parametrize(("value", "near"), ANYWHERE.values(), ids=ANYWHERE)
def test_the_near_line_is_of_the_ops_that_were_meant(value: Any, near: str) -> None:
    lines = explain([FEW], msgspec.convert(value, Match)).splitlines()
    assert [line for line in lines if "near: " in line] == [near]


def test_it_looks_at_every_graph_of_a_model() -> None:
    other = graphs.opened(graphdef(node("elu", "Elu", "elu")))
    assert said({"op": "Eluu"}, other) == [
        "looked at 12 ops",
        "op 'Eluu': 0 of them; nearest: Elu",
    ]


def test_it_says_the_same_on_every_run() -> None:
    types = ["Relu", "Relu6", "LeakyRelu", "QuantizedRelu", "ReluGrad", "Relu6Grad", "Selu"]
    other = graphs.opened(graphdef(*(node(op, op, op) for op in types)))
    [_, line] = explain([other], msgspec.convert({"op": "*relu*"}, Match)).splitlines()
    assert line.endswith("nearest: LeakyRelu, QuantizedRelu, Relu, Relu6, Relu6Grad")


NEAR: dict[str, tuple[str, list[str], list[str]]] = {
    "similar": ("conv1", ["conv2", "pool1", "x"], ["conv2"]),
    "another case first": ("Conv", ["conv1", "conv"], ["conv", "conv1"]),
    "in another scope": ("conv", ["a/b/conv", "x"], ["a/b/conv"]),
    "what a glob holds": ("a/*conv*", ["b/my_conv_1", "a/pool"], ["b/my_conv_1"]),
    "at most five": ("n*", [f"n{k}" for k in range(9)], ["n0", "n1", "n2", "n3", "n4"]),
    "nothing": ("zzz", ["a", "b"], []),
    "no names": ("a", [], []),
}


@pytest.mark.parametrize(("text", "legal", "found"), NEAR.values(), ids=NEAR)
def test_the_nearest_names(text: str, legal: list[str], found: list[str]) -> None:
    assert nearest_names(text, legal) == found


def test_among_very_many_names_it_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "MOST_COMPARED", 2)
    legal = ["a", "b", "conv1", "scope/conv"]
    assert nearest_names("conv2", legal) == []
    assert nearest_names("conv", legal) == ["conv1", "scope/conv"]


def test_of_a_ready_pattern_it_says_the_nearest_form_alone() -> None:
    lines = said({"pattern": "@hard_swish"})
    assert lines[2].startswith("of 12 forms, form ")
    assert lines[2].endswith("comes nearest; graphpatch patterns hard_swish")
    assert sum(line.startswith("each by itself: ") for line in lines) == 1
    assert len(lines) < 10


def test_a_type_that_is_written_twice_is_said_to_be_two_ops() -> None:
    rule = {
        "match": {"pattern": "x:_ -> Sigmoid -> Mul; x -> Mul"},
        "patch": {"stop_gradient": True},
    }
    nodes = [
        node("x", "Placeholder"),
        node("s", "Sigmoid", "x"),
        node("m", "Mul", "s", "s"),
        node("other", "Mul", "x", "x"),
    ]
    note = "the pattern writes Mul in several chains, and each is another op; to mean "
    [found] = graphpatch.matches([rule], graphdef(*nodes)).found
    assert [text for text in found.notes if text.startswith(note)]
    assert found.document()["notes"] == list(found.notes)
    notes = graphpatch.apply([rule], graphdef(*nodes)).report["notes"]
    assert [text for text in notes if text.startswith(f"rule 'rule 1': {note}")]
    assert syntax.type_notes("x:_ -> Sigmoid -> m:Mul; x -> m") == []
    assert syntax.type_notes("Conv2D -> Relu -> Conv2D -> Relu") == []


@pytest.mark.parametrize("shape", [[], [2]])
def test_a_constant_without_its_values(shape: list[int]) -> None:
    """The fuzzer's models:20261203:77073: a value that is not there was asked for."""
    broken = scalar("c", 1.0)
    broken.attr["value"].tensor.ClearField("float_val")
    broken.attr["value"].tensor.tensor_content = b"x"
    for size in shape:
        broken.attr["value"].tensor.tensor_shape.dim.add(size=size)
    graph = graphs.opened(graphdef(broken, node("y", "Relu", "c")))
    found = explain([graph], msgspec.convert({"pattern": "Const=1~0.5 -> Mul:1"}, Match))
    found += explain([graph], msgspec.convert({"op": "Const", "value": 3}, Match))
    assert "value is not known: elements of the constant are missing" in found


def test_what_stands_where_a_run_should_start() -> None:
    nodes = node("x", "Placeholder"), node("conv", "Conv2D", "x", "x")
    norm = node("norm", "FusedBatchNormV3", "conv", "x", "x", "x", "x")
    graph = graphs.opened(graphdef(*nodes, norm, node("relu", "Relu", "norm")))
    lines = explain([graph], Match(pattern="Conv2D ->+ Relu")).splitlines()
    assert lines[-1].strip() == (
        "near: Conv2D is Conv2D 'conv'; Relu is missing: FusedBatchNormV3 'norm' is not Relu"
    )


def test_a_scope_within_another_is_named() -> None:
    names = ["tower/inner/relu", "tower/inner/mul", "tower/inners"]
    assert elsewhere("inner", names) == "; 'inner' is a scope, and '**/inner/**' matches 2"
