"""Where a pattern is easily matched wrongly: each case with what it means, and what not."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

import graphpatch
from graphpatch.errors import MatchError
from graphpatch.match import matcher, variant
from graphpatch.match.matcher import Finder
from graphpatch.match.select import find
from graphpatch.match.spec import Edge, Link, Match, Pattern
from graphpatch.protos import NodeDef
from tests import graphs
from tests.graphs import listed
from tests.match.pattern.bodies import bindings, body, found
from tests.patches.one_op import net


def scalars(**values: float) -> list[NodeDef]:
    return [listed(name, value) for name, value in values.items()]


SQUARE = net("x:Placeholder relu:Relu(x) mul:Mul(relu, relu)")
PRODUCT = net("x:Placeholder a:Relu(x) b:Relu(x) mul:Mul(a, b)")
DIAMOND = net("""x:Placeholder split:Relu(x) left:Sigmoid(split) right:Tanh(split)
    join:Mul(right, left) other:Tanh(x) apart:Mul(left, other)""")
CHAIN = net("""x:Placeholder conv:Conv2D(x, x) bias:BiasAdd(conv, x) relu:Relu(bias)
    conv_1:Conv2D(relu, x) relu_1:Relu(conv_1) tanh:Tanh(relu_1)""")
RUNS = net("""x:Placeholder conv:Conv2D(x, x) relu:Relu(conv) tanh:Tanh(relu) relu_1:Relu(tanh)
    out:Softmax(relu_1) conv_1:Conv2D(x, x) out_1:Softmax(conv_1)""")
CONTROL = net("x:Placeholder a:Relu(x) b:Tanh(x, ^a) c:Tanh(a)")
TWELVE = " ".join(f"r{k}:Relu(x)" for k in range(12))
READ = ", ".join(f"r{k}" for k in range(12))
MANY = net(f"""x:Placeholder {TWELVE} sum:AddN({READ}, N=12)
    cat:ConcatV2({READ.partition(", r9")[0]}, x, N=9)""")
SHARED = net(
    "x:Placeholder sigmoid:Sigmoid(x) swish:Mul(x, sigmoid) y:Placeholder gate:Mul(y, sigmoid)"
)
OUTPUTS = net("""x:Placeholder parts:Split(x, x, num_split=3) a:Relu(parts) b:Relu(parts:1)
    c:Tanh(parts:2) d:Relu(parts:0)""")
HALVES = [*scalars(half=0.5, third=0.3333333), listed("two", 2, dtype="int32"),
          *net("x:Placeholder a:Mul(x, half) b:Mul(third, x) c:Mul(x, two)")]  # fmt: skip
VECTORS = [listed("v", 1, 0, shape=[2]), *net("m:Mul(x, v)")]
FOLLOWED = net(
    "x:Placeholder a:Conv2D(x, x) relu:Relu(a) b:Conv2D(x, x) tanh:Tanh(b) c:Conv2D(x, x)"
)
LOOP = net("x:Placeholder merge:Merge(x, next, N=2) relu:Relu(merge) next:NextIteration(relu)")
THREE = net("x:Placeholder r:Relu(x) t:Tanh(x) e:Exp(x) sum:AddN(r, t, e, N=3)")

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
    "optional, and read beside": ([*CHAIN, *net("exp:Exp(relu_1)")], "Relu -> Tanh?",
     ["relu", "relu_1", "relu_1 tanh"]),
    "optional, and its shape is read beside": ([*CHAIN, *net("shape:Shape(relu_1)")],
     "Relu -> Tanh?", ["relu", "relu_1 tanh"]),
    "optional, in the middle, with one end": (
     [*CHAIN, *net("sum:AddV2(conv_1, relu_1) exp:Exp(sum)")], "Conv2D -> Relu? -> AddV2",
     ["conv_1 relu_1 sum"]),
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
    "a list": (VECTORS, "Const=[1, 0] -> Mul", ["v m"]),
    "a list within a tolerance": (VECTORS, "c:Const=[1.1,0]~0.2 -> Mul", ["v m"]),
    "a list of lists": (VECTORS, "Const=[[1, 0]] -> Mul", []),
    # What must not be there.
    "not followed by": (FOLLOWED, "c:Conv2D; c -> !Relu", ["b", "c"]),
    "not followed by any": (FOLLOWED, "c:Conv2D -> !*", ["c"]),
    "not fed by": (SHARED, "m:Mul; y:Placeholder -> m; !Relu -> m", ["swish x", "gate y"]),
    "not beside": (SHARED, "s:Sigmoid -> m:Mul; !p:Placeholder -> s; p -> m", ["sigmoid gate"]),
    # Loops of the graph are walked once.
    "a loop": (LOOP, "Merge -> Relu -> NextIteration", ["merge relu next"]),
    "a loop from elsewhere": (LOOP, "NextIteration -> Merge -> Relu", ["next merge relu"]),
    "a run in a loop": (LOOP, "Merge ->+ Relu|NextIteration", ["merge (relu next)"]),
    # `p` could be a or b; with `q` and `t` around it, it is a alone.
    "the first op that fits is the wrong one": (
     net("""x:Placeholder a:Relu(x) b:Relu(x) a_tanh:Tanh(a) b_exp:Exp(b) sum:AddV2(a, b)
         b_tanh:Tanh(b)"""), "p:Relu -> s:AddV2; q:Relu -> s; p -> t:Tanh; q -> Exp",
     ["a sum b a_tanh b_exp"]),
    # Each of three inputs can be either type, and only one assignment gives each its own.
    "alternatives, of which none suits all": (THREE,
     "Relu|Tanh -> s:AddN; Tanh|Exp -> s; Relu|Exp -> s; p:Tanh -> s", []),
    "alternatives that need backtracking": (THREE,
     "Relu|Tanh|Exp -> s:AddN; Relu|Tanh -> s; p:Relu -> s", ["e sum t r"]),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "pattern", "wanted"), CASES.values(), ids=CASES)
def test_a_pattern_matches_this_and_nothing_else(
    nodes: list[NodeDef], pattern: Any, wanted: list[str]
) -> None:
    assert found(body(*nodes), pattern) == wanted


def test_of_many_ways_to_bind_equal_ops_there_is_one() -> None:
    """Twelve equal inputs, of which eight are asked for: 495 sets, each of them once."""
    chains = "; ".join(f"r{k}:Relu -> {'s:AddN' if not k else 's'}" for k in range(8))
    matched = bindings(body(*MANY), chains)
    assert len(matched) == len({one.indices for one in matched}) == 495
    assert all(len(one.indices) == 9 for one in matched)


def test_each_has_a_choice_of_its_own_or_not() -> None:
    """Slots of edges into one op are nested or apart: an input, an output's, all of an op's."""
    rng, nested = random.Random(0), [[0], [1], [0, 1], [2], [3, 4], [0, 1, 2], [5], [3, 4, 5], []]
    for _ in range(300):
        choices = [(rng.choice(nested), rng.randrange(1, 3)) for _ in range(rng.randrange(5))]
        every = [slots for slots, count in choices for _ in range(count)]
        each = any(len(set(chosen)) == len(every) for chosen in itertools.product(*every))
        assert matcher.are_apart(choices) == each, choices


def test_two_thousand_equal_edges_are_decided_at_once() -> None:
    """They are one edge that counts as so many."""
    reads = body(*net(f"x:Placeholder r:Relu(x) s:AddN({', '.join(['r'] * 2_000)}, N=2000)"))
    both = {"r": Match(op="Relu"), "s": Match(op="AddN")}
    for count, wanted in (1_999, 1), (2_000, 0):
        edges = (Edge("r", "s", Link(input=7)), *[Edge("r", "s")] * count)
        finder = Finder(Pattern(nodes=both, edges=edges))
        assert len(finder.matches(reads)) == wanted
        assert [edge.times for edge in finder.variants[0].edges] == [1, count]


def test_parallel_edges_each_need_their_own() -> None:
    nodes = net("x:Placeholder r:Relu(x) s:AddN(r, x, r, r, N=4)")
    for count in range(1, 6):
        text = "; ".join(["r:Relu -> s:AddN", *["r -> s"] * (count - 1)])
        assert found(body(*nodes), text) == (["r s"] if count <= 3 else []), text
    assert found(body(*nodes), "r:Relu -> s:AddN:2; r -> s:0; r -> s") == ["r s"]
    assert found(body(*nodes), "r:Relu -> s:AddN:1") == []
    pattern = "p:Split[1] -> s:AddN; p[1] -> s; p[0] -> s"
    for reads, wanted in ("p, p, p:1", []), ("p:1, p, p:1", ["p s"]):
        nodes = net(f"x:Placeholder p:Split(x, x, num_split=2) s:AddN({reads}, N=3)")
        assert found(body(*nodes), pattern) == wanted


# Interior ops that are used outside.

USED = [
    *scalars(half=0.5),
    *net("""x:Placeholder conv:Conv2D(x, x) bias:BiasAdd(conv, half) relu:Relu(bias)
    loss:L2Loss(conv) conv_1:Conv2D(relu, x) bias_1:BiasAdd(conv_1, half) relu_1:Relu(bias_1)
    out:Softmax(relu_1, ^bias_1)"""),
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
@pytest.mark.parametrize("inputs", ["t, v", "v, t"])
def test_a_tensor_from_outside_is_no_op_of_the_match(tanh_first: bool, inputs: str) -> None:
    """Whichever stands first in the file, and by whichever slot it is read."""
    some = ["t:Tanh(x)", "v:Relu(x)"][:: 1 if tanh_first else -1]
    nodes = net(f"x:Placeholder {' '.join(some)} m:AddV2({inputs})")
    assert [one.tensors for one in bindings(body(*nodes), "y:_ -> m:AddV2; t:Tanh -> m")] == [
        {"y": "v"}
    ]
    twice = net("x:Placeholder t:Tanh(x) m:AddV2(t, t)")
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
    inner = net("conv:Conv2D(a, a) bias:BiasAdd(conv:output:0, a)")
    nodes = {"c": {"op": "Conv2D"}, "b": {"op": "BiasAdd"}}
    pattern = {"nodes": nodes, "edges": [["c", "b"]], "closed": True}
    for returned, wanted in ("bias", ["conv bias"]), ("conv", []):
        function = graphs.function("f", ["a"], inner, {"y": f"{returned}:output:0"})
        opened = graphs.opened(graphs.graphdef(functions=[function]))
        assert found(opened.functions["f"], pattern) == wanted


# In functions, where inputs are spelled `node:arg:index`.
IN_FUNCTION = net("""parts:Split(x, a, num_split=3) first:Relu(parts:output:0)
    last:Relu(parts:output:2) norm:FusedBatchNormV3(a, x, x, x, x) mean:Tanh(norm:batch_mean:0)
    both:Mul(first:activations:0, a) after:Tanh(x, ^both)""")
SPELLED: list[tuple[str, list[str]]] = [
    ("Split[2] -> Relu", ["parts last"]),
    ("FusedBatchNormV3[1] -> Tanh", ["norm mean"]),
    ("FusedBatchNormV3[0] -> Tanh", []),
    ("* -> Mul:1", []),  # an argument is no op
    ("a:_ -> Mul:1", ["both"]),  # but a tensor from outside
    ("a:_ -> Mul; a -> FusedBatchNormV3", ["both norm"]),
    ("a:_ -> FusedBatchNormV3:0; a -> Split:0", []),
    ("Relu -> Mul:0", ["first both"]),
    ("Mul ^-> Tanh", ["both after"]),
]


@pytest.mark.parametrize(("pattern", "wanted"), SPELLED)
def test_inputs_as_functions_spell_them(pattern: str, wanted: list[str]) -> None:
    assert found(body(*IN_FUNCTION, inputs="x a"), pattern) == wanted


def test_no_pattern_spans_the_border_of_a_body() -> None:
    """Functions of the model are called as ops."""
    inner = net("conv:Conv2D(a, a) relu:Relu(conv:output:0)")
    functions = [graphs.function(name, ["a"], inner, {"y": "relu:activations:0"}) for name in "AB"]
    nodes = net("x:Placeholder conv:Conv2D(x, x) one:A(conv) two:B(one) tanh:Tanh(two)")
    graph = graphs.opened(graphs.graphdef(*nodes, functions=functions))
    every = graph.main, graph.functions["A"]
    assert [found(one, "Conv2D -> Relu") for one in every] == [[], ["conv relu"]]
    assert [found(one, "Relu -> Tanh") for one in every] == [[], []]
    assert found(graph.main, "Conv2D -> A[0] -> B:0 -> Tanh") == ["conv one two tanh"]
    assert found(graph.main, "A -> B:1") == []


# What says too little ends in one message.


def test_too_many_matches_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant, "LEAST", 50)
    monkeypatch.setattr(variant, "FOR_EACH", 0)
    with pytest.raises(MatchError, match="the pattern in main takes more than 50 steps"):
        found(body(*MANY), "a:Relu -> s:AddN; b:Relu -> s")


@pytest.mark.parametrize("pattern", ["Relu ->+ AddV2", "Relu ->+ AddV2 -> Tanh"])
def test_runs_through_too_many_ops_are_one_message(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """A tower, in which each of n runs leads through the rest of it, is n * n / 2 ops."""
    floors = " ".join(f"r{k}:Relu(a{k - 1}) a{k}:AddV2(a{k - 1}, r{k})" for k in range(1, 20))
    tower = net(f"x:Placeholder a0:Relu(x) {floors} end:Tanh(a19)")
    assert len(found(body(*tower), pattern)) == 20
    monkeypatch.setattr(variant, "LEAST", 100)
    monkeypatch.setattr(variant, "FOR_EACH", 0)
    with pytest.raises(MatchError, match=r"takes more than 100 steps .*; name op types instead"):
        found(body(*tower), pattern)


# Cases of TVM's test_dataflow_pattern that graphpatch once answered in another way.


def test_what_an_earlier_rule_consumed() -> None:
    """test_double_partition: conv, bias, relu as one op first, then conv, bias as one."""
    nodes = net("""x:Placeholder conv:Conv2D(x, x) bias:BiasAdd(conv, b) relu:Relu(bias)
        conv2:Conv2D(relu, x) bias2:BiasAdd(conv2, b)""")
    two, three = (  # the first convolution reads x twice, which is one tensor
        {"override_gradient": {"formula": ["dy", *[None] * others]}, "on": "match"}
        for others in (1, 2)
    )
    rules = [
        {"match": {"pattern": "i:_ -> c:Conv2D:0 -> BiasAdd -> Relu"}, "patch": two},
        {"match": {"pattern": "i:_ -> c:Conv2D:0 -> BiasAdd", "taken": False}, "patch": three},
    ]
    report = graphpatch.apply(rules, graphs.graphdef(*scalars(b=1), *nodes)).report
    assert [[one["op"] for one in rule["matches"]] for rule in report["rules"]] == [
        ["conv", "bias", "relu"],
        ["conv2", "bias2"],
    ]


CASTS = [f"cast{k}" for k in range(6)]
RUN = " ".join(
    f"{name}:Cast({before}, SrcT=float32, DstT=float32)"
    for before, name in zip(["dense", *CASTS], CASTS, strict=False)
)


@pytest.mark.parametrize(
    ("pattern", "on", "wanted"),
    [
        ("MatMul ->+ Cast", [], CASTS[-1:]),
        ("m:MatMul ->+ c:Cast|Identity", [], CASTS[-1:]),
        ("MatMul ->+ run:Cast", ["run"], CASTS),
    ],
)
def test_a_pattern_that_ends_in_a_run_patches_its_last_op(
    pattern: str, on: list[str], wanted: list[str]
) -> None:
    """test_rewrite_with_pattern_recursion: a product, then casts, of which the last one counts."""
    graph = graphs.graph_of(*net(f"x:Placeholder dense:MatMul(x, x) {RUN}"))
    assert [one.name for one in find(graph, Match(pattern=pattern), on).nodes] == wanted
