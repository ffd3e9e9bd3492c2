"""Where a pattern is easily matched wrongly: each case with what it means, and what not."""

from __future__ import annotations

from typing import Any

import pytest

from graphpatch.protos import NodeDef
from tests import graphs
from tests.graphs import node
from tests.match.pattern.searched import bindings, body, found

X = node("x", "Placeholder")


def scalar(name: str, value: float, dtype: str = "float32") -> NodeDef:
    made = node(name, "Const", dtype=dtype)
    made.attr["value"].tensor.dtype = graphs.attr(dtype).type
    field = {"float32": "float_val", "int32": "int_val"}[dtype]
    getattr(made.attr["value"].tensor, field).append(value)  # type: ignore[arg-type]
    return made


SQUARE = [X, node("relu", "Relu", "x"), node("mul", "Mul", "relu", "relu")]
PRODUCT = [X, node("a", "Relu", "x"), node("b", "Relu", "x"), node("mul", "Mul", "a", "b")]
DIAMOND = [
    X,
    node("split", "Relu", "x"),
    node("left", "Sigmoid", "split"),
    node("right", "Tanh", "split"),
    node("join", "Mul", "right", "left"),
    node("other", "Tanh", "x"),
    node("apart", "Mul", "left", "other"),
]
CHAIN = [
    X,
    node("conv", "Conv2D", "x", "x"),
    node("bias", "BiasAdd", "conv", "x"),
    node("relu", "Relu", "bias"),
    node("conv_1", "Conv2D", "relu", "x"),
    node("relu_1", "Relu", "conv_1"),
    node("tanh", "Tanh", "relu_1"),
]
RUNS = [
    X,
    node("conv", "Conv2D", "x", "x"),
    node("relu", "Relu", "conv"),
    node("tanh", "Tanh", "relu"),
    node("relu_1", "Relu", "tanh"),
    node("out", "Softmax", "relu_1"),
    node("conv_1", "Conv2D", "x", "x"),
    node("out_1", "Softmax", "conv_1"),
]
CONTROL = [X, node("a", "Relu", "x"), node("b", "Tanh", "x", "^a"), node("c", "Tanh", "a")]
MANY = [
    X,
    *(node(f"r{k}", "Relu", "x") for k in range(12)),
    node("sum", "AddN", *(f"r{k}" for k in range(12)), N=12),
    node("cat", "ConcatV2", *(f"r{k}" for k in range(9)), "x", N=9),
]
SHARED = [
    X,
    node("sigmoid", "Sigmoid", "x"),
    node("swish", "Mul", "x", "sigmoid"),
    node("y", "Placeholder"),
    node("gate", "Mul", "y", "sigmoid"),
]
OUTPUTS = [
    X,
    node("parts", "Split", "x", "x", num_split=3),
    node("a", "Relu", "parts"),
    node("b", "Relu", "parts:1"),
    node("c", "Tanh", "parts:2"),
    node("d", "Relu", "parts:0"),
]
HALVES = [
    X,
    scalar("half", 0.5),
    scalar("third", 0.3333333),
    scalar("two", 2, "int32"),
    node("a", "Mul", "x", "half"),
    node("b", "Mul", "third", "x"),
    node("c", "Mul", "x", "two"),
]
V = scalar("v", 1)
V.attr["value"].tensor.tensor_shape.dim.add(size=2)
V.attr["value"].tensor.float_val.append(0)
VECTORS = [V, node("m", "Mul", "x", "v")]
FOLLOWED = [
    X,
    node("a", "Conv2D", "x", "x"),
    node("relu", "Relu", "a"),
    node("b", "Conv2D", "x", "x"),
    node("tanh", "Tanh", "b"),
    node("c", "Conv2D", "x", "x"),
]

