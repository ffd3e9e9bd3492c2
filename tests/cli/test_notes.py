"""What `apply` and `ops` say beside what was asked: hints, notes, and how they are folded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphpatch.cli.apply import fold_notes
from tests.graphs import node, saved, v1_loop

Run = Callable[..., Any]
X = node("x", "Placeholder")
RELUS = (X, node("a/relu", "Relu", "x"), node("b/relu", "Relu", "a/relu"))
STOP = {"match": {"op": "Relu"}, "patch": {"stop_gradient": True}}


def test_a_filter_of_what_an_earlier_rule_replaced(
    run_cli: Run, rules_file: Callable[..., Path], tmp_path: Path
) -> None:
    guided = {"name": "guided", "match": {"op": "Relu"}, "patch": {"override_gradient": "zero"}}
    clip = {"clip": {"min": -1, "max": 1}}
    late = {"match": {"op": "Relu", "name": "b/*"}, "patch": {"filter_gradient": clip}}
    model = saved(tmp_path, *RELUS)
    done = run_cli("apply", rules_file({**guided, "emit": "function"}, late), model, "--json")
    [_, filtered] = done.json["outputs"][0]["rules"]
    assert filtered["matches"] == [{"body": "main", "op": "b/relu", "type": "Relu"}]
    assert run_cli("apply", rules_file(late, guided), model).code == 0


def test_a_loop_goes_to_a_meta(
    run_cli: Run, rules_file: Callable[..., Path], tmp_path: Path
) -> None:
    loop = v1_loop("x", node("s", "Relu", "switch:1"), gives="s")
    model = saved(tmp_path, X, *loop)
    said = "  note: v1 loops or branches: tf.gradients needs their contexts"
    assert said in run_cli("apply", rules_file(STOP), model).stdout
    out = run_cli("apply", rules_file(STOP), model, "-o", tmp_path / "m.meta")
    assert (out.code, "note" in out.stdout) == (0, False)


def test_gradients_that_were_built_before(
    run_cli: Run, rules_file: Callable[..., Path], tmp_path: Path
) -> None:
    built = node("train/gradients/a/relu_grad/ReluGrad", "ReluGrad", "b/relu", "a/relu")
    model = saved(tmp_path, *RELUS, built)
    assert "  note: train/gradients/** (1 op) are gradients that were built before" in (
        run_cli("apply", rules_file(STOP), model).stdout
    )


def test_what_takes_variables_out_of_an_update_says_nothing_of_built_gradients(
    run_cli: Run, rules_file: Callable[..., Path], tmp_path: Path
) -> None:
    training = (
        *(node("w", "VariableV2"), node("w/read", "Identity", "w")),
        *(node("b", "VariableV2"), node("b/read", "Identity", "b")),
        *(X, node("y", "AddN", "x", "w/read", "b/read", N=3), node("relu", "Relu", "y")),
        node("gradients/relu_grad/ReluGrad", "ReluGrad", "relu", "relu"),
        node("update_w/Apply", "ApplyGradientDescent", "w", "x", "gradients/relu_grad/ReluGrad"),
    )
    model = saved(tmp_path, *training)
    frozen, stopped = (
        {"match": {"name": f"{name}/read"}, "patch": {"freeze": True}} for name in "wb"
    )
    for rules, is_said in (((frozen,), False), ((frozen, STOP), True), ((frozen, stopped), True)):
        said = run_cli("apply", rules_file(*rules), model, "--dry-run").stdout
        assert ("were built before" in said, "note: frozen: " in said) == (is_said, True)


def test_a_scope_that_a_program_called_gradients(
    run_cli: Run, rules_file: Callable[..., Path], tmp_path: Path
) -> None:
    named = node("policy/gradients/relu", "Relu", "b/relu")
    model = saved(tmp_path, *RELUS, named)
    assert "were built before" not in run_cli("apply", rules_file(STOP), model).stdout


def test_which_gradients_are_to_be_registered(
    run_cli: Run, rules_file: Callable[..., Path], tmp_path: Path
) -> None:
    model, out = saved(tmp_path, *RELUS), tmp_path / "out.pb"
    must = "  the program that loads it must register these gradients first"

    def said(*gradients: Any) -> list[str]:
        rules = [
            {"match": {"name": name}, "patch": {"override_gradient": one}, "emit": "attr"}
            for name, one in zip(("a/relu", "b/relu"), gradients, strict=False)
        ]
        lines: list[str] = run_cli(
            "apply", rules_file(*rules), model, "-o", out
        ).stdout.splitlines()
        return [line for line in lines[1 + len(rules) :] if "note" not in line]

    ours = [f"{must}: graphpatch.register_gradients({str(out)!r})", "    graphpatch:guided_relu"]
    others = [f"{must}, by tf.RegisterGradient:", "    Foo"]
    assert said({"registered": "Foo"}) == others
    assert said("guided_relu") == ours
    assert said({"registered": "Foo"}, "guided_relu") == ours + others


def test_an_output_without_a_suffix_is_told(
    run_cli: Run, rules_file: Callable[..., Path], tmp_path: Path
) -> None:
    saved(tmp_path, *RELUS)
    typed = ("apply", rules_file(STOP), "model.pb", "-o")
    assert "  note: out is a file; a / at its end would make it a folder" in (
        run_cli(*typed, "out", cwd=tmp_path).stdout.splitlines()
    )
    assert "out/ is a file, and models go to a folder" in (
        run_cli(*typed, "out/", cwd=tmp_path).stderr
    )
    assert "is a file" not in run_cli(*typed, "new/", cwd=tmp_path).stdout


def test_a_glob_that_stays_in_its_scope(run_cli: Run, tmp_path: Path) -> None:
    model = saved(tmp_path, *RELUS)
    done = run_cli("ops", model, "*relu", "x")
    assert (done.code, done.stdout.splitlines()[0]) == (1, "x")
    assert done.stderr == (
        f"graphpatch: {model}: no op is named '*relu'; * stays within a scope: "
        "'**/*relu' matches 2\n"
    )


def test_notes_that_differ_in_a_function_are_one() -> None:
    notes = ["function f: it is so", "another", "function g: it is so", "function h: it is not"]
    assert fold_notes(notes) == ["functions f, g: it is so", "another", "function h: it is not"]
