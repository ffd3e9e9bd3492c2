"""Recipes: what they are called, the rules that they make, and what they leave alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.errors import MatchError, RulesError
from graphpatch.recipes import RECIPES, recipe_rules
from graphpatch.rules import load_rules, rules_from
from tests.conftest import RulesFile, Run
from tests.graphs import graphdef, listed
from tests.patches.one_op import net
from tests.test_shown import ran

GIVEN = {
    **dict.fromkeys(("lrp_flat", "lrp_w2", "deep_taylor"), "(of=image)"),
    "reverse": "(at=features, strength=0.3)",
    "freeze": "(scope=backbone/**)",
}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_a_rules_file(name: str) -> None:
    recipe = RECIPES[name]
    rules = recipe_rules(f"@{name}{GIVEN.get(name, '')}")
    assert rules_from(rules)
    assert json.loads(json.dumps(rules)) == rules
    assert all(rule["name"].startswith(f"@{name}") for rule in rules["rules"])
    assert recipe.purpose
    assert recipe.source
    assert load_rules(f"@{name}{GIVEN.get(name, '')}")


def test_parameters() -> None:
    (rule,) = recipe_rules("@reverse(at=features, strength=0.3)")["rules"]
    assert rule["match"] == {"name": "features"}
    assert rule["patch"] == {"filter_gradient": {"reverse": {"strength": 0.3}}}
    for call, scope in (("backbone/**", "backbone/**"), ("scope=FC1", ["FC1", "FC1/**"])):
        (rule,) = recipe_rules(f"@freeze({call})")["rules"]
        assert rule["match"]["inputs"]["0"]["name"] == scope
    several, *_, single = recipe_rules("@lrp_epsilon(epsilon=0.5)")["rules"]
    assert several["patch"]["override_gradient"]["constants"] == {"epsilon": 0.5}
    assert single["patch"] == {"override_gradient": {"lrp_epsilon": {"epsilon": 0.5}}}


@pytest.mark.parametrize(
    ("spelled", "message"),
    [
        ("@guided_backpro", "no recipe is called 'guided_backpro'; nearest: guided_backprop"),
        ("@reverse", "'@reverse(at=features, strength=0.3)'"),
        ("@freeze", "@freeze needs scope, which says where; for example: '@freeze(scope="),
        ("@reverse(at=x, strenth=1)", "has no parameter 'strenth'; nearest: strength"),
        ("@reverse(at=x, strength=much)", "strength is 'much', not a number"),
        ("@lrp_epsilon(epsilon=inf)", "epsilon is 'inf', not a finite number"),
        ("@reverse(at=x", "expected @NAME or @NAME(key=value, ...)"),
        ("@deconvnet(x=1)", "@deconvnet has no parameter 'x'; it has: none"),
        ("@deconvnet,@freeze(scope=a)", "a call takes one recipe; apply one after the other"),
        ("@freeze(scope=a), @freeze(scope=b)", "(scope=b)': a call takes one recipe"),
        ("@freeze(\udced\udca0)", "is not UTF-8"),  # bytes that were typed
    ],
)
def test_what_is_no_recipe(spelled: str, message: str) -> None:
    with pytest.raises(RulesError) as caught:
        recipe_rules(spelled)
    assert message in str(caught.value)


DIGITS = Path(__file__).parent.parent / "scripts" / "models" / "digits.pb"


def model(text: str, **constants: float) -> Any:
    """The graph of these ops, which read x and constants by name."""
    return graphdef(
        *net("x:Placeholder"), *(listed(*pair) for pair in constants.items()), *net(text)
    )


LEAKY = "scaled:Mul(slope,x) y:Maximum(scaled,x)"


def told(report: Any) -> list[str]:
    return [note for note in report["notes"] if note.startswith("left alone")]


def test_what_is_left_alone_is_named_of_recipes_alone() -> None:
    graph = model("y:Relu(x) z:Sigmoid(y) gradients/y_grad/Sigmoid:Sigmoid(x)")
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
    assert told(graphpatch.apply([rule], graph).report) == []
    assert told(graphpatch.apply("@guided_backprop", graph).report) == ["left alone: 1 Sigmoid: z"]


RECTIFIERS = ("guided_backprop", "deconvnet", "rectified_gradient", "deeplift", "lrp_epsilon")


AS_ONE = [
    # The graph, what the rules of several ops match of it, and what those of any form do.
    (f"{LEAKY} s:Sigmoid(y) m:Mul(s,y) r:Relu(m)", ["scaled", "y"], ["s", "m"], "@swish: m"),
    ("a:AddV2(x,three) clip:Relu6(a) m:Mul(x,clip) y:RealDiv(m,six) r:Relu6(y)", [],
     ["three", "six", "a", "clip", "m", "y"], "@hard_swish: y"),
    # With a factor no rule takes it, and its Sigmoid is left alone with it.
    ("b:Mul(x,slope) s:Sigmoid(b) m:Mul(x,s) r:Relu(m)", [], [], "@swish: m"),
]  # fmt: skip


@pytest.mark.parametrize("name", RECTIFIERS)
@pytest.mark.parametrize(("text", "rectified", "smooth", "alone"), AS_ONE)
def test_an_activation_of_several_ops_is_one(
    name: str, text: str, rectified: list[str], smooth: list[str], alone: str
) -> None:
    report = graphpatch.apply(f"@{name}", model(text, slope=0.2, three=3, six=6)).report
    ops = [(rule["name"], one["op"]) for rule in report["rules"] for one in rule["matches"]]
    of_any_form = smooth if name in ("deeplift", "lrp_epsilon") else []
    assert [op for _, op in ops] == [*rectified, *of_any_form, "r"]
    assert ops[-1] == (f"@{name}", "r")
    assert told(report) == ([] if of_any_form else [f"left alone: 1 {alone}"])


PARTS = {
    "a scaled ReLU beside x": "a:Mul(x,slope) b:Relu(x) c:Mul(b,slope) y:AddV2(a,c)",
    "a ReLU of what is scaled": "a:Mul(x,slope) b:Mul(x,slope) c:Relu(b) y:AddV2(a,c)",
    "x and a ReLU of -x": "n:Neg(x) r:Relu(n) s:Mul(r,slope) y:AddV2(x,s)",
    "turned by a factor": "p:Relu(x) n:Mul(x,minus) r:Relu(n) s:Mul(r,slope) y:Sub(p,s)",
    "turned by a difference": "p:Relu(x) n:Sub(zero,x) r:Relu(n) s:Mul(r,slope) y:Sub(p,s)",
    "what the ReLU leaves": "p:Relu(x) d:Sub(x,p) s:Mul(d,slope) y:AddV2(p,s)",
    "cut off": "n:Neg(x) p:Relu(x) m:Relu(n) clip:Minimum(p,five) y:Sub(clip,m)",
}
NO_PARTS = {
    "of two layers": "c:MatMul(x,x) r:Relu(c) d:MatMul(r,r) y:AddV2(d,x) z:Relu(y) e:Mul(z,slope)",
    "beside a product": "m:MatMul(x,x) s:Mul(m,x) r:Relu(s) y:AddV2(r,m)",
    "a CReLU": "n:Neg(x) p:Relu(x) m:Relu(n) y:ConcatV2(p,m,one)",
}
UNKNOWN = {
    "divided": "a:RealDiv(x,five) y:Maximum(a,x)",
    "two sums by abs": "a:Abs(x) b:AddV2(a,x) c:Sub(x,a) d:Mul(c,slope) y:AddV2(b,d)",
    "two maxima": "p:Maximum(x,zero) n:Neg(x) m:Maximum(n,zero) s:Mul(m,slope) y:Sub(p,s)",
    "beside zeros as x": "z:ZerosLike(x) p:Maximum(x,z) n:Minimum(z,x) s:Mul(n,slope) y:AddV2(p,s)",
    "a slope that is chosen": "g:Greater(x,zero) m:SelectV2(g,one,slope) y:Mul(m,x)",
    "x without a minimum": "m:Minimum(x,zero) s:Mul(m,slope) y:Sub(x,s)",
}
NUMBERS = {"slope": 0.2, "minus": -1, "zero": 0, "one": 1, "five": 5}


@pytest.mark.parametrize("text", [*PARTS.values(), *NO_PARTS.values()], ids=[*PARTS, *NO_PARTS])
def test_a_leaky_relu_that_is_patched_in_parts_is_named(text: str) -> None:
    notes = graphpatch.apply("@guided_backprop", model(text, **NUMBERS)).report["notes"]
    named = [note[:6] for note in notes if "not seen as one activation" in note]
    assert named == ["Relu '"] * (text in PARTS.values())
    assert text in PARTS.values() or not any("left alone" in note for note in notes)


@pytest.mark.parametrize("text", UNKNOWN.values(), ids=UNKNOWN)
def test_a_leaky_relu_of_a_form_that_no_pattern_knows_is_named(text: str) -> None:
    graph = model(f"{text} m2:MatMul(y,y) r2:Relu(m2)", **NUMBERS)
    [note] = told(graphpatch.apply("@guided_backprop", graph).report)
    assert note.startswith("left alone: ")
    assert "of several ops that no pattern knows: " in note
    with pytest.raises(MatchError, match=r"activations: [12] of several ops that no"):
        graphpatch.apply("@guided_backprop", model(text, **NUMBERS))


def test_a_recipe_that_finds_no_activation_names_those_that_are_there() -> None:
    gelu = "scaled:RealDiv(t,root) cdf:Erf(scaled) sum:AddV2(cdf,one) halved:Mul(t,half)"
    text = f"s:Sigmoid(x) t:Tanh(s) {gelu} gelu:Mul(halved,sum) gradients/g/Tanh:Tanh(gelu)"
    with pytest.raises(graphpatch.MatchError) as caught:
        graphpatch.apply("@guided_backprop", model(text, root=2**0.5, one=1, half=0.5))
    _, patches, there, ready = str(caught.value).splitlines()
    assert patches.startswith("  it patches Relu, Relu6, LeakyRelu")
    assert there == "  the model has none of these; its activations: 1 Sigmoid, 1 Tanh, 1 @gelu"
    assert ready.startswith(
        "  @gelu is a ready pattern of several ops: `graphpatch match MODEL --pat"
    )


REVERSE = {"name": "reversed", "match": {"name": "logits"}}
REVERSE["patch"] = {"filter_gradient": {"reverse": {}}}


@pytest.mark.parametrize("recipe", ["@guided_backprop", "@lrp_flat(of=image)"])
def test_a_recipe_is_taken_off_as_one(recipe: str, tmp_path: Path) -> None:
    """Of @lrp_flat no rule has just that name."""
    patched, name = graphpatch.apply(recipe, DIGITS), recipe.partition("(")[0]
    both = graphpatch.apply([REVERSE], patched)
    reverted = graphpatch.revert(both, name)
    assert reverted.report["left"] == ["reversed"]
    assert len(reverted.report["rules"]) == len(load_rules(recipe)) > 1
    assert reverted.graph_def() == graphpatch.apply([REVERSE], DIGITS).graph_def()
    alone = graphpatch.revert(both, f"{name}: leaky and parametric ReLUs").report
    assert alone["rules"] == [f"{name}: leaky and parametric ReLUs"]
    assert alone["ops"] == {"restored": 0, "dropped": 0}
    both.save(tmp_path / "p.pb")
    lines = ran("revert", tmp_path / "p.pb", "--rule", name, "--dry-run")[1].splitlines()
    assert lines[1:3] == [f"  taken off: {name}", "  left: reversed"]


def test_of_a_recipe_that_was_called_twice_the_id_is_asked_for() -> None:
    twice = [load_rules(f"@reverse(at={at})")[0] for at in ("logits", "image")]
    with pytest.raises(graphpatch.PatchError, match="'@reverse' is each of 2 rules; give the id"):
        graphpatch.revert(graphpatch.apply(twice, DIGITS), "@reverse")


@pytest.mark.parametrize(
    ("recipe", "text", "op"),
    [
        ("@straight_through", "round:Round(x) n:Placeholder lengths:Sign(n, T=int32)", "round"),
        # What a shape gives is no factor.
        ("@deeplift(of=x)", "s:Shape(x) n:Cast(s,SrcT=int32,DstT=float32) r:Sqrt(n) a:Sigmoid(x)"
         " y:RealDiv(a,r)", "a"),
    ],
)  # fmt: skip
def test_numbers_that_are_no_activations_are_left_alone(recipe: str, text: str, op: str) -> None:
    rules = graphpatch.apply(recipe, model(text)).report["rules"]
    assert [match["op"] for rule in rules for match in rule["matches"]] == [op]


NOTHING = [
    *((f"@{name}", "y:Exp(x)", f"rule '@{name}': matched nothing") for name in RECTIFIERS),
    ("@straight_through", "y:Relu(x)", "the model has no Round, Rint, Floor, Ceil, Sign; Fake"),
    ("@lrp_composite", "y:MatMul(x,x)", r"no convolution .*: @lrp_epsilon is the rule"),
    ("@deeplift(of=x2)", "y:Relu(x)", "no tensor is called 'x2'"),
    ("@lrp_flat(of=x2)", "y:Relu(x)", "no tensor is called 'x2'"),
    ("@freeze(scope=nothing/**)", "y:Relu(x)", "rule '@freeze': .*no variables"),
    ("@freeze(scope=fc)", "fc1/w:VariableV2 r:Identity(fc1/w)", "or scope; there are: fc1$"),
]


@pytest.mark.parametrize(("recipe", "text", "message"), NOTHING)
def test_a_recipe_that_finds_nothing(recipe: str, text: str, message: str) -> None:
    with pytest.raises(MatchError) as caught:
        graphpatch.apply(recipe, model(text))
    assert re.search(message, str(caught.value), re.DOTALL)


def test_a_recipe_on_what_another_one_patched_is_refused_and_not_checked_as_applied() -> None:
    """No rule of @lrp_epsilon must match, and each of its ops was patched: check said "applied"."""
    patched = graphpatch.apply("@guided_backprop", model("y:Relu(x) z:Exp(y)"))
    assert graphpatch.check("@guided_backprop", patched).ok
    for recipe in ("@lrp_epsilon", "@deconvnet"):
        assert graphpatch.check(recipe, patched).missing == {recipe: "has not been applied"}
        with pytest.raises(MatchError, match="rule '@guided_backprop' has patched Relu ops of"):
            graphpatch.apply(recipe, patched)


def test_a_tensor_is_reversed_by_its_name() -> None:
    by_op, by_tensor = (
        graphpatch.apply(f"@reverse(at={at})", DIGITS) for at in ("logits", "logits:0")
    )
    nodes = [[node.name for node in result.graph_def().node] for result in (by_op, by_tensor)]
    assert nodes[0] == nodes[1]
    with pytest.raises(graphpatch.GraphpatchError, match="has no output 3"):
        graphpatch.apply("@reverse(at=logits:3)", DIGITS)


def test_the_command(run_cli: Run, tmp_path: Path) -> None:
    listed = [line for line in run_cli("recipes").stdout.splitlines() if line.startswith("@")]
    assert listed == [recipe.spelled for recipe in RECIPES.values()]
    assert len(run_cli("recipes", "--json").json["recipes"]) == len(RECIPES)
    saved = tmp_path / "rules.json"
    for name in ("guided_backprop", "@guided_backprop"):
        assert run_cli("recipes", name, "--save", saved).code == 0
        written = json.loads(saved.read_text())
        assert written == {**recipe_rules("@guided_backprop"), "written": written["written"]}
    assert run_cli("recipes", "--save", saved).code == 2
    assert (
        graphpatch.apply(saved, DIGITS).report
        == graphpatch.apply("@guided_backprop", DIGITS).report
    )


def test_rules_without_ops_are_left_out_of_the_text(run_cli: Run, rules_file: RulesFile) -> None:
    text = run_cli("apply", "@guided_backprop", DIGITS, "--dry-run").stdout
    assert [line for line in text.splitlines() if line.startswith("  @")] == [
        "  @guided_backprop  2 Relu, 1 Relu6  (function)"
    ]
    result = graphpatch.apply("@guided_backprop", DIGITS)
    assert re.fullmatch(r"<.*, 1 rule, .*; @guided_backprop: 2 Relu, 1 Relu6>", repr(result))
    assert len(result.report["rules"]) == 5
    rare = {"name": "rare", "match": {"op": "Cos"}, "expect": {"min": 0}}
    rules = rules_file({**rare, "patch": {"stop_gradient": True}})
    text = run_cli("apply", rules, DIGITS, "--dry-run").stdout
    assert "  rare  no ops  (nothing)" in text.splitlines()


def test_no_rule_is_needed_for_a_meta(run_cli: Run, rules_file: RulesFile, tmp_path: Path) -> None:
    done = run_cli("apply", rules_file(), DIGITS, "-o", tmp_path / "model.meta")
    assert done.code == 0, done.stderr
    meta, original = (
        graphpatch.load(path).node_count for path in (tmp_path / "model.meta", DIGITS)
    )
    assert meta == original
    done = run_cli("apply", rules_file(), DIGITS, "-o", tmp_path / "model.pb")
    assert done.code == 1
    assert "expected at least 1 rule, found none" in done.stderr


NORM = "y:FusedBatchNormV3(x,two,two,two,two,is_training={}) z:Abs(y)"
GREATER = "b:Greater(x,two) c:Cast(b,SrcT=bool,DstT=float32) y:Relu(x) z:Mul(y,c)"
SIZE = "n:TensorArraySizeV3(two,a) y:TensorArrayGatherV3(two,n,a,dtype=float32)"
WITHOUT_RULE = [
    # Products of what is fed, where no input is named; a factor that is a scalar is none.
    ("@deeplift", "a:Tanh(x) y:Mul(a,x)", "no rule for 1 Mul (y)"),
    ("@deeplift", "a:Tanh(x) y:Mul(a,two) z:Exp(y)", ""),
    # With it, all that has no rule: products over the batch, what jumps, functions of others.
    ("@deeplift(of=x)", "a:Tanh(x) y:Mul(a,x) z:Exp(y) w:Pow(z,two)", ""),
    ("@deeplift(of=x)", "a:Sigmoid(x) y:MatMul(a,x) z:Tan(y)", "1 MatMul (y), 1 Tan (z)"),
    ("@deeplift(of=x)", "a:Sigmoid(x) y:Round(a) z:Round(y)", "no rule for 2 Round (y, z):"),
    ("@deeplift(of=a)", "a:Sigmoid(x) b:Sigmoid(a) y:Mul(b,x) z:Tan(x)", ""),
    ("@deeplift(of=x)", NORM.format(False), ""),
    ("@deeplift(of=x)", NORM.format(True), "BatchNormV3 (y):"),
    ("@lrp_flat(of=x)", "a:Relu(x) y:TensorArrayScatterV3(two,two,a,two) z:Tile(a,two)", ""),
    # A choice or a mask by values of it, not by its shape; one factor of an Einsum is a weight.
    ("@deeplift(of=x)", "a:Tanh(x) b:Greater(x,two) y:SelectV2(b,a,x)", "for 1 SelectV2 (y)"),
    ("@deeplift(of=x)", GREATER, "no rule for 1 Mul (z):"),
    ("@deeplift(of=x)", "a:Tanh(x) s:Shape(x) b:Greater(s,two) y:SelectV2(b,a,two)", ""),
    ("@deeplift(of=x)", f"a:Tanh(x) {SIZE}", ""),
    ("@deeplift(of=x)", "a:Tanh(x) y:Einsum(a,two,N=2) z:Einsum(a,y,N=2)", "for 1 Einsum (z)"),
    ("@lrp_flat(of=x)", "a:Relu(x) y:MatMul(a,two) z:AddV2(y,a) w:Neg(z)", ""),
    ("@lrp_flat(of=x)", "a:Relu(x) y:Mul(a,x) z:Exp(y)", "1 Mul (y), 1 Exp (z)"),
    ("@deep_taylor(of=x)", "a:Relu(x) y:Mul(a,two) z:AddN(a,y)", "no rule for 1 AddN (z)"),
]


@pytest.mark.parametrize(("recipe", "text", "named"), WITHOUT_RULE)
def test_ops_whose_sums_need_not_add_up_are_named(recipe: str, text: str, named: str) -> None:
    notes = graphpatch.apply(recipe, model(text, two=2)).report["notes"]
    told_of = [note for note in notes if note.startswith("no rule for")]
    assert len(told_of) == bool(named)
    assert all(named in note for note in told_of)


def test_a_scalar_that_is_fed_is_no_factor() -> None:
    graph = graphdef(*net("x:Placeholder k:Placeholder a:Tanh(x) y:Mul(a,k)"))
    assert "no rule for 1 Mul (y)" in str(graphpatch.apply("@deeplift", graph).report["notes"])
    graph.node[1].attr["shape"].shape.SetInParent()
    assert "no rule" not in str(graphpatch.apply("@deeplift", graph).report["notes"])