CASES: dict[str, tuple[list[NodeDef], Any, list[str]]] = {
    # One op read twice by the same op.
    "Mul(x, x), by both slots": (SQUARE, "r:Relu -> m:Mul:0; r -> m:1", ["relu mul"]),
    "Mul(x, x), by any two slots": (SQUARE, "r:Relu -> m:Mul; r -> m", ["relu mul"]),
    "Mul(x, x) has no third link": (SQUARE, "r:Relu -> m:Mul; r -> m; r -> m", []),
    "Mul(x, x) is no product of two": (SQUARE, "a:Relu -> m:Mul; b:Relu -> m", []),
    # Two ops of one type are not one op.
    "relu(a) * relu(b) is no square": (PRODUCT, "r:Relu -> m:Mul; r -> m", []),
    "relu(a) * relu(b), once": (PRODUCT, "a:Relu -> m:Mul; b:Relu -> m", ["a mul b"]),
    "relu(a) * relu(b), by its slots": (PRODUCT, "a:Relu -> m:Mul:1; b:Relu -> m:0", ["b mul a"]),
    "both of the same x": (PRODUCT, "x:_ -> a:Relu -> m:Mul; x -> b:Relu -> m", ["a mul b"]),
    # Diamonds: a capture that is named again is the same op.
    "a diamond": (DIAMOND, "s:Relu -> Sigmoid -> m:Mul; s -> Tanh -> m", ["split left join right"]),
    "what looks like one and is none": (DIAMOND,
     "s:Placeholder -> Relu -> Sigmoid -> m:Mul; s -> Tanh -> m", ["x split left apart other"]),
    "commutative where no slot is given": (DIAMOND, "Sigmoid -> Mul", ["left join", "left apart"]),
    "not where one is": (DIAMOND, "Sigmoid -> Mul:0", ["left apart"]),
    "a wildcard in the middle": (DIAMOND, "Relu -> * -> Mul",
     ["split left join", "split left apart", "split right join"]),
    "a wildcard alone": (SQUARE, "*", ["x", "relu", "mul"]),
    "a glob": (CHAIN, "*2D -> B*", ["conv bias"]),
    # Control edges are no data edges.
    "data edges alone": (CONTROL, "Relu -> Tanh", ["a c"]),
    "control edges where asked for": (CONTROL, "Relu ^-> Tanh", ["a b"]),
    # Many inputs, few of them named.
    "any of twelve": (MANY, "Relu -> AddN", [f"r{k} sum" for k in range(12)]),
    "the last of a list": (MANY, "Relu -> ConcatV2:8", ["r8 cat"]),
    "what is behind a list": (MANY, "Placeholder -> ConcatV2:9", ["x cat"]),
    # Shared captures.
    "two names of tensors, each read by its own input": (HALVES,
     "a:_ -> m:Mul; b:_ -> m; !Placeholder -> m:0", ["b"]),
    "two names of one tensor, which an op reads once": (SHARED,
     "a:_ -> s:Sigmoid; b:_ -> s; a -> m:Mul", []),
    "swish reads its x twice": (SHARED, "x:_ -> s:Sigmoid -> m:Mul; x -> m", ["sigmoid swish"]),
    "a gate does not": (SHARED, "Sigmoid -> Mul", ["sigmoid swish", "sigmoid gate"]),
    "x as an op of the match": (SHARED, "x:* -> Sigmoid -> m:Mul; x -> m", ["x sigmoid swish"]),
    # Optional ops, before and after.
    "optional in the middle": (CHAIN, "Conv2D -> BiasAdd? -> Relu",
     ["conv bias relu", "conv_1 relu_1"]),
    "optional before": (CHAIN, "BiasAdd? -> Relu", ["bias relu", "relu_1"]),
    "optional after": (CHAIN, "BiasAdd? -> Relu -> Tanh?", ["bias relu", "relu_1 tanh"]),
    # Without the optional op it is a match for those that read past it.
    "optional, and read beside": ([*CHAIN, node("exp", "Exp", "relu_1")], "Relu -> Tanh?",
     ["relu", "relu_1", "relu_1 tanh"]),
    "optional, and its shape is read beside": ([*CHAIN, node("shape", "Shape", "relu_1")],
     "Relu -> Tanh?", ["relu", "relu_1 tanh"]),
    "optional, in the middle, with one end": ([*CHAIN, node("sum", "AddV2", "conv_1", "relu_1"),
     node("exp", "Exp", "sum")], "Conv2D -> Relu? -> AddV2", ["conv_1 relu_1 sum"]),
    "alternatives": (CHAIN, "Relu|BiasAdd -> Conv2D|Relu", ["bias relu", "relu conv_1"]),
    # Runs.
    "a run is all of it": (RUNS, "Conv2D ->+ Relu|Tanh -> Softmax",
     ["conv (relu tanh relu_1) out"]),
    "a run that nothing follows goes to its end": (RUNS, "Conv2D ->+ Relu|Tanh",
     ["conv (relu tanh relu_1)"]),
    "a run of one": (CHAIN, "Conv2D ->+ BiasAdd -> Relu", ["conv bias relu"]),
    "no run of none": (CHAIN, "Conv2D ->+ Elu -> Relu", []),
    # Outputs.
    "one of several outputs": (OUTPUTS, "Split[1] -> Relu", ["parts b"]),
    "output 0, however spelled": (OUTPUTS, "Split[0] -> Relu", ["parts a", "parts d"]),
    "several outputs": (OUTPUTS, "s:Split[1] -> Relu; s[2] -> Tanh", ["parts b c"]),
    "any output": (OUTPUTS, "Split -> Relu", ["parts a", "parts b", "parts d"]),
    # Constants.
    "a constant": (HALVES, "Const=0.5 -> Mul", ["half a"]),
    "within a tolerance": (HALVES, "Const=0.33~0.01 -> Mul", ["third b"]),
    "just out of it": (HALVES, "Const=0.33~0.001 -> Mul", []),
    "between bounds": (HALVES, "Const>=0.5<1 -> Mul", ["half a"]),
    "a list": ([X, *VECTORS], "Const=[1, 0] -> Mul", ["v m"]),
    "a list within a tolerance": ([X, *VECTORS], "c:Const=[1.1,0]~0.2 -> Mul", ["v m"]),
    "a list of lists": ([X, *VECTORS], "Const=[[1, 0]] -> Mul", []),
    # What must not be there.
    "not followed by": (FOLLOWED, "c:Conv2D; c -> !Relu", ["b", "c"]),
    "not followed by any": (FOLLOWED, "c:Conv2D -> !*", ["c"]),
    "not fed by": (SHARED, "m:Mul; y:Placeholder -> m; !Relu -> m", ["swish x", "gate y"]),
    "not beside": (SHARED, "s:Sigmoid -> m:Mul; !p:Placeholder -> s; p -> m", ["sigmoid gate"]),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "pattern", "wanted"), CASES.values(), ids=CASES)
