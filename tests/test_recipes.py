"""Recipes: what they are called, the rules that they make, and what they leave alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.errors import MatchError, RulesError
from graphpatch.recipes import RECIPES, recipe_rules
from graphpatch.rules import load_rules, rules_from
from tests.graphs import graphdef, node

GIVEN = {"reverse": "(at=features, strength=0.3)", "freeze": "(scope=backbone/**)"}


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
    (rule,) = recipe_rules("@reverse(at=a/features:0)")["rules"]
    assert rule["match"] == {"name": "a/features"}
    assert rule["patch"]["at"] == "output:0"
    (rule,) = recipe_rules("@freeze(backbone/**)")["rules"]
    assert rule["match"]["inputs"]["0"]["name"] == "backbone/**"
    (rule,) = recipe_rules("@freeze(scope=FC1)")["rules"]
    assert rule["match"]["inputs"]["0"]["name"] == ["FC1", "FC1/**"]
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
        ("@reverse(at=x", "expected @NAME or @NAME(key=value, ...)"),
        ("@deconvnet(x=1)", "@deconvnet has no parameter 'x'; it has: none"),
        ("@", "expected @NAME"),
        ("@freeze(\udced\udca0)", "is not UTF-8"),  # bytes that were typed
    ],
)
def test_what_is_no_recipe(spelled: str, message: str) -> None:
    with pytest.raises(RulesError) as caught:
        recipe_rules(spelled)
    assert message in str(caught.value)


DIGITS = Path(__file__).parent.parent / "scripts" / "models" / "digits.pb"


def op_types(path: Path) -> list[str]:
    return sorted(node.op for graph in graphpatch.load(path).graphs for node in graph.main)


def test_what_is_left_alone_is_named() -> None:
    report = graphpatch.apply("@guided_backprop", DIGITS).report
    assert sum(len(rule["matches"]) for rule in report["rules"]) > 0
    softmaxes = op_types(DIGITS).count("Softmax")
    told = [note for note in report["notes"] if note.startswith("left alone")]
    assert len(told) == bool(softmaxes)
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
    notes = graphpatch.apply([rule], DIGITS).report["notes"]
    assert not any(note.startswith("left alone") for note in notes)


def leaky(*more: Any) -> Any:
    """Max(x, 0.2 * x), and what else reads it."""
    slope = node("slope", "Const", dtype="float32")
    slope.attr["value"].tensor.dtype = 1
    slope.attr["value"].tensor.float_val.append(0.2)
    scaled = node("scaled", "Mul", "slope", "x")
    return graphdef(node("x", "Placeholder"), slope, scaled, node("y", "Maximum", "scaled", "x"),
                    *more)  # fmt: skip


RECTIFIERS = ("guided_backprop", "deconvnet", "rectified_gradient", "deeplift", "lrp_epsilon")


@pytest.mark.parametrize("name", RECTIFIERS)
def test_an_activation_of_several_ops_is_one(name: str) -> None:
    gate = (node("s", "Sigmoid", "y"), node("m", "Mul", "s", "y"))
    report = graphpatch.apply(f"@{name}", leaky(*gate, node("r", "Relu", "m"))).report
    several, *others, single = report["rules"]
    of_any_form = name in ("deeplift", "lrp_epsilon")
    assert [one["op"] for one in several["matches"]] == ["scaled", "y"]
    assert [one["op"] for one in single["matches"]] == ["r"]
    told = [note for note in report["notes"] if note.startswith("left alone")]
    assert told == ([] if of_any_form else ["left alone: 1 @swish: m"])
    assert [one["op"] for rule in others for one in rule["matches"]] == ["s", "m"] * of_any_form


def turned(*ends: Any) -> Any:
    """The ReLUs of x and of -x, and what reads them."""
    nodes = [node("n", "Neg", "x"), node("p", "Relu", "x"), node("m", "Relu", "n"), *ends]
    return graphdef(node("x", "Placeholder"), of_value("six", 6), *nodes)


def test_halves_of_an_activation_that_are_patched_one_by_one_are_named() -> None:
    clipped = (node("clip", "Minimum", "p", "six"), node("y", "Sub", "clip", "m"))
    for ends, count in ((clipped, 1), ((node("y", "ConcatV2", "p", "m", "axis"),), 0)):
        axis = of_value("axis", 1)
        notes = graphpatch.apply("@guided_backprop", turned(axis, *ends)).report["notes"]
        halves = [one for one in notes if "not seen as one activation" in one]
        assert len(halves) == count
        assert all(
            one.startswith("Relu 'm' and Relu 'p', of the same tensor or its") for one in halves
        )


def of_value(name: str, value: float) -> Any:
    found = node(name, "Const", dtype="float32")
    found.attr["value"].tensor.dtype = 1
    found.attr["value"].tensor.float_val.append(value)
    return found


def test_ops_inside_a_swish_with_a_factor_are_left_alone_with_it() -> None:
    model = graphdef(
        node("x", "Placeholder"),
        of_value("beta", 1.7),
        node("b", "Mul", "x", "beta"),
        node("s", "Sigmoid", "b"),
        node("m", "Mul", "x", "s"),
        node("r", "Sigmoid", "m"),
    )
    for name in ("deeplift", "lrp_epsilon"):
        report = graphpatch.apply(f"@{name}", model).report
        assert [one["op"] for rule in report["rules"] for one in rule["matches"]] == ["r"]
        told = [note for note in report["notes"] if note.startswith("left alone")]
        assert told == ["left alone: 1 @swish: m"]


@pytest.mark.parametrize("name", RECTIFIERS)
def test_ops_inside_a_hard_swish_are_not_patched_by_themselves(name: str) -> None:
    model = graphdef(
        node("x", "Placeholder"),
        of_value("three", 3),
        of_value("six", 6),
        node("a", "AddV2", "x", "three"),
        node("clip", "Relu6", "a"),
        node("m", "Mul", "x", "clip"),
        node("y", "RealDiv", "m", "six"),
        node("r", "Relu6", "y"),
    )
    report = graphpatch.apply(f"@{name}", model).report
    assert [one["op"] for one in report["rules"][-1]["matches"]] == ["r"]
    told = [note for note in report["notes"] if note.startswith("left alone")]
    as_one = [rule["name"] for rule in report["rules"][:-1] if rule["matches"]]
    assert as_one == [f"@{name}: hard_swish"] * (name in ("deeplift", "lrp_epsilon"))
    assert told == ([] if as_one else ["left alone: 1 @hard_swish: y"])


@pytest.mark.parametrize("name", RECTIFIERS)
def test_of_the_rules_of_a_recipe_one_must_match(name: str) -> None:
    graphpatch.apply(f"@{name}", leaky())
    model = graphdef(node("x", "Placeholder"), node("y", "Exp", "x"))
    with pytest.raises(graphpatch.MatchError, match=f"rule '@{name}': matched nothing"):
        graphpatch.apply(f"@{name}", model)


def test_a_recipe_that_finds_no_activation_names_those_that_are_there() -> None:
    model = graphdef(
        node("x", "Placeholder"),
        node("s", "Sigmoid", "x"),
        node("t", "Tanh", "s"),
        of_value("root", 2**0.5),
        of_value("one", 1),
        of_value("half", 0.5),
        node("scaled", "RealDiv", "t", "root"),
        node("cdf", "Erf", "scaled"),
        node("sum", "AddV2", "cdf", "one"),
        node("halved", "Mul", "t", "half"),
        node("gelu", "Mul", "halved", "sum"),
        node("gradients/gelu_grad/Tanh", "Tanh", "gelu"),
    )
    with pytest.raises(graphpatch.MatchError) as caught:
        graphpatch.apply("@guided_backprop", model)
    _, patches, there, ready = str(caught.value).splitlines()
    assert patches.startswith("  it patches Relu, Relu6, LeakyRelu")
    assert there == "  the model has none of these; its activations: 1 Sigmoid, 1 Tanh, 1 @gelu"
    assert '{"match": {"pattern": "@gelu"}' in ready


def test_what_tf_gradients_added_is_no_activation_that_is_left_alone() -> None:
    model = graphdef(
        node("x", "Placeholder"),
        node("y", "Softplus", "x"),
        node("z", "Sigmoid", "y"),
        node("gradients/y_grad/Sigmoid", "Sigmoid", "x"),
    )
    notes = graphpatch.apply("@guided_backprop", model).report["notes"]
    assert [one for one in notes if "left alone" in one] == ["left alone: 1 Sigmoid: z"]


def test_straight_through_leaves_integers_alone() -> None:
    integer = node("lengths", "Sign", "count")
    integer.attr["T"].type = 3
    model = graphdef(
        node("x", "Placeholder"),
        node("round", "Round", "x"),
        node("count", "Placeholder"),
        integer,
    )
    [rule] = graphpatch.apply("@straight_through", model).report["rules"]
    assert [one["op"] for one in rule["matches"]] == ["round"]


def test_a_recipe_that_finds_nothing_is_an_error() -> None:
    with pytest.raises(graphpatch.GraphpatchError, match="@freeze"):
        graphpatch.apply("@freeze(scope=nothing/**)", DIGITS)


def test_a_net_without_convolutions_is_for_another_recipe() -> None:
    model = graphdef(
        node("x", "Placeholder"), node("w", "Placeholder"), node("y", "MatMul", "x", "w")
    )
    with pytest.raises(graphpatch.MatchError, match=r"no convolution .*: @lrp_epsilon is the rule"):
        graphpatch.apply("@lrp_composite", model)


def test_a_tensor_is_reversed_by_its_name() -> None:
    by_op, by_tensor = (
        graphpatch.apply(f"@reverse(at={at})", DIGITS).model for at in ("logits", "logits:0")
    )
    nodes = [[one.name for one in model.graphs[0].main] for model in (by_op, by_tensor)]
    assert nodes[0] == nodes[1]
    with pytest.raises(graphpatch.GraphpatchError, match="has no output 3"):
        graphpatch.apply("@reverse(at=logits:3)", DIGITS)


def test_the_command(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    listed = run_cli("recipes")
    assert listed.code == 0
    assert [line for line in listed.stdout.splitlines() if line.startswith("@")] == [
        recipe.spelled for recipe in RECIPES.values()
    ]
    assert len(run_cli("recipes", "--json").json["recipes"]) == len(RECIPES)
    saved = tmp_path / "rules.json"
    assert run_cli("recipes", "guided_backprop", "--save", saved).code == 0
    written = json.loads(saved.read_text())
    assert written == {**recipe_rules("@guided_backprop"), "written": written["written"]}
    assert run_cli("recipes", "@guided_backprop", "--save", saved).code == 0
    assert run_cli("recipes", "--save", saved).code == 2
    done = run_cli("apply", saved, DIGITS, "--dry-run", "--json")
    other = run_cli("apply", "@guided_backprop", DIGITS, "--dry-run", "--json")
    assert done.json["outputs"][0]["rules"] == other.json["outputs"][0]["rules"]


def test_rules_of_a_recipe_without_ops_are_left_out_of_the_text(
    run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    told = run_cli("apply", "@guided_backprop", DIGITS, "--dry-run").stdout
    assert [line for line in told.splitlines() if line.startswith("  @")] == [
        "  @guided_backprop  2 Relu, 1 Relu6  (function)"
    ]
    rules = tmp_path / "rules.json"
    rare = {"name": "rare", "match": {"op": "Cos"}, "expect": {"min": 0}}
    rare["patch"] = {"stop_gradient": True}
    rules.write_text(json.dumps({"version": 1, "rules": [rare]}))
    told = run_cli("apply", rules, DIGITS, "--dry-run").stdout
    assert "  rare  no ops  (nothing)" in told.splitlines()
    done = run_cli("apply", "@guided_backprop", DIGITS, "--dry-run", "--json")
    assert len(done.json["outputs"][0]["rules"]) == 5


def test_no_rule_is_needed_to_write_a_meta_graph(
    run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    rules = tmp_path / "empty.json"
    rules.write_text('{"version": 1, "rules": []}')
    done = run_cli("apply", rules, DIGITS, "-o", tmp_path / "model.meta")
    assert done.code == 0, done.stderr
    assert op_types(tmp_path / "model.meta") == op_types(DIGITS)
    done = run_cli("apply", rules, DIGITS, "-o", tmp_path / "model.pb")
    assert done.code == 1
    assert "expected at least 1 rule, found none" in done.stderr


def test_what_has_no_step_functions_is_told_what_has_other_gradients() -> None:
    model = graphdef(node("x", "Placeholder"), node("y", "Relu", "x"))
    with pytest.raises(MatchError, match="the model has no Round, Rint, Floor, Ceil, Sign; Fake"):
        graphpatch.apply("@straight_through", model)
