"""What each kind of patch writes, without TensorFlow: which ops, where, and what carries it."""

from __future__ import annotations

import math
from fnmatch import fnmatch
from typing import Any

import pytest

import graphpatch
from graphpatch import names
from graphpatch.graph import provenance
from graphpatch.patches.backward_as import is_random
from tests import graphs
from tests.graphs import const, function, graphdef, in_memory, joined, node, sized, v1_loop
from tests.patches.one_op import applied, as_one, assert_has, formula, main_of, net, on_op, override

RELU = "x:Placeholder r:Relu(x) y:Identity(r)"
MATMUL = "x:Placeholder w:Placeholder m:MatMul(x,w) y:Identity(m) z:Neg(x)"
SIGN = "x:Placeholder s:Sign(x) y:Identity(s)"
GATE = "x:Placeholder s:Sigmoid(x) m:Mul(s,x) y:Identity(m) z:Neg(x)"
SWISH = "x:_ -> sigmoid:Sigmoid -> mul:Mul; x -> mul"
DENSE = "x:Placeholder w:Placeholder c:MatMul(x,w) r:Relu(c) y:Identity(r)"
DENSE_PATTERN = "x:_ -> m:MatMul:0 -> r:Relu; w:_ -> m:1"
REVERSE, STOP = {"filter_gradient": "reverse"}, {"stop_gradient": True}
THROUGH, TANH = {"straight_through": True}, {"surrogate_gradient": "tanh(4 * x)"}