def test_a_pattern_matches_this_and_nothing_else(
    nodes: list[NodeDef], pattern: Any, wanted: list[str]
) -> None:
    assert found(body(*nodes), pattern) == wanted


BACKTRACKING = [
    X,
    node("a", "Relu", "x"),
    node("b", "Relu", "x"),
    node("a_tanh", "Tanh", "a"),
    node("b_exp", "Exp", "b"),
    node("sum", "AddV2", "a", "b"),
    node("b_tanh", "Tanh", "b"),
]


def test_the_first_op_that_fits_may_be_the_wrong_one() -> None:
    """`p` could be a or b; with `q` and `t` around it, it is a alone."""
    pattern = "p:Relu -> s:AddV2; q:Relu -> s; p -> t:Tanh; q -> Exp"
    assert found(body(*BACKTRACKING), pattern) == ["a sum b a_tanh b_exp"]


def test_alternatives_that_need_backtracking() -> None:
    """Each of three inputs can be either type, and only one assignment gives each its own."""
    nodes = [
        X,
        node("r", "Relu", "x"),
        node("t", "Tanh", "x"),
        node("e", "Exp", "x"),
        node("sum", "AddN", "r", "t", "e", N=3),
    ]
    pattern = "Relu|Tanh -> s:AddN; Tanh|Exp -> s; Relu|Exp -> s; p:Tanh -> s"
    assert found(body(*nodes), pattern) == []
    assert found(body(*nodes), "Relu|Tanh|Exp -> s:AddN; Relu|Tanh -> s; p:Relu -> s") == [
        "e sum t r"
    ]


def test_of_many_ways_to_bind_equal_ops_there_is_one() -> None:
    """Twelve equal inputs, of which eight are asked for: 495 sets, each of them once."""
    chains = "; ".join(f"r{k}:Relu -> {'s:AddN' if not k else 's'}" for k in range(8))
    matched = bindings(body(*MANY), chains)
    assert len(matched) == len({one.indices for one in matched}) == 495
    assert all(len(one.indices) == 9 for one in matched)


