"""What `apply` and `ops` say beside what was asked: hints, notes, and how they are folded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphpatch.cli.apply import fold_notes
from tests.conftest import Ran, RulesFile, Run
from tests.graphs import node, saved, v1_loop
from tests.patches.one_op import net

RELUS = net("x:Placeholder a/relu:Relu(x) b/relu:Relu(a/relu)")
STOP = {"match": {"op": "Relu"}, "patch": {"stop_gradient": True}}
OLD = "were built before"


@pytest.fixture
def apply(run_cli: Run, rules_file: RulesFile, tmp_path: Path) -> Callable[..., Ran]:
    """Apply rules to a graph of these nodes: `apply(nodes, rule, ..., more=("--json",))`."""

    def run(nodes: list[Any], *rules: Any, more: tuple[Any, ...] = ()) -> Any:
        return run_cli("apply", rules_file(*rules), saved(tmp_path, *nodes), *more)

    return run


def test_a_filter_of_what_an_earlier_rule_replaced(apply: Callable[..., Ran]) -> None:
    guided = {"name": "guided", "match": {"op": "Relu"}, "patch": {"override_gradient": "zero"}}
    clip = {"clip": {"min": -1, "max": 1}}
    late = {"match": {"op": "Relu", "name": "b/*"}, "patch": {"filter_gradient": clip}}
    done = apply(RELUS, {**guided, "emit": "function"}, late, more=("--json",))
    [_, filtered] = done.json["outputs"][0]["rules"]
    assert filtered["matches"] == [{"body": "main", "op": "b/relu", "type": "Relu"}]
    assert apply(RELUS, late, guided).code == 0


def test_a_loop_goes_to_a_meta(apply: Callable[..., Ran], tmp_path: Path) -> None:
    loop = [node("x", "Placeholder"), *v1_loop("x", node("s", "Relu", "switch:1"), gives="s")]
    said = "  note: v1 loops or branches: tf.gradients needs their contexts"
    assert said in apply(loop, STOP).stdout
    out = apply(loop, STOP, more=("-o", tmp_path / "m.meta"))
    assert (out.code, "note" in out.stdout) == (0, False)


def test_gradients_that_were_built_before(apply: Callable[..., Ran]) -> None:
    built = net("train/gradients/a/relu_grad/ReluGrad:ReluGrad(b/relu, a/relu)")
    said = apply([*RELUS, *built], STOP).stdout
    assert f"  note: train/gradients/** (1 op) are gradients that {OLD}" in said
    # A scope that a program called so.
    assert OLD not in apply([*RELUS, *net("policy/gradients/relu:Relu(b/relu)")], STOP).stdout


def test_a_freeze_says_nothing_of_built_gradients(apply: Callable[..., Ran]) -> None:
    training = net("""w:VariableV2 w/read:Identity(w) b:VariableV2 b/read:Identity(b) x:Placeholder
        y:AddN(x, w/read, b/read, N=3) relu:Relu(y)
        gradients/relu_grad/ReluGrad:ReluGrad(relu, relu)
        update_w/Apply:ApplyGradientDescent(w, x, gradients/relu_grad/ReluGrad)""")
    frozen, stopped = (
        {"match": {"name": f"{name}/read"}, "patch": {"freeze": True}} for name in "wb"
    )
    for rules, is_said in (((frozen,), False), ((frozen, STOP), True), ((frozen, stopped), True)):
        said = apply(training, *rules, more=("--dry-run",)).stdout
        assert (OLD in said, "note: frozen: " in said) == (is_said, True)


def test_which_gradients_are_to_be_registered(apply: Callable[..., Ran], tmp_path: Path) -> None:
    out = tmp_path / "out.pb"
    must = "  the program that loads it must register these gradients first"

    def said(*gradients: Any) -> list[str]:
        rules = [
            {"match": {"name": name}, "patch": {"override_gradient": one}, "emit": "attr"}
            for name, one in zip(("a/relu", "b/relu"), gradients, strict=False)
        ]
        lines = apply(RELUS, *rules, more=("-o", out)).stdout.splitlines()
        return [line for line in lines[1 + len(rules) :] if "note" not in line]

    ours = [f"{must}: graphpatch.register_gradients({str(out)!r})", "    graphpatch:guided_relu"]
    others = [f"{must}, by tf.RegisterGradient:", "    Foo"]
    assert said({"registered": "Foo"}) == others
    assert said("guided_relu") == ours
    assert said({"registered": "Foo"}, "guided_relu") == ours + others


def test_an_output_without_a_suffix(run_cli: Run, rules_file: RulesFile, tmp_path: Path) -> None:
    saved(tmp_path, *RELUS)
    typed = ("apply", rules_file(STOP), "model.pb", "-o")
    said = run_cli(*typed, "out", cwd=tmp_path).stdout.splitlines()
    assert "  note: out is a file; a / at its end would make it a folder" in said
    said = run_cli(*typed, "out/", cwd=tmp_path).stderr
    assert "out/ is a file, and models go to a folder" in said
    assert "is a file" not in run_cli(*typed, "new/", cwd=tmp_path).stdout


def test_a_glob_that_stays_in_its_scope(run_cli: Run, tmp_path: Path) -> None:
    model = saved(tmp_path, *RELUS)
    done = run_cli("ops", model, "*relu", "x")
    assert (done.code, done.stdout.splitlines()[0]) == (1, "x")
    why = "* stays within a scope: '**/*relu' matches 2"
    assert done.stderr == f"graphpatch: {model}: no op is named '*relu'; {why}\n"


def test_notes_that_differ_in_a_function_are_one() -> None:
    notes = ["function f: it is so", "another", "function g: it is so", "function h: it is not"]
    assert fold_notes(notes) == ["functions f, g: it is so", "another", "function h: it is not"]