# The rule, the graph, some ops of the patched one, and what carries the gradient.
WRITTEN: dict[str, tuple[Any, str, str, str]] = {
    "a key of TensorFlow": (on_op("Relu", override("identity")), RELU,
        "r:Relu(x,_gradient_op_type=Identity) y:Identity(r)", "built-in"),
    "a registered key": (on_op("Relu", override({"registered": "Mine"})), RELU,
        "r:Relu(x,_gradient_op_type=Mine) y:Identity(r)", "attr"),
    "linear in dy": (on_op("Relu", override({"scale": 2})), RELU,
        "r/forward:Relu(x) r/stop:StopGradient(r/forward) r/same:Equal(r/stop,r/stop)"
        " r/true:OnesLike(r/same) r:Select(r/true,r/stop,r/backward/Mul,_gradient_op_type=AddN)"
        " y:Identity(r)", "construction"),
    "not linear in dy": (on_op("Relu", override({"clip": {"min": -1, "max": 1}})), RELU,
        "r/forward:Relu(x) r/guard:graphpatch_guard_*(x) r:graphpatch_clip_*(r/guard,r/stop)"
        " y:Identity(r)", "function"),
    "a match, which stays but for its last op": (
        as_one(SWISH, override({"formula": "dy * sigmoid(x)"}), emit="function"), GATE,
        "s:Sigmoid(x) m/forward:Mul(s,x) m/guard:graphpatch_guard_*(x)"
        " m:graphpatch_*(m/guard,m/stop) y:Identity(m)", "function"),
    "what gets no gradient comes through a stop": (
        as_one("a:_ -> m:0; b:_ -> m:1; m:Sub -> t:Tanh", override({"formula": ["dy * x1", None]}),
               emit="function"),
        "x:Placeholder w:Placeholder m:Sub(w,x) t:Tanh(m)",
        "t/forward/stop_1:StopGradient(x) t:graphpatch_*(t/guard,t/forward/stop_1,t/stop)",
        "function"),
    "a gradient of the library for steps, on a match": (
        as_one(SWISH, override("arctan_surrogate")), GATE, "m/forward:Mul(s,x)", "construction"),
    "a filter behind": (on_op("MatMul", REVERSE), MATMUL,
        "m/forward:MatMul(x,w) m:Identity(m/forward,_gradient_op_type=Neg) y:Identity(m)",
        "built-in"),
    "filters before": (on_op("MatMul", {**REVERSE, "at": "inputs"}), MATMUL,
        "m/filter_0:Identity(x) m:MatMul(m/filter_0,m/filter_1) z:Neg(x)", "built-in"),
    "a filter behind a match": (as_one(SWISH, {"filter_gradient": {"scale": 2}}), GATE,
        "s:Sigmoid(x) y:Identity(m)", "construction"),
    "a stop behind": (on_op("MatMul", STOP), MATMUL,
        "m/forward:MatMul(x,w) m:StopGradient(m/forward) y:Identity(m)", "construction"),
    "a stop before one input": (
        on_op("MatMul", {**STOP, "at": "input:0"}), MATMUL, "m:MatMul(m/stop_0,w) z:Neg(x)",
        "construction"),
    "a stop behind what is fed, which keeps its name": (
        on_op("Placeholder", STOP), RELU, "x/stop:StopGradient(x) r:Relu(x/stop)", "construction"),
    "before a match one op serves all of it that read a tensor": (
        as_one(SWISH, {**STOP, "at": "inputs"}), GATE,
        "m/stop_0:StopGradient(x) s:Sigmoid(m/stop_0) m:Mul(s,m/stop_0) z:Neg(x)", "construction"),
    "before one input of a match": (
        as_one(DENSE_PATTERN, {**STOP, "at": "input:1"}), DENSE, "c:MatMul(x,r/stop_1)",
        "construction"),
    "straight through one input": (on_op("Round", THROUGH), "x:Placeholder r:Round(x) y:Neg(r)",
        "r:Round(x,_gradient_op_type=Identity) y:Neg(r)", "built-in"),
    "straight through one of several": (on_op("Maximum", {"straight_through": {"input": 1}}),
        "x:Placeholder w:Placeholder m:Maximum(x,w)",
        "m/repeat/BroadcastTo:BroadcastTo(w,m/repeat/Shape)"
        " m:Select(m/true,m/stop,m/repeat/BroadcastTo)", "construction"),
    "straight through a match that keeps the shape": (
        as_one("x:_ -> Neg -> Round", THROUGH), "x:Placeholder a:Neg(x) b:Round(a)",
        "b:Select(b/true,b/stop,x)", "construction"),
    "a surrogate": (on_op("Sign", TANH), SIGN,
        "s/surrogate/Mul:Mul(s/surrogate/Const,x) s/surrogate/Tanh:Tanh(s/surrogate/Mul)"
        " s/forward:Sign(x) s:Select(s/true,s/stop,s/surrogate/Tanh,_gradient_op_type=AddN)"
        " y:Identity(s)", "construction"),
    "a surrogate that is asked for as a key": (
        on_op("Sign", TANH, emit="attr"), SIGN, "s:Select(s/true,s/stop,s/surrogate/Tanh)",
        "construction"),
    "a surrogate by a function": (
        on_op("Sign", TANH, emit="function"), SIGN, "s/forward:Sign(x) y:Identity(s)", "function"),
    "a surrogate of unknown shape": (on_op("Sign", {"surrogate_gradient": "sum(x)"}), SIGN,
        "s/repeat/Shape:Shape(s/stop) s:Select(s/true,s/stop,s/repeat/BroadcastTo)", "construction",
    ),
    "a surrogate of all that is broadcast": (on_op("AddV2", {"surrogate_gradient": "x0 * x1"}),
        "x:Placeholder v:Placeholder a:AddV2(x,v)", "a:Select(a/true,a/stop,a/surrogate/Mul)",
        "construction"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_the_op_keeps_its_name_and_the_file_is_the_same_on_every_run(name: str) -> None:
    rule, nodes, ops, carrier = WRITTEN[name]
    result, again = applied(rule, nodes), applied(rule, nodes)
    assert_has(main_of(result), ops)
    assert result.report["rules"][0]["emit"] == carrier
    assert graphs.written(result.model.graphs[0]) == graphs.written(again.model.graphs[0])


@pytest.mark.parametrize(
    ("rule", "nodes", "behind"),
    [
        (on_op("Sign", TANH), SIGN, {"s/forward"}),
        (as_one(SWISH, {"surrogate_gradient": "relu(x)"}), GATE, {"s", "m/forward"}),
        (as_one(SWISH, override({"formula": "dy"})), GATE, {"s", "m/forward"}),
    ],
)
def test_no_rule_reaches_what_is_behind_it(rule: Any, nodes: str, behind: set[str]) -> None:
    model = applied({**rule, "name": "first"}, nodes).model
    assert {op.name for op in model.graphs[0].main if provenance.shadow(op) == "first"} == behind
    for name in behind:
        stop = {"match": {"name": name}, "patch": STOP}
        with pytest.raises(graphpatch.PatchError, match=r"no gradient .* since rule 'first'"):
            graphpatch.apply([stop], model)


def test_default_takes_an_override_off() -> None:
    nodes = "x:Placeholder r:Relu(x, _gradient_op_type=Theirs)"
    body = main_of(applied(on_op("Relu", override("stock")), nodes))
    assert "_gradient_op_type" not in body.node("r").attr_names


def test_other_ops_and_bodies_are_left_alone() -> None:
    inner = function("f", ["a"], net("q:Relu(a)"), {"b": "q:activations:0"})
    result = applied(on_op("Tanh", override("zero")), f"{RELU} t:Tanh(x)", functions=[inner])
    assert {"_graphpatch", "_gradient_op_type"}.isdisjoint(main_of(result).node("r").attr_names)
    assert not result.model.graphs[0].functions["f"].edited


def test_constants_of_a_surrogate_wait_in_the_loop_that_the_op_decides_for() -> None:
    loop = v1_loop("x", *net("s:Sign(merge)"), decides="s", gives="switch:1")
    body = main_of(applied(on_op("Sign", TANH), [*net("x:Placeholder"), *loop]))
    assert_has(body, "s/surrogate/in:Identity(merge) s/surrogate/Const:Const(^s/surrogate/in)")


def test_what_is_behind_a_function_in_a_function_lets_nothing_flow_back() -> None:
    """Each op has a function of its own, whose gradient is zeros, or zeros before its inputs."""
    for op, output, forward in (
        ("Sin", "y", "graphpatch_Sin_*"),
        ("Softmax", "softmax", "Softmax"),
    ):
        inner = function("f", ["a"], net(f"m:{op}(a)"), {"out": f"m:{output}:0"})
        rule = on_op(op, override({"formula": "dy * y"}))
        graph = applied(rule, "x:Placeholder call:f(x)", functions=[inner]).model.graphs[0]
        moved = graph.functions["f"].node("m/forward")
        assert fnmatch(moved.op, forward)
        assert (moved.inputs == ("a",)) == (op == "Sin")
        if op == "Sin":
            assert len(graph.library.signatures[moved.op].inputs) == 1


@pytest.mark.parametrize(("rule", "op", "reads"), [
    (on_op("Sign", TANH), "m:Sign(a)", ("m/surrogate/Tanh:y:0", "m/stop:output:0")),
    (on_op("Maximum", {"straight_through": {"input": 1}}), "m:Maximum(a,b)",
     ("b", "m/stop:output:0")),
])  # fmt: skip
def test_in_a_function_that_is_differentiated_as_a_whole(rule: Any, op: str, reads: Any) -> None:
    output = "y" if "Sign" in op else "z"
    inner = function("f", ["a", "b"], net(op), {"out": f"m:{output}:0"})
    result = applied(rule, "x:Placeholder w:Placeholder call:f(x,w)", functions=[inner])
    call = result.model.graphs[0].functions["f"].node("m")
    assert (call.op.startswith("graphpatch_formula_"), call.inputs) == (True, reads)


def test_matches_one_after_the_other_in_a_function() -> None:
    """The second match reads what the first gives, under the name that it has by then."""
    inner = "s:Sigmoid(a) m:Mul(s:y:0,a) t:Sigmoid(m:z:0) n:Mul(t:y:0,m:z:0)"
    f = function("f", ["a"], net(inner), {"out": "n:z:0"})
    rule = as_one(SWISH, override({"formula": "dy * sigmoid(x)"}))
    result = applied(rule, "x:Placeholder call:f(x)", functions=[f])
    body = result.model.graphs[0].functions["f"]
    filtered = body.node("t").inputs[0]  # the match itself reads what lets no zeros through
    reads = [body.node(name).inputs for name in ("n", names.op_of(filtered))]
    assert body.node("n/forward").inputs == ("t:y:0", filtered)
    assert {texts[0] for texts in reads} == {body.node("m").tensor(0)} != {"m:z:0"}
    assert body.ret == {"out": body.node("n").tensor(0)}


def test_straight_through_a_shape_that_is_not_known_is_compared_in_each_run() -> None:
    rule = as_one("x:_ -> a:Reshape:0; k:Const -> a -> Round", {"straight_through": {"input": "x"}})
    result = applied(rule, [*net("x:Placeholder a:Reshape(x,k) b:Round(a)"), const("k")])
    assert main_of(result).node("b").inputs[2] == "b/repeat/BroadcastTo"
    note = "Round 'b' is not known to have the shape of x0 of its match"
    assert any(note in text for text in result.report["notes"])
    assert not any("shape" in text for text in applied(*WRITTEN[
        "straight through a match that keeps the shape"][:2]).report["notes"])  # fmt: skip
    nodes = [*net("x:Placeholder b:Reshape(x,k) n:Neg(b)"), const("k")]
    for op, says in (("Reshape", ["the formula is not known to have"]), ("Neg", [])):
        result = applied(on_op(op, {"surrogate_gradient": "tanh(x)"}), nodes)
        assert [
            n.partition(" the shape")[0] for n in result.report["notes"] if "shape" in n
        ] == says


def test_a_match_as_one_op_is_told_with_its_last_op_alone() -> None:
    [entry] = applied(as_one(SWISH, STOP), GATE).report["rules"]
    first, last = entry["matches"]
    assert set(first) == {"body", "op", "type"}
    assert last["captures"] == {"sigmoid": "s", "mul": "m"}
    assert last["inputs"] == {"x0": "x"}


def test_an_op_inside_a_match_that_is_read_outside_keeps_its_gradient_there() -> None:
    readers = "".join(f" y{n}:Neg(s)" for n in range(5))
    rule = as_one(SWISH, override({"formula": "dy"}), name="r")
    result = applied(rule, GATE.replace("y:", "out:") + readers)
    assert (
        "rule 'r': Sigmoid 's' is inside the match, and is read outside by Neg 'y0', Neg 'y1', "
        "Neg 'y2' and 2 more; what flows back from there keeps its own gradient"
    ) in result.report["notes"]
    assert_has(main_of(result), "s:Sigmoid(x) y0:Neg(s) y4:Neg(s)")
    inner = net("s:Sigmoid(a) m:Mul(s:y:0,a)")
    f = function("f", ["a"], inner, {"out": "m:z:0", "too": "s:y:0"})
    notes = applied(rule, "x:Placeholder call:f(x)", functions=[f]).report["notes"]
    assert any("read outside by the output 'too' of the function" in note for note in notes)


# tensor("NAME") in a formula: who reads it, and that it is undone.

NAMED = "x:Placeholder k:Placeholder r:Relu(x) y:Neg(r) s:Placeholder(dtype=int64)"


FILTER = {"formula": "dy * tensor('k')"}
CARRIED = {
    "construction": formula("dy * tensor('k')"),
    "function": formula("sign(dy) * tensor('k:0')"),
    "an integer": formula("dy * cast_like(tensor('s'), dy)"),
    "the op's own gradient": formula("own(dy) * tensor('k')"),
    "an input of the op": formula("dy * tensor('x')"),
    "a surrogate": {"surrogate_gradient": "tanh(tensor('k') * x)"},
    "a filter behind": {"filter_gradient": FILTER},
    "a filter before": {"filter_gradient": FILTER, "at": "inputs"},
}


@pytest.mark.parametrize("name", CARRIED)
def test_the_tensor_is_read_and_the_patch_undone_byte_for_byte(name: str) -> None:
    raw = graphdef(*net(NAMED)).SerializeToString()
    result = graphpatch.apply([{"match": {"op": "Relu"}, "patch": CARRIED[name]}], in_memory(raw))
    readers = [op.name for op in main_of(result) if {"k", "s"} & set(op.inputs)]
    assert readers or name == "an input of the op"
    assert joined(graphpatch.revert(result).model.pieces()) == raw


def test_a_tensor_that_is_read_by_name_is_that_of_the_body() -> None:
    inner = function("f", ["a"], net("k:Neg(a) r:Relu(a)"), {"out": "r:activations:0"})
    main = net("a:Placeholder k:Neg(a) r:Relu(a) c:f(a)")
    graph = applied(on_op("Relu", override(FILTER)), main, [inner]).model.graphs[0]
    assert "k:y:0" in {text for op in graph.functions["f"] for text in op.inputs}


def test_a_broken_result_is_a_bug_that_nobody_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphpatch.patches.editing.RuleEditor.put_op", lambda *_, **__: "nobody")
    with pytest.raises(RuntimeError, match="input 'nobody' of"):
        applied(on_op("Relu", CARRIED["a surrogate"]), NAMED)


# Patches that stop in the middle of noise say so in the report.

NOISY = "x:Placeholder noise:RandomStandardNormal(shape, dtype=float32, T=int32) mixed:Mul(x,noise)"
BEHIND = "the gradient is still noisy behind Mul 'mixed': that of Tanh 'y' is taken at a value"
MANY = " ".join(f"r{n}:Round(mixed) s{n}:Tanh(r{n})" for n in range(5))

# The patch, the name of its op, what is behind, and how the one note begins or ends.
NOTES: list[tuple[Any, str, str, str]] = [
    (THROUGH, "mixed", "y:Tanh(mixed)", BEHIND),
    (STOP, "mixed", "y:Tanh(mixed)", BEHIND),
    (THROUGH, "mixed", "y:Neg(mixed)", ""),  # linear
    (STOP, "mixed", "y:Neg(mixed)", ""),
    ({**STOP, "at": "input:1"}, "mixed", "",
     "the gradient is still noisy at Mul 'mixed': that of Mul 'mixed'"),
    (THROUGH, "p", "p:Round(x) q:Tanh(p)", ""),  # without noise
    (THROUGH, "r*", MANY, "and 2 more"),
]  # fmt: skip


@pytest.mark.parametrize(("patch", "name", "behind", "note"), NOTES)
def test_an_op_behind_that_is_not_linear_is_told_once(
    patch: Any, name: str, behind: str, note: str
) -> None:
    rule = {"match": {"name": name}, "patch": patch}
    result = applied(rule, [const("shape"), *net(f"{NOISY} {behind}")])
    notes = [text for text in result.report["notes"] if "noisy" in text]
    assert len(notes) == bool(note)
    assert all(note in text and "backward_as" in text for text in notes)


def test_which_ops_are_random() -> None:
    random = "RandomUniform TruncatedNormal Multinomial StatefulUniform"
    others = "StatelessRandomUniform RandomShuffleQueue Const None"
    assert " ".join(filter(is_random, f"{random} {others}".split())) == random


# Rules that change nothing say so, and those that change something do not.

IDLE: dict[str, Any] = {
    "scale": {"scale": 1},
    "identity": "identity",
    "clip": {"clip": {"min": -math.inf, "max": math.inf}},
    "dy": {"formula": "dy"},
    "products": {"formula": "1 * dy / 1 - (2 - 2)"},
    "power": {"formula": "dy ** 1"},
    "bounds": {"formula": "minimum(inf, maximum(dy, -inf))"},
    "chosen": {"formula": "where(1 < 2, dy, 0)"},
    "both": {"formula": "where(x > 0, dy, dy)"},
    "constant": {"formula": "k * dy", "constants": {"k": 1}},
    "a list": {"formula": ["dy"]},
}
BUSY: dict[str, Any] = {
    "scale": {"scale": 2},
    "noise": {"gradient_noise": {"stddev": 0.1}},
    "clip": {"clip": {"min": -math.inf, "max": 1}},
    "NaN where x is infinite": {"formula": "dy + 0 * x"},
    "zero": "zero",
    "one side": {"formula": "where(x > 0, dy, 0)"},
    "the tensor": {"formula": "x"},
    "a key": {"registered": "Neg"},
}


def idle_notes(patch: dict[str, Any], *nodes: Any) -> list[str]:
    rule = {"name": "r", "match": {"name": "a"}, "patch": patch}
    result = applied(rule, [node("x", "Placeholder"), *(nodes or [node("a", "Tanh", "x")])])
    return [note for note in result.report["notes"] if "changes nothing" in note]


@pytest.mark.parametrize("case", IDLE)
@pytest.mark.parametrize("at", ["outputs", "inputs"])
def test_a_filter_that_gives_dy_is_named(case: str, at: str) -> None:
    told = idle_notes({"filter_gradient": IDLE[case], "at": at})
    assert told == ["rule 'r' changes nothing: its gradient gives dy as it comes"]


@pytest.mark.parametrize("case", BUSY)
def test_a_filter_that_gives_something_else_is_not(case: str) -> None:
    assert idle_notes({"filter_gradient": BUSY[case]}) == []


OWN, THEIRS = "dy is the own gradient of these ops", "Tanh is the gradient of these ops already"
KEYED = {"_gradient_op_type": "Neg"}
# The gradient of an override, the op, and why it is idle there.
OVERRIDES: list[tuple[Any, str, dict[str, Any], str]] = [
    *((gradient, op, attrs, said) for gradient in ("identity", {"formula": "dy"})
      for op, attrs, said in (("Identity", {}, OWN), ("Tanh", {}, ""), ("Identity", KEYED, ""))),
    *((gradient, op, attrs, said) for gradient in ("Tanh", {"registered": "Tanh"})
      for op, attrs, said in (("Tanh", {}, THEIRS), ("Sigmoid", {}, ""), ("Tanh", KEYED, ""),
                              ("Neg", {"_gradient_op_type": "Tanh"}, THEIRS))),
]  # fmt: skip


@pytest.mark.parametrize(("gradient", "op", "attrs", "said"), OVERRIDES)
def test_an_override_is_idle_where_it_is_there(
    gradient: Any, op: str, attrs: Any, said: str
) -> None:
    told = idle_notes({"override_gradient": gradient}, node("a", op, "x", **attrs))
    assert told == ([f"rule 'r' changes nothing: {said}"] if said else [])


@pytest.mark.parametrize("op_type", ["EnsureShape", "Identity"])
def test_a_called_function_with_an_op_that_has_no_gradient_there_is_named(op_type: str) -> None:
    inner = node("e", op_type, "x", **({"shape": sized(3)} if op_type == "EnsureShape" else {}))
    call = node("call", "PartitionedCall", "x", Tin=["float32"], Tout=["float32"])
    call.attr["f"].func.name = "f"
    body = graphs.function("f", ["x"], [inner], {"y": "e:output:0"})
    rule = on_op("Relu", {"override_gradient": "guided_relu"})
    result = applied(rule, [*net("x:Placeholder r:Relu(call)"), call], functions=[body])
    notes = [note for note in result.report["notes"] if "no gradient of EnsureShape there" in note]
    assert len(notes) == (op_type == "EnsureShape")