def test_parallel_edges_each_need_their_own() -> None:
    nodes = [X, node("r", "Relu", "x"), node("s", "AddN", "r", "x", "r", "r", N=4)]
    for count in range(1, 6):
        text = "; ".join(["r:Relu -> s:AddN", *["r -> s"] * (count - 1)])
        assert found(body(*nodes), text) == (["r s"] if count <= 3 else []), text
    assert found(body(*nodes), "r:Relu -> s:AddN:2; r -> s:0; r -> s") == ["r s"]
    assert found(body(*nodes), "r:Relu -> s:AddN:1") == []
    parts = node("p", "Split", "x", "x", num_split=2)
    pattern = "p:Split[1] -> s:AddN; p[1] -> s; p[0] -> s"
    for reads, wanted in (("p", "p", "p:1"), []), (("p:1", "p", "p:1"), ["p s"]):
        added = node("s", "AddN", *reads, N=3)
        assert found(body(X, parts, added), pattern) == wanted


# Interior ops that are used outside.

USED = [
    X,
    scalar("half", 0.5),
    node("conv", "Conv2D", "x", "x"),
    node("bias", "BiasAdd", "conv", "half"),
    node("relu", "Relu", "bias"),
    node("loss", "L2Loss", "conv"),
    node("conv_1", "Conv2D", "relu", "x"),
    node("bias_1", "BiasAdd", "conv_1", "half"),
    node("relu_1", "Relu", "bias_1"),
    node("out", "Softmax", "relu_1", "^bias_1"),
]
NODES = {"c": {"op": "Conv2D"}, "b": {"op": "BiasAdd"}, "r": {"op": "Relu"}}
EDGES = [["c", "b"], ["b", "r"]]
CLOSED: dict[str, tuple[Any, list[str]]] = {
    "open": (False, ["conv bias relu", "conv_1 bias_1 relu_1"]),
    "closed": (True, ["conv_1 bias_1 relu_1"]),
    "this one": (["c"], ["conv_1 bias_1 relu_1"]),
    "another": (["b"], ["conv bias relu", "conv_1 bias_1 relu_1"]),
    "the last, which is read": (["r"], []),
}


@pytest.mark.parametrize("tanh_first", [True, False])
@pytest.mark.parametrize("inputs", [("t", "v"), ("v", "t")])
def test_a_tensor_from_outside_is_no_op_of_the_match(tanh_first: bool, inputs: Any) -> None:
    """Whichever stands first in the file, and by whichever slot it is read."""
    tanh, other = node("t", "Tanh", "x"), node("v", "Relu", "x")
    some = [tanh, other] if tanh_first else [other, tanh]
    nodes = [X, *some, node("m", "AddV2", *inputs)]
    assert [one.tensors for one in bindings(body(*nodes), "y:_ -> m:AddV2; t:Tanh -> m")] == [
        {"y": "v"}
    ]
    twice = [X, tanh, node("m", "AddV2", "t", "t")]
    assert not bindings(body(*twice), "y:_ -> m:AddV2; t:Tanh -> m")


@pytest.mark.parametrize(("closed", "wanted"), CLOSED.values(), ids=CLOSED)
def test_what_is_inside_must_not_be_used_outside(closed: Any, wanted: list[str]) -> None:
    pattern = {"nodes": NODES, "edges": EDGES, "closed": closed}
    assert found(body(*USED), pattern) == wanted


def test_a_constant_inside_may_be_shared() -> None:
    nodes = {"k": {"op": "Const"}, "b": {"op": "BiasAdd"}, "r": {"op": "Relu"}}
    edges = [["k", "b"], ["b", "r"]]
    pattern: dict[str, Any] = {"nodes": nodes, "edges": edges, "closed": True}
    assert found(body(*USED), pattern) == ["half bias relu", "half bias_1 relu_1"]
    assert found(body(*USED), {**pattern, "closed": ["k"]}) == []


def test_what_a_function_returns_is_used_outside() -> None:
    inner = [node("conv", "Conv2D", "a", "a"), node("bias", "BiasAdd", "conv:output:0", "a")]
    nodes = {"c": {"op": "Conv2D"}, "b": {"op": "BiasAdd"}}
    pattern = {"nodes": nodes, "edges": [["c", "b"]], "closed": True}
    for returned, wanted in ("bias", ["conv bias"]), ("conv", []):
        function = graphs.function("f", ["a"], inner, {"y": f"{returned}:output:0"})
        opened = graphs.opened(graphs.graphdef(functions=[function]))
        assert found(opened.functions["f"], pattern) == wanted
