"""What each kind of patch refuses, and what it says, without TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.matches import match_only
from graphpatch.errors import GraphpatchError, PatchError
from graphpatch.match.spec import Match
from tests.graphs import function, node, saved, v1_loop
from tests.patches.one_op import applied, as_one, formula, net, on_op, override

X = "x:Placeholder"
RELU, SIGN = f"{X} r:Relu(x) y:Identity(r)", f"{X} s:Sign(x) y:Identity(s)"
GATE = f"{X} s:Sigmoid(x) m:Mul(s,x)"
SWISH = "x:_ -> sigmoid:Sigmoid -> mul:Mul; x -> mul"
MATMUL = f"{X} w:Placeholder m:MatMul(x,w) s:Shape(x, out_type=int32)"
DENSE = f"{X} w:Placeholder c:MatMul(x,w) r:Relu(c)"
DENSE_PATTERN, OPEN = "x:_ -> m:MatMul:0 -> r:Relu; w:_ -> m:1", "x:_ -> m:MatMul -> r:Relu"
CAST = f"{X} c:Cast(x, SrcT=float32, DstT=int32)"
ENTER = f"{X} e:Enter(x, frame_name=f) t:Tanh(e)"
INTEGER = f"{X} i:Placeholder(dtype=int32)"
NOISY = f"{X} u:Placeholder n:Mul(x,u)"
TANH = f"{NOISY} z:Tanh(n)"
STATE = "has a state, and must not run twice"
STOP, THROUGH = {"stop_gradient": True}, {"straight_through": True}
COMPLEX = "x:Placeholder(dtype=complex64) f:FFT(x, Tcomplex=complex64)"
SCALED = {"filter_gradient": {"scale": 2}}
ZERO_AND_REVERSED = [{"filter_gradient": "zero"}, {"filter_gradient": "reverse"}]
NAMED = f"""{X} k:Placeholder r:Relu(x) y:Neg(r) s:Placeholder(dtype=int64)
    text:Placeholder(dtype=string) handle:Placeholder(dtype=resource) pred:Placeholder(dtype=bool)
    switch:Switch(x,pred) taken:Neg(switch:1) either:Merge(switch,taken, N=2)"""


def surrogate(text: Any = "tanh(4 * x)", op: str = "Sign", **keys: Any) -> dict[str, Any]:
    return on_op(op, {"surrogate_gradient": text, **keys})


def clean(name: str = "n", **keys: Any) -> dict[str, Any]:
    return {"match": {"name": name}, "patch": {"backward_as": keys}}


def on_relu(text: str, **keys: Any) -> dict[str, Any]:
    return on_op("Relu", formula(text), **keys)


# The rule, the graph, and what the message says.
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    # override_gradient
    (on_op("Placeholder", override("zero")), RELU, "the override would never be used: Placehol"),
    (on_op("Shape", override("zero")), MATMUL, "is int32, which carries no gradient"),
    (on_op("NoOp", override("zero")), "n:NoOp", "NoOp 'n' reads nothing"),
    (on_relu("dy * split(x0, parts=0.5, index=0)"), RELU, "parts"),
    (on_op("Maximum", override("Elu")), f"{X} m:Maximum(x,x)", "of Elu is for 1 inputs; M"),
    (on_op("Relu", override("default")), RELU, "Relu 'r' has no override to take off"),
    (on_op("Relu", {**STOP, "at": "output:1"}), RELU, "has no output 1; it has 1, counted from 0"),
    (on_op("Relu", STOP), f"{X} r:Relu(x,x)", "Relu 'r' reads 2 tensors, and Relu takes 1: the"),
    # of a match
    (as_one("x:Placeholder -> s:Sigmoid -> m:Mul; x -> m", formula("dy")), GATE,
     "Placeholder 'x' is inside the match, so that no gradient would come to it; a tensor from"),
    (as_one("s:Sigmoid -> m:Mul; s -> t:Tanh", formula("dy")), f"{GATE} t:Tanh(s)",
     "a match counts as one op where it ends in one op; this ends in: Mul 'm', Tanh 't'"),
    (as_one(SWISH, override({"registered": "Mine"})), GATE, "has no gradient under a key"),
    (as_one(SWISH, formula("dy"), emit="attr"), GATE, "its gradient is stored as a function"),
    (as_one(SWISH, override("guided_relu")), GATE,
     'not for a match as one op; where it is meant all the same, write it as {"formula": "wh'),
    (as_one("x:_ -> s:Sigmoid -> m:Mul:0; z:_ -> m:1", override("arctan_surrogate")),
     f"{X} z:Placeholder s:Sigmoid(x) m:Mul(s,z)",
     "arctan_surrogate is for one input; the match reads 2: x0 = x, x1 = z; take constants"),
    (as_one(DENSE_PATTERN, override({"scale": 2})), DENSE, "is not known to keep that of x0; the"),
    (as_one(SWISH, formula(["dy", "dy"])), GATE,
     "the match that ends in Mul 'm': the list has 2 formulas, and the op has 1 input"),
    (as_one("s:_ -> m:MatMul:1", formula(["dy"])), MATMUL, "the match reads 2: x0 = s (w), x1 = x"),
    (as_one(SWISH, formula("dy * attr.alpha")), GATE, "the op has no attr 'alpha'"),
    (as_one("x:_ -> Cast", formula("dy")), CAST, "output 0 of Cast 'c' is int32, which carries"),
    (as_one("x:_ -> e:Enter -> t:Tanh", formula("dy")), ENTER,
     "Enter 'e' leads into or out of a loop or branch"),
    *((as_one(SWISH, patch), f"{GATE} y:Neg(s)", "'s' is inside the match, and is read outside by ")
      for patch in ({"surrogate_gradient": "x ** 3"}, THROUGH, SCALED, STOP)),
    # filter_gradient and stop_gradient
    (on_op("MatMul", {"filter_gradient": "stock"}), MATMUL, '"default" takes an override off'),
    (on_op("MatMul", {"filter_gradient": "zero", "at": "input:2"}), MATMUL, "has no input 2; it h"),
    (as_one(SWISH, {"filter_gradient": "zero", "at": "input:7"}), GATE,
     "the match that ends in Mul 'm' has no input 7; it has 1"),
    (on_op("Placeholder", {**STOP, "at": "inputs"}), MATMUL, "Placeholder 'x' has no inputs"),
    (on_op("VarHandleOp", STOP), "v:VarHandleOp(dtype=float32)",
     "is a handle (resource): patch the outputs of the op that reads"),
    (on_op("FFT", SCALED), COMPLEX, "FFT 'f': an input is complex64; formulas compute in"),
    (on_op("FFT", {**SCALED, "at": "inputs"}, emit="attr"), COMPLEX, "FFT 'f': an input is c"),
    (on_op("FFT", {"filter_gradient": {"formula": ["dy * 2"]}}), COMPLEX,
     "FFT 'f': formula, column 1: x0 is complex64; formulas compute in"),
    # straight_through
    (on_op("Relu", {"straight_through": {"input": 1}}), RELU, "has no x1; its inputs: x0"),
    (on_op("Cast", THROUGH), CAST.replace("int32", "float64"), "x0, which has another dtype"),
    (on_op("Sign", THROUGH), f"{INTEGER} s:Sign(i, T=int32)", "is int32"),
    (on_op("Reshape", THROUGH), f"{INTEGER} r:Reshape(x,i)", "not known to keep the shape of x0"),
    (on_op("Split", THROUGH), f"{INTEGER} s:Split(i,x, num_split=2)", "2 outputs; straight_throug"),
    (on_op("Sign", {"straight_through": {"input": "x"}}), SIGN,
     "'x' is a name of a pattern, for \"on\": \"match\""),
    (as_one(DENSE_PATTERN, {"straight_through": {"input": 2}}), DENSE, "has no x2; the match rea"),
    (as_one(DENSE_PATTERN, {"straight_through": {"input": "v"}}), DENSE, "has no input 'v'; the m"),
    (as_one(DENSE_PATTERN, THROUGH),
     "x:Placeholder(shape=[2,3]) w:Placeholder(shape=[3,4]) c:MatMul(x,w) r:Relu(c)",
     "does not have the shape of x0, so it cannot count as th"),
    (as_one("x:_ -> Cast", THROUGH), CAST,
     "cannot count as x0: y is int32, which carries no gradient; the match"),
    # which tensor is x0
    (as_one(OPEN, THROUGH), DENSE, "it is not clear which tensor is x0"),
    (as_one(OPEN, {"filter_gradient": "zero", "at": "input:0"}), DENSE, "it is not clear which te"),
    # surrogate_gradient
    (surrogate("dy * x"), SIGN, "dy0 is not an input: a surrogate is a formula of x0, x1, ..."),
    (surrogate("tanh(tensor('s') * x)"), SIGN, "which is computed from"),
    (surrogate("3"), SIGN, "nothing flows back through '3'; stop_gradient says that"),
    (surrogate("x + (x > 0)"), SIGN, "takes numbers, and this is a condition"),
    (surrogate("x3"), SIGN, "Sign 's' has no x3; its inputs: x0"),
    (surrogate(["x"]), SIGN, "surrogate_gradient"),
    (surrogate(at="inputs"), SIGN, "patch.at does not go with surrogate_gradient"),
    (surrogate(op="FFT"), COMPLEX, "on complex tensors these work: stop_gradient, straight"),
    (surrogate(op="Cast"), CAST, "is int32, which carries no gradient"),
    (surrogate(op="Unpack"), f"{X} u:Unpack(x, num=2)", "has 2 outputs; surrogate_gradient needs"),
    (surrogate(op="Placeholder"), X, "its value comes from outside"),
    (surrogate(op="Enter"), ENTER, "leads into or out of a loop or branch"),
    (surrogate("x1 * 2", op="GatherV2"),
     f"{CAST} g:GatherV2(x,c,c, Tparams=float32, Tindices=int32, Taxis=int32)",
     "formulas compute in"),
    (as_one(DENSE_PATTERN, {"surrogate_gradient": "x0 * x5"}), DENSE,
     "has no x5; the match reads 2: x0 = x, x1 = w"),
    # tensors that formulas read by name
    (on_relu("dy * tensor('kk')"), NAMED, "the graph has no such tensor; nearest: k"),
    (on_relu("dy * tensor('k:1')"), NAMED, "'k' has 1 output, counted from 0"),
    (on_relu("dy * tensor('y')"), NAMED, "is computed from Relu 'r'"),
    (as_one("a:Relu", formula("dy * tensor('y')")), NAMED, "is computed from Relu 'r'"),
    (on_relu("dy * tensor('s')"), NAMED, "this is int64; formulas compute in"),
    (on_relu("cast_like(tensor('text'), dy)"), NAMED, "this is string"),
    (on_relu("dy * tensor('handle')"), NAMED, "which is a resource; name the tensor"),
    (on_relu("dy * tensor('taken')"), NAMED, "not in the same v1 loop or branch"),
    (on_op("Neg", formula("dy * tensor('k')")), NAMED, "not in the same v1 loop or branch"),
    (on_op("Relu", {"filter_gradient": {"formula": "dy * tensor('y')"}, "at": "inputs"}), NAMED,
     "is computed from Relu 'r'"),
    (on_relu("dy * tensor('k')", emit="attr"), NAMED, "a key holds no tensor"),
    # backward_as
    (clean(until="zz"), TANH, "there is no tensor 'zz' in main"),
    (clean(until="x"), TANH, "\"until\": x does not depend on Mul 'n'"),
    (clean(until=[]), TANH, "until: expected a list of length >= 1"),
    (clean(input=2), TANH, "has no x2; its inputs: x0, x1"),
    (clean(until="z"), f"{NOISY} z:Cast(n, SrcT=float32, DstT=int32)",
     '"until": z is int32, which carries no gradient'),
    (clean("m"), MATMUL, "MatMul 'm' is not known to keep the shape of input 0"),
    (clean("c"), CAST.replace("int32", "float64"), "cannot count as x0, which has another dtype"),
    (clean(), f"{NOISY} c:CheckNumerics(n, message=no) z:Tanh(c)", f"CheckNumerics 'c' {STATE}"),
    (clean(), f"{NOISY} p:PlaceholderWithDefault(n, dtype=float32) z:Tanh(p)",
     "'p' may be fed, and a clone of it is not"),
    (clean(), f"{NOISY} b:Placeholder(dtype=bool) s:Switch(n,b) z:Tanh(s:1)",
     "Switch 's' leads into or out of a loop or branch, which cannot be cloned in part"),
    (clean(), f"{NOISY} c:Unheard(n) z:Tanh(c)", "op type Unheard is not known, so it may not be"),
    (clean(until="r"), f"{NOISY} r:RandomStandardNormal(s, T=int32, dtype=float32) s:Shape(n)",
     "no gradient flows back through RandomStandardNormal 'r'"),
    (on_op("Mul", {"backward_as": {}}), f"{X} u:Placeholder m:Mul(u,u) n:Mul(x,m) z:Tanh(n)",
     "Mul 'm': no noise-free path leads from it to z; leave it out"),
    (clean(until="i"), f"{NOISY} i:Shape(n)", "carries no gradient"),
    (as_one("a:Relu -> b:Identity", {"backward_as": {}}), RELU,
     "a match as one op, does not go with backward_as"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "nodes", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_refused(rule: Any, nodes: str, message: str) -> None:
    with pytest.raises(GraphpatchError) as error:
        applied(rule, nodes)
    assert message in str(error.value)


@pytest.mark.parametrize("patch", [STOP, THROUGH, *ZERO_AND_REVERSED])
def test_what_works_on_complex_tensors(patch: Any) -> None:
    """A filter that is refused behind it is named after the op of the model."""
    model = applied(on_op("FFT", patch), f"{COMPLEX} y:Identity(f, T=complex64)").model
    with pytest.raises(PatchError, match="FFT 'f': an input is complex64"):
        graphpatch.apply([on_op("FFT", SCALED)], model)


IN_FUNCTION = [
    (surrogate("clip(x, -1, 1)"), "no gradient of SelectV2, of which the formula is made"),
    (surrogate() | {"emit": "attr"}, "there a function carries it (emit: auto)"),
    (on_op("Sign", formula("dy * tensor('x')")), "function f has no such tensor"),
]


@pytest.mark.parametrize(("rule", "message"), IN_FUNCTION)
def test_refused_in_a_function(rule: Any, message: str) -> None:
    inner = function("f", ["a"], net("s:Sign(a)"), {"out": "s:y:0"})
    with pytest.raises(PatchError) as error:
        applied(rule, "x:Placeholder call:f(x)", functions=[inner])
    assert message in str(error.value)


IN_LOOP = [
    ("Enter", {}, "Enter 'enter' must stay next to the ops that its loop begins with"),
    ("NextIteration", {}, "must stay next to its loop's Merge or Switch"),
    ("Exit", {"at": "inputs"}, "Exit 'exit' must stay next to Switch 'switch', where TensorFlow"),
    ("Switch", {"at": "outputs"}, "Exit 'exit' must stay next to Switch 'switch', where"),
]


@pytest.mark.parametrize(("op", "at", "message"), IN_LOOP)
def test_refused_at_the_borders_of_a_v1_loop(op: str, at: Any, message: str) -> None:
    loop = v1_loop("x", *net("s:Tanh(merge)"), decides="s", gives="switch:1")
    with pytest.raises(PatchError) as error:
        applied(on_op(op, {**STOP, **at}), [*net(X), *loop])
    assert message in str(error.value)


def test_a_match_without_a_dtype() -> None:
    mul = node("m", "Mul", "s", "x")
    mul.attr["T"].placeholder = "T"
    nodes = [*net("x:Placeholder s:Sigmoid(x)"), mul, node("y", "Relu", "m")]
    with pytest.raises(PatchError, match=r"ends in .*: the dtype of x0 is not known"):
        applied(as_one("Mul -> Relu", formula("dy")), nodes)


def test_a_rule_is_not_applied_twice() -> None:
    for rule in (as_one(SWISH, formula("dy")), on_op("Mul", formula("dy"))):
        with pytest.raises(PatchError, match="has been applied to this model already"):
            graphpatch.apply([rule], applied(rule, GATE).model)


BATCHES = [(-1, ""), (2, ""), (4, ""), (1, "splits x0 into 2 equal parts, and its batch is fixed ")]


@pytest.mark.parametrize(("size", "message"), BATCHES)
@pytest.mark.parametrize("on", ["op", "match"])
def test_halves_of_a_batch(size: int, message: str, on: str) -> None:
    """TensorFlow does not import a file in which one example is split into two halves."""
    nodes = f"x:Placeholder(shape=[{size},8]) r:Relu(x) t:Tanh(r)"
    rule = on_op("Relu", override("deeplift_batch"))
    if on == "match":
        rule = as_one("Relu -> Tanh", formula("dy * split(x0, 2, 1)"))
    if not message:
        assert applied(rule, nodes)
        return
    with pytest.raises(PatchError, match=message):
        applied(rule, nodes)


# `"on": "match"` where the pattern leaves open which tensor is x0.

A_FIRST = "a:Placeholder b:Placeholder m:MatMul(a,b)"
B_FIRST = "b:Placeholder a:Placeholder m:MatMul(a,b)"
PRODUCT = "a:Placeholder b:Placeholder m:Mul(a,b) x0:Const x1:Const"
GATED = "a:Placeholder b:Placeholder p:Tanh(a) q:Tanh(b) m:Mul(p,q)"


@pytest.mark.parametrize("nodes", [A_FIRST, B_FIRST])
def test_x_could_be_either_input_whatever_the_order_of_the_file(nodes: str) -> None:
    with pytest.raises(PatchError) as raised:
        applied(as_one("x:_ -> m:MatMul", formula(["dy * x0", "dy"])), nodes)
    assert "it is not clear which tensor is x0, a or b" in str(raised.value)
    assert 'write the input slot into the pattern, as in "x:_ -> m:MatMul:' in str(raised.value)
    for slot, first in ((0, "a"), (1, "b")):
        rule = as_one(f"x:_ -> m:MatMul:{slot}", formula(["dy * x", "dy"]))
        [entry] = applied(rule, nodes).report["rules"][0]["matches"]
        assert (entry["inputs"]["x0"], entry["tensors"]) == (first, {"x": first})
    for pattern in ("x:_ -> m:MatMul", "x:_ -> m:MatMul:0"):  # filled up with null it would pass
        with pytest.raises(PatchError, match="has 3 formulas, and the op has 2 inputs"):
            applied(as_one(pattern, formula(["dy * x0", None, None])), nodes)


CLEAR: list[tuple[str, Any]] = [
    *(
        ("x:_ -> m:Mul; s:_ -> m", formula(text))
        for text in ("dy", ["dy", "dy"], ["dy * x1", "dy * x0"], ["dy * x1 + x0", "dy*x + x1"])
    ),
    ("x:_ -> m:Mul:0", {"surrogate_gradient": "x0 - x1"}),
    ("x:_ -> m:Mul", formula("dy * tensor('x1')")),
]
UNCLEAR: list[tuple[str, Any]] = [
    *(
        (pattern, formula(text))
        for text in ("dy * x", ["dy", None], ["dy * x0", "dy * x0"], ["dy * x1", "dy"])
        for pattern in ("x:_ -> m:Mul", "x:_ -> m:Mul; s:_ -> m")
    ),
    ("x:_ -> m:Mul", {"surrogate_gradient": "x0 - x1"}),
    ("x:_ -> m:Mul", {"override_gradient": {"registered": "Mine"}}),  # no formula tells
    # Tensors that happen to have such names are two, whatever reads them.
    ("x:_ -> m:Mul; s:_ -> m", formula(["dy * tensor('x0')", "dy * tensor('x1')"])),
]


@pytest.mark.parametrize(("pattern", "patch"), CLEAR)
def test_a_gradient_that_treats_them_alike_needs_no_slot(pattern: str, patch: Any) -> None:
    assert applied(as_one(pattern, patch), PRODUCT)


@pytest.mark.parametrize(("pattern", "patch"), UNCLEAR)
def test_one_that_does_not_needs_it(pattern: str, patch: Any) -> None:
    with pytest.raises(PatchError, match="it is not clear which tensor is x0"):
        applied(as_one(pattern, patch), PRODUCT)


def test_ops_that_can_be_swapped_leave_it_open_too() -> None:
    """Which Tanh is first says the file alone."""
    patch = formula(["dy * x0", "dy"])
    with pytest.raises(PatchError, match="which tensor is x0, a or b"):
        applied(as_one("p:Tanh -> m:Mul; q:Tanh -> m", patch), GATED)
    assert applied(as_one("p:Tanh -> m:Mul:0; q:Tanh -> m:1", patch), GATED)


def test_a_name_that_is_read_elsewhere_too_is_clear() -> None:
    """Two names may be one tensor, where each has an input of its own."""
    rule = as_one("x:_ -> m:Mul; k:_ -> m -> d:Sub:0; k -> d:1", formula(["dy * x1", None]))
    [_, last] = applied(rule, f"{PRODUCT} d:Sub(m,b)").report["rules"][0]["matches"]
    assert last["inputs"] == {"x0": "a", "x1": "b"}


def test_match_says_what_x0_is_and_where_the_pattern_leaves_it_open(tmp_path: Path) -> None:
    model = graphpatch.load(saved(tmp_path, *net(A_FIRST)))
    [entry] = match_only(Match(pattern="s:_ -> m:MatMul:1"), model).matches
    assert entry["tensors"] == {"s": "b"}
    assert entry["inputs"] == {"x0": "b", "x1": "a"}
    [note] = match_only(Match(pattern="s:_ -> m:MatMul"), model).notes
    assert note.startswith("the pattern leaves open which tensor is x0: in the match that ends in ")
    assert "it could be a or b; where that matters, write the input slot" in note
    assert note.endswith("as in x:_ -> m:MatMul:0")
    for clear in ("s:_ -> m:MatMul:1", "MatMul", "s:_ -> m:MatMul:0; t:_ -> m:1"):
        assert match_only(Match(pattern=clear), model).notes == ()
