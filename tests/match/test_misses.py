"""What is said of a match that found nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import graphpatch
from graphpatch.match import misses, syntax
from graphpatch.match.misses import elsewhere, explain, nearest_names
from graphpatch.match.spec import Match
from tests import graphs
from tests.graphs import function, graph_of, graphdef, listed, node
from tests.patches.one_op import net


def said(value: Any, *more: Any) -> list[str]:
    found = explain([graphs.opened(graphs.sample()), *more], msgspec.convert(value, Match))
    return [line.strip() for line in found.splitlines()]


SAID: list[tuple[Any, ...]] = [
    ({"op": "Xyz"}, "op 'Xyz': 0 of them; there are: Const, Identity, Mul, NoOp, Placeholder, ..."),
    ({"name": "relu6"}, "name 'relu6': 0 of them; '**/relu6' matches 1"),
    ({"name": "tower"}, "name 'tower': 0 of them; 'tower/**' matches 1"),
    ({"upstream_of": "relu:1"}, "upstream_of 'relu:1': 0 of them",
     "no tensor is called 'relu:1': Relu 'relu' has 1 output, counted from 0"),
    ({"name": "relu:1"}, "name 'relu:1': 0 of them; 'relu:1' is a tensor, and its op is 'relu'"),
    ({"name": "towr/*relu*"}, "name 'towr/*relu*': 0 of them; 'tower/*relu*' matches 1"),
    ({"op": ["Rleu", "Mull"], "name": "x"},
     "op 'Rleu', 'Mull': 0 of them; nearest: Relu, Relu6, Mul", "name 'x': 1 of them"),
    ({"body": "mian"}, "body 'mian': 0 of them; nearest: main"),
    ({"op": "Relu", "name": "tower/**", "attr": {"T": "float32"}, "dtype": "int32"},
     "op 'Relu': 2 of them", "name 'tower/**': 1 of them", "attr: 7 of them", "dtype: 0 of them",
     "near: Relu 'relu': name is 'relu'; dtype is float32",
     "near: Relu 'relu' in function f: name is 'relu'; dtype is float32"),
    ({"op": "Mul", "attr": {"T": {"in": ["int32", "half"]}, "_class": False}},
     "op 'Mul': 1 of them", "attr: 0 of them", "near: Mul 'Multiply': T is 'float32'"),
    ({"op": "Const", "value": {">": 5}}, "op 'Const': 1 of them", "value: 0 of them",
     "near: Const 'w': value is [2.369428e-38]"),
    ({"op": "Relu", "body": "main", "inputs": {"0": {"op": "Conv2D"}}}, "body 'main': 10 of them",
     "op 'Relu': 2 of them", "inputs: 0 of them", "near: Relu 'relu': input 0 is Mul 'Multiply'",
     "near: Relu 'relu' in function f: it is in f; input 0 is a"),
    ({"name": "rel*6"}, "name 'rel*6': 0 of them; '**/rel*6' matches 1"),
    ({"name": "Tower/*6"}, "name 'Tower/*6': 0 of them; 'tower/*6' matches 1"),
    ({"name": "**/RELU6"}, "name '**/RELU6': 0 of them; nearest: tower/relu6"),
    ({"name": ".*elu6?"},
     "name '.*elu6?': 0 of them; in rules, name_regex takes expressions: '.*elu6?' matches 3"),
    ({"name": "tower/relu6:0"},
     "name 'tower/relu6:0': 0 of them; 'tower/relu6:0' is a tensor, and its op is 'tower/relu6'"),
    ({"name_regex": "elu"},
     "name_regex 'elu': 0 of them; the whole name is matched: '.*(elu).*' matches 3"),
    ({"op": "Mul", "name": "tower/**"}, "op 'Mul': 1 of them", "name 'tower/**': 1 of them",
     "all of these together: 0 of them"),
    ({"attr": {"stride": [1, 1]}}, "attr: 0 of them; it has no attr 'stride' (11)"),
    ({"attr": {"T": "half"}}, "attr: 0 of them; T is 'float32' (7), it has no attr 'T' (4)"),
    ({"dtype": "int8"}, "dtype: 0 of them; dtype is float32 (10), dtype is not known (1)"),
    ({"value": 7}, "value: 0 of them; value is [2.369428e-38] (1)"),
    ({"any": [{"op": "Gone"}], "not": {"op": "Relu"}}, "any: 0 of them", "any[0]: 0 of them",
     "not: 9 of them"),
    ({"op": "Relu", "not": {"name": "**"}}, "op 'Relu': 2 of them", "not: 0 of them"),
]  # fmt: skip


def test_a_graph_without_ops_has_no_nearest_ones() -> None:
    found = explain([graphs.opened(graphdef())], Match(op="Relu"))
    assert [line.strip() for line in found.splitlines()] == [
        "looked at 0 ops",
        "op 'Relu': 0 of them",
    ]


@pytest.mark.parametrize("row", SAID, ids=lambda row: str(row[0]))
def test_it_says_why_nothing_was_found(row: tuple[Any, ...]) -> None:
    assert said(row[0]) == ["looked at 11 ops", *row[1:]]


# Of each key that has a value: what the nearest op has instead.
WAY = graph_of(
    *net("""x:Placeholder z:Placeholder a:Relu(x) b:Relu(a) c:Tanh(b) apart:Relu(z) end:Exp(apart)
    after:Neg(z, ^c)"""),
    functions=[function("f", ["arg"], net("in_f:Selu(arg)"), {"y": "in_f:activations:0"})],
)
NEAREST: list[tuple[Any, ...]] = [
    ({"name": "r*", "op": "Tanh", "dtype": "float32"}, "Tanh 'c': name is 'c'"),
    ({"op": "Relu", "nth": 7}, "Relu 'a': it is number 0 (from 0) of 3 in graph order",
     "Relu 'b': it is number 2 (from 0) of 3 in graph order",
     "Relu 'apart': it is number 1 (from 0) of 3 in graph order"),
    ({"op": "Relu", "name": "a*", "nth": {"at": 2, "by": "name"}},
     "Relu 'a': it is number 0 (from 0) of 2 in name order",
     "Relu 'apart': it is number 1 (from 0) of 2 in name order",
     "Relu 'b': name is 'b'; it is none of the 2 that nth counts"),
    ({"op": "Relu", "name": "ap*", "upstream_of": "c"},
     "Relu 'apart': c is not computed from it", "Relu 'a': name is 'a'",
     "Relu 'b': name is 'b'"),
    ({"op": "Tanh", "upstream_of": "after"}, "Tanh 'c': after is not computed from it"),
    ({"op": "Relu", "name": "a", "upstream_of": {"of": "c", "within": {"op": "Tanh"}}},
     "Relu 'a': `within`, `stop_at` or `ends` leaves it out",
     "Relu 'b': name is 'b'; `within`, `stop_at` or `ends` leaves it out",
     "Relu 'apart': name is 'apart'; c is not computed from it"),
    ({"op": "Exp", "downstream_of": "a"},
     "Exp 'end': it is not computed from a"),
    ({"op": "Neg", "downstream_of": "b"},
     "Neg 'after': it is not computed from b"),
    ({"op": "Tanh", "downstream_of": {"of": "x", "stop_at": {"name": "a"}}},
     "Tanh 'c': `within`, `stop_at` or `ends` leaves it out"),
    ({"op": "Exp", "between": {"from": "x", "to": "c"}},
     "Exp 'end': it is not computed from x, and c is not computed from it"),
    ({"op": "Tanh", "between": {"from": "x", "to": "c", "ends": False}},
     "Tanh 'c': `within`, `stop_at` or `ends` leaves it out"),
]  # fmt: skip


@pytest.mark.parametrize("row", NEAREST, ids=lambda row: str(row[0]))
def test_a_miss_tells_what_the_nearest_ops_have_instead(row: tuple[Any, ...]) -> None:
    lines = explain([WAY], msgspec.convert(row[0], Match)).splitlines()
    near = [line.removeprefix("  near: ") for line in lines if line.startswith("  near: ")]
    assert near == [*row[1:]]


FEW = graph_of(
    listed("c", 2.0), *net("x:Placeholder conv:Conv2D(x, c, padding=SAME) m:Mul(conv, c)")
)
NEAR_LINE: list[tuple[Any, str]] = [
    ({"pattern": "c:Const=3 -> m:Mul"}, "    near: Const 'c': value is 2"),
    ({"pattern": {"nodes": {"a": {"op": "Conv2D", "attr": {"padding": "VALID"}}}}},
     "    near: Conv2D 'conv': padding is 'SAME'"),
    ({"pattern": {"nodes": {"a": {"op": "Conv2D"}}, "closed": ["a"]}},
     "    near: a is Conv2D 'conv'; Conv2D 'conv' ('a') is read outside, by Mul 'm'"),
    ({"pattern": "c:Conv2D -> m:Mul; d:Conv2D -> m"},
     "    near: c is Conv2D 'conv', m is Mul 'm'; d is missing: Const 'c' is not Conv2D; Conv2D"
     " 'conv' is 'c' already"),
    ({"pattern": "x:_ -> c:Conv2D:0; x -> m:Mul"},
     "    near: c is Conv2D 'conv'; m is missing: Conv2D 'conv' is not Mul"),
    ({"pattern": "Conv2D", "attr": {"padding": "VALID"}},
     "  near: Conv2D 'conv': padding is 'SAME'"),
    ({"pattern": "Conv2D", "name": "nope/*"}, "  near: Conv2D 'conv': name is 'conv'"),
    ({"op": "Conv2D", "attr": {"pading": "SAME"}},
     "  near: Conv2D 'conv': it has no attr 'pading'; nearest: padding"),
    ({"op": "Placeholder", "attr": {"shape": [1]}},
     "  near: Placeholder 'x': shape is None (the default)"),
    ({"op": "Mul", "inputs": {"5": {"op": "Relu"}}},
     "  near: Mul 'm': there is no input 5, input 0 is Conv2D 'conv', input 1 is Const 'c'"),
    ({"op": "Mul", "inputs": {"1": {"shape": [3]}}},
     "  near: Mul 'm': input 1 is Const 'c' (shape is []), input 0 is Conv2D 'conv'"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "near"), NEAR_LINE, ids=str)
def test_the_near_line_is_of_the_ops_that_were_meant(value: Any, near: str) -> None:
    lines = explain([FEW], msgspec.convert(value, Match)).splitlines()
    assert [line for line in lines if "near: " in line] == [near]


def test_it_looks_at_every_graph_and_says_the_same_on_every_run() -> None:
    types = "Relu Relu6 LeakyRelu QuantizedRelu ReluGrad Relu6Grad Selu".split()
    other = graph_of(*(node(op, op, op) for op in types))
    assert said({"op": "*relu*"}, other) == [
        "looked at 18 ops",
        "op '*relu*': 0 of them; nearest: LeakyRelu, QuantizedRelu, Relu, Relu6, Relu6Grad",
    ]


def test_the_nearest_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among very many only those that contain it are told."""
    assert nearest_names("Conv", ["conv1", "conv"]) == ["conv", "conv1"]
    assert nearest_names("a/*conv*", ["b/my_conv_1", "a/pool"]) == ["b/my_conv_1"]
    monkeypatch.setattr(misses, "MOST_COMPARED", 2)
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
    match = {"pattern": "x:_ -> Sigmoid -> Mul; x -> Mul"}
    rule = {"match": match, "patch": {"stop_gradient": True}}
    nodes = net("x:Placeholder s:Sigmoid(x) m:Mul(s, s) other:Mul(x, x)")
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
    broken = listed("c", shape=shape)
    broken.attr["value"].tensor.tensor_content = b"x"
    graph = graphs.opened(graphdef(broken, node("y", "Relu", "c")))
    found = explain([graph], msgspec.convert({"pattern": "Const=1~0.5 -> Mul:1"}, Match))
    found += explain([graph], msgspec.convert({"op": "Const", "value": 3}, Match))
    assert "value is not known: elements of the constant are missing" in found


def test_what_stands_where_a_run_should_start() -> None:
    norm = "norm:FusedBatchNormV3(conv, x, x, x, x)"
    graph = graph_of(*net(f"x:Placeholder conv:Conv2D(x, x) {norm} relu:Relu(norm)"))
    lines = explain([graph], Match(pattern="Conv2D ->+ Relu")).splitlines()
    assert lines[-1].strip() == (
        "near: Conv2D is Conv2D 'conv'; Relu is missing: FusedBatchNormV3 'norm' is not Relu"
    )


def test_a_scope_within_another_is_named() -> None:
    names = ["tower/inner/relu", "tower/inner/mul", "tower/inners"]
    assert elsewhere("inner", names) == "; '**/inner/**' matches 2"
    assert elsewhere("**/inn?r", names) == "; '**/inn?r/**' matches 2"
