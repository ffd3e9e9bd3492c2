"""`"on": "match"`: a matched subgraph as one op, without TensorFlow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch import names
from graphpatch.errors import PatchError, RulesError
from graphpatch.graph import provenance
from graphpatch.graph.node import Body
from tests import graphs
from tests.graphs import const, function, node
from tests.patches.one_op import applied

SWISH = "x:_ -> sigmoid:Sigmoid -> mul:Mul; x -> mul"
FORMULA = {"formula": "dy * sigmoid(x)"}

X = node("x", "Placeholder")
ONE = (X, node("s", "Sigmoid", "x"), node("m", "Mul", "s", "x"))


def whole_rule(gradient: Any = FORMULA, pattern: Any = SWISH, **keys: Any) -> dict[str, Any]:
    patch = {"override_gradient": gradient, "on": "match"}
    return {"match": {"pattern": pattern}, "patch": patch, **keys}


def reads(body: Body, name: str) -> tuple[str, ...]:
    return body.node(name).inputs


def test_the_ops_stay_and_the_last_gets_out_of_the_way() -> None:
    result = applied(whole_rule(emit="function"), *ONE, node("y", "Identity", "m"))
    graph = result.model.graphs[0]
    main = graph.main
    assert {one.name for one in main} == {"x", "s", "m/forward", "y", "m/guard", "m/stop", "m"}
    assert main.node("m/forward").op == "Mul"
    assert reads(main, "m") == ("m/guard", "m/stop")
    assert reads(main, "m/guard") == ("x",)
    assert reads(main, "y") == ("m",)
    assert main.node("m").op in graph.library.signatures
    (entry,) = result.report["rules"]
    assert entry["emit"] == "function"
    assert [one["op"] for one in entry["matches"]] == ["s", "m"]
    assert entry["matches"][1]["captures"] == {"sigmoid": "s", "mul": "m"}


def test_a_match_without_a_dtype_is_told() -> None:
    mul = node("m", "Mul", "s", "x")
    mul.attr["T"].placeholder = "T"
    with pytest.raises(PatchError, match=r"ends in .*: the dtype of x0 is not known"):
        applied(whole_rule(pattern="Mul -> Relu"), X, ONE[1], mul, node("y", "Relu", "m"))


def test_what_gets_no_gradient_is_read_behind_a_stop() -> None:
    pattern = "a:_ -> m:0; b:_ -> m:1; m:Sub -> t:Tanh"
    nodes = (X, node("w", "Placeholder"), node("m", "Sub", "w", "x"), node("t", "Tanh", "m"))
    gradient = {"formula": ["dy * x1", None]}
    result = applied(whole_rule(pattern=pattern, gradient=gradient, emit="function"), *nodes)
    main = result.model.graphs[0].main
    first, second, output = reads(main, "t")
    assert (first, output) == ("t/guard", "t/stop")
    assert main.node(second).op == "StopGradient"
    assert reads(main, second) == ("x",)


def test_one_after_the_other_in_a_function() -> None:
    """The second match reads what the first gives, under the name that it has by then."""
    inner = [
        node("s", "Sigmoid", "a"),
        node("m", "Mul", "s:y:0", "a"),
        node("t", "Sigmoid", "m:z:0"),
        node("n", "Mul", "t:y:0", "m:z:0"),
    ]
    f = function("f", ["a"], inner, {"out": "n:z:0"})
    call = node("call", "f", "x")
    (_, body, *_) = applied(whole_rule(), X, call, functions=[f]).model.graphs[0].bodies
    filtered = reads(body, "t")[0]  # the match itself reads what lets no zeros through
    assert reads(body, "n/forward") == ("t:y:0", filtered)
    assert reads(body, "n")[0] == reads(body, names.op_of(filtered))[0] == body.node("m").tensor(0)
    assert body.node("m").tensor(0) != "m:z:0"
    assert body.ret == {"out": body.node("n").tensor(0)}


def test_a_constant_inside_may_be_shared() -> None:
    pattern = "x:_ -> m:Mul; half:Const -> m -> t:Tanh"
    nodes = [X, const("c")]
    for name in "ab":
        nodes += [node(f"m{name}", "Mul", "x", "c"), node(f"t{name}", "Tanh", f"m{name}")]
    (entry,) = applied(whole_rule(pattern=pattern), *nodes).report["rules"]
    assert [one["op"] for one in entry["matches"]] == ["c", "ma", "ta", "mb", "tb"]


OPEN = (*ONE, *(node(f"y{n}", "Neg", "s") for n in range(5)))
INSIDE = (
    "Sigmoid 's' is inside the match, and is read outside by Neg 'y0', Neg 'y1', Neg 'y2' and 2 "
    "more"
)


def test_an_op_inside_that_is_read_outside_keeps_its_gradient_there() -> None:
    result = applied(whole_rule(), *OPEN)
    kept = f"rule 'rule 1': {INSIDE}; what flows back from there keeps its own gradient"
    assert kept in result.report["notes"]
    main = result.model.graphs[0].main
    assert {reads(main, f"y{n}") for n in range(5)} == {("s",)}
    assert reads(main, "s") == ("x",)
    assert not any("read outside" in one for one in applied(whole_rule(), *ONE).report["notes"])


@pytest.mark.parametrize(
    "patch",
    [
        {"surrogate_gradient": "x ** 3"},
        {"straight_through": True},
        {"filter_gradient": {"scale": 0.5}},
        {"stop_gradient": True},
    ],
    ids=lambda patch: next(iter(patch)),
)
def test_other_patches_refuse_what_is_read_outside(patch: Any) -> None:
    asked = {"match": {"pattern": SWISH}, "patch": {**patch, "on": "match"}}
    with pytest.raises(PatchError) as error:
        applied(asked, *OPEN)
    assert INSIDE in str(error.value)


REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    (
        "a source inside",
        ONE,
        {"pattern": "x:Placeholder -> s:Sigmoid -> m:Mul; x -> m"},
        "Placeholder 'x' is inside the match, so that no gradient would come to it; a tensor from",
    ),
    (
        "two ends",
        (*ONE, node("t", "Tanh", "s")),
        {"pattern": "s:Sigmoid -> m:Mul; s -> t:Tanh"},
        "a match counts as one op where it ends in one op; this ends in: Mul 'm', Tanh 't'",
    ),
    (
        "a key",
        ONE,
        {"gradient": {"registered": "Mine"}},
        "a match as one op has no gradient under a key",
    ),
    ("default", ONE, {"gradient": "default"}, "a match as one op has no gradient under a key"),
    ("emit", ONE, {"emit": "attr"}, "its gradient is stored as a function"),
    (
        "a gradient for another op",
        ONE,
        {"gradient": "guided_relu"},
        'not for a match as one op; where it is meant all the same, write it as {"formula": "wh',
    ),
    (
        "a gradient for one input",
        (X, node("z", "Placeholder"), node("s", "Sigmoid", "x"), node("m", "Mul", "s", "z")),
        {"gradient": "arctan_surrogate", "pattern": "x:_ -> s:Sigmoid -> m:Mul:0; z:_ -> m:1"},
        "arctan_surrogate is for one input; the match reads 2: x0 = x, x1 = z; take constants",
    ),
    (
        "the wrong count",
        ONE,
        {"gradient": {"formula": ["dy", "dy"]}},
        "the match that ends in Mul 'm': the list has 2 formulas, and the op has 1 input",
    ),
    (
        "an attr",
        ONE,
        {"gradient": {"formula": "dy * attr.alpha"}},
        "the op has no attr 'alpha'",
    ),
    (
        "an integer",
        (*ONE[:2], node("m", "Cast", "s", SrcT="float32", DstT="int32")),
        {"pattern": "x:_ -> s:Sigmoid -> m:Cast"},
        "output 0 of Cast 'm' is int32, which carries no gradient",
    ),
    (
        "a border of a loop",
        (X, node("e", "Enter", "x", frame_name="f"), node("t", "Tanh", "e")),
        {"pattern": "x:_ -> e:Enter -> t:Tanh"},
        "Enter 'e' leads into or out of a loop or branch",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("gradient", "emit"),
    [
        ("arctan_surrogate", "construction"),
        ("zero", "function"),
        ({"clip": {"min": -1, "max": 1}}, "function"),
    ],
    ids=["for steps", "for every op", "that is not linear"],
)
def test_gradients_of_the_library_that_a_match_takes(gradient: Any, emit: str) -> None:
    [entry] = applied(whole_rule(gradient), *ONE).report["rules"]
    assert entry["emit"] == emit


@pytest.mark.parametrize(
    ("nodes", "keys", "said"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_refused(nodes: Any, keys: Any, said: str) -> None:
    with pytest.raises(PatchError) as error:
        applied(whole_rule(**keys), *nodes)
    assert said in str(error.value)


def test_a_returned_tensor_inside() -> None:
    inner = [node("s", "Sigmoid", "a"), node("m", "Mul", "s:y:0", "a")]
    f = function("f", ["a"], inner, {"out": "m:z:0", "too": "s:y:0"})
    notes = applied(whole_rule(), X, node("call", "f", "x"), functions=[f]).report["notes"]
    assert any("read outside by the output 'too' of the function" in one for one in notes)


def test_other_kinds_go_to_ops() -> None:
    spec = {"match": {"pattern": SWISH}, "patch": {"backward_as": {}, "on": "match"}}
    with pytest.raises(RulesError, match="a match as one op, does not go with backward_as"):
        applied(spec, *ONE)


@pytest.mark.parametrize("op", ["s", "m/forward"])
def test_no_rule_reaches_what_is_behind_it(op: str) -> None:
    model = applied(whole_rule(name="swish"), *ONE).model
    assert provenance.shadow(model.graphs[0].main.node(op)) == "swish"
    with pytest.raises(PatchError, match=r"no gradient reaches .* since rule 'swish'"):
        graphpatch.apply([{"match": {"name": op}, "patch": {"stop_gradient": True}}], model)


def test_not_twice() -> None:
    model = applied(whole_rule(), *ONE).model
    with pytest.raises(PatchError, match="has been applied to this model already"):
        graphpatch.apply([whole_rule()], model)


def test_saved_matches_do_the_same(tmp_path: Path, run_cli: Any) -> None:
    nodes = [*ONE, node("t", "Sigmoid", "m"), node("n", "Mul", "m", "t")]
    model = graphpatch.load(graphs.saved(tmp_path, *nodes))
    rules, saved = tmp_path / "rules.json", tmp_path / "saved.json"
    rules.write_text(json.dumps({"version": 1, "rules": [whole_rule()]}))
    assert run_cli("match", str(rules), model.path, "--save", str(saved)).code == 0
    written = json.loads(saved.read_text())["rules"]
    assert len(written) == 2
    once, again = (graphpatch.apply(graphpatch.load_rules(r), model) for r in (rules, saved))
    assert graphs.unsigned(once.model.graphs[0]) == graphs.unsigned(again.model.graphs[0])
