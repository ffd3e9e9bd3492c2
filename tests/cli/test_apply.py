from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from graphpatch.cli.apply import fold_notes
from graphpatch.fleet.run import MANIFEST_NAME as MANIFEST
from graphpatch.formats import load
from graphpatch.protos import GraphDef
from tests import graphs
from tests.conftest import Ran, RulesFile, Run
from tests.graphs import node, saved, v1_loop
from tests.patches.one_op import net

OVERRIDE = "_gradient_op_type"
ELU = {
    "match": {"op": "Relu", "body": "main"},
    "patch": {"override_gradient": "Elu"},
    "name": "elu",
}
STOP = {"match": {"op": "Round"}, "patch": {"stop_gradient": True}, "name": "stop"}


@pytest.fixture
def rules(rules_file: RulesFile) -> Path:
    return rules_file(ELU, STOP)


def files(folder: Path) -> list[str]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(folder)) for path in found if path.suffix != ".json")


def is_patched(path: Path) -> bool:
    return all(
        graph.main.node("relu").attr(OVERRIDE) == graphs.attr("Elu")
        and graph.main.node("round").op == "StopGradient"
        for graph in load(path).graphs
    )


def test_a_model_is_patched_beside_itself(run_cli: Run, rules: Path, model_file: Path) -> None:
    before = model_file.read_bytes()
    done = run_cli("apply", rules, model_file)
    out = model_file.with_name("model.patched.pb")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{model_file} -> {out}",
        "  elu   1 Relu  (built-in)",
        "  stop  1 Round  (construction)",
    ]
    assert is_patched(out)
    assert model_file.read_bytes() == before
    assert files(model_file.parent) == ["model.patched.pb", "model.pb"]


def test_a_file_that_is_replaced_is_told(run_cli: Run, rules: Path, model_file: Path) -> None:
    """Here, and where workers write; a dry run tells what would be replaced."""
    out, folder = model_file.with_name("out.pb"), model_file.with_name("out")
    first = run_cli("apply", rules, model_file, "-o", out, "--json").json["outputs"][0]
    assert "replaced" not in first
    assert run_cli("apply", rules, model_file, "-o", out, "--json").json["outputs"][0]["replaced"]
    again = run_cli("apply", rules, model_file, "-o", out).stdout.splitlines()[0]
    assert again == f"{model_file} -> {out} (replaced)"
    dry = run_cli("apply", rules, model_file, "-o", out, "--dry-run").stdout.splitlines()[0]
    assert dry == f"{model_file} -> {out} (dry run, nothing written, would replace a file)"
    many = ("apply", rules, f"{model_file.parent}/model.p*", "-o", folder, "-j", "1")
    assert "(replaced)" not in run_cli(*many).stdout
    assert "model.pb (replaced)  1 Relu, 1 Round" in run_cli(*many).stdout


def test_a_dry_run_does_all_but_write(run_cli: Run, rules: Path, model_file: Path) -> None:
    wet = run_cli("apply", rules, model_file, "--json", "-o", model_file.with_name("out.pb")).json
    model_file.with_name("out.pb").unlink()
    args = ("apply", rules, model_file, "--dry-run")
    for would in ("", "out.pb", "new/folder/model.pb"):
        more = ["-o", would.removesuffix("model.pb")] if would else []
        done = run_cli(*args, "--json", *more, cwd=model_file.parent)
        dry = dict(done.json["outputs"][0])
        assert dry.pop("would_write") == (would or str(model_file.with_name("model.patched.pb")))
        assert dry == wet["outputs"][0] | {"output": None}
        assert files(model_file.parent) == ["model.pb"]
        assert not (model_file.parent / "new").exists()
    patched = model_file.with_name("model.patched.pb")
    said = f"{model_file} -> {patched} (dry run, nothing written)\n"
    assert run_cli(*args).stdout.startswith(said)


# -o, seen from the folder of the models: what is given, and which files there are then.
OUTPUTS = {
    "model.pb -o out.pb": "out.pb",
    "model.pb -o old": f"old/model.pb old/{MANIFEST}",
    "model.pb -o new/deep/": f"new/deep/model.pb new/deep/{MANIFEST}",
    "model.pb other.pb": "model.patched.pb other.patched.pb",
    "model.pb other.pb -o old": f"old/model.pb old/other.pb old/{MANIFEST}",
    "link.pb -o old": f"old/link.pb old/{MANIFEST}",
    "model.pb -o out.pbtxt": "out.pbtxt",
    "model.pb -o out.meta": "out.meta",
    "saved": "saved.patched/saved_model.pb",
    "saved/saved_model.pb": "saved.patched/saved_model.pb",
    "saved -o out": "out/saved_model.pb",
    "saved/saved_model.pb -o new/": f"new/saved/saved_model.pb new/{MANIFEST}",
    "saved -o older --force": "older/saved_model.pb",
}


@pytest.mark.every(3)
@pytest.mark.parametrize("typed", OUTPUTS)
def test_outputs(run_cli: Run, rules: Path, model_file: Path, typed: str) -> None:
    folder, written = model_file.parent, OUTPUTS[typed].split()
    (folder / "other.pb").write_bytes(model_file.read_bytes())
    (folder / "link.pb").symlink_to("other.pb")
    (folder / "old").mkdir()
    for name in ("saved", "older"):
        graphs.saved_model_folder(folder / name, graphs.metagraph(graphs.sample(), "serve"))
    before = files(folder)
    done = run_cli("apply", rules, *typed.split(), "--json", cwd=folder)
    assert (done.code, done.stderr) == (0, "")
    reported = [output["output"] for output in done.json["outputs"]]
    models = [path for path in written if MANIFEST not in path]
    assert [path.removesuffix("/saved_model.pb") for path in models] == reported
    assert all(is_patched(folder / path) for path in reported)
    for path in models:
        if path.endswith("/saved_model.pb"):  # what belongs to it is copied, but not its hashes
            copied = files(folder / Path(path).parent)
            assert {*copied, "fingerprint.pb"} == set(files(folder / "saved"))
            written += [f"{Path(path).parent}/{name}" for name in copied]
    hashes = {f"{Path(path).parent}/fingerprint.pb" for path in models}
    assert set(files(folder)) == {*before, *written} - hashes


# Pipes


def test_through_a_pipe(run_cli: Run, rules: Path, model_file: Path) -> None:
    model = model_file.read_bytes()
    run_cli("apply", rules, model_file, "-o", "out.pb", cwd=model_file.parent)
    expected = model_file.with_name("out.pb").read_bytes()
    for args in (["-"], [model_file, "-o", "-"], [model_file, "-o", "/dev/stdout"]):
        done = run_cli("apply", rules, *args, stdin=model)
        assert (done.code, done.raw[: len(expected)]) == (0, expected)
        said = done.stderr + done.raw[len(expected) :].decode()
        assert said.splitlines()[1] == "  elu   1 Relu  (built-in)"
    done = run_cli("apply", rules, "-", "-o", "piped.pb", stdin=model, cwd=model_file.parent)
    assert (done.code, done.stderr) == (0, "")
    assert model_file.with_name("piped.pb").read_bytes() == expected


def test_other_things_in_a_pipe(run_cli: Run, rules: Path, model_file: Path) -> None:
    """Text stays text; rules come through one; reports beside a model go to standard error."""
    done = run_cli("apply", rules, "-", stdin=str(graphs.sample()).encode())
    found = text_format.Parse(done.stdout, GraphDef())
    assert {node.name: node for node in found.node}["relu"].attr[OVERRIDE].s == b"Elu"
    patched = model_file.with_name("model.patched.pb")
    done = run_cli("apply", "-", model_file, stdin=rules.read_bytes())
    assert (done.code, is_patched(patched)) == (0, True)
    done = run_cli("apply", rules, model_file, "-", stdin=model_file.read_bytes())
    assert GraphDef.FromString(done.raw).node[0].name == "x"
    assert done.stderr.startswith(f"{model_file} -> {patched} (replaced)\n")


# --emit


def test_the_carrier_is_chosen(run_cli: Run, rules_file: RulesFile, model_file: Path) -> None:
    identity = ELU | {"patch": {"override_gradient": "identity"}}
    own = identity | {"match": {"op": "Relu6"}, "emit": "auto"}
    rules = rules_file(identity, own)
    for emit, expected in (("attr", ["attr", "built-in"]), ("auto", ["built-in", "built-in"])):
        done = run_cli("apply", rules, model_file, "--emit", emit, "--dry-run", "--json")
        assert [rule["emit"] for rule in done.json["outputs"][0]["rules"]] == expected


# Hints and notes, and how they are folded.


RELUS = net("x:Placeholder a/relu:Relu(x) b/relu:Relu(a/relu)")
STOPPED = {"match": {"op": "Relu"}, "patch": {"stop_gradient": True}}
OLD = "were built before"


@pytest.fixture
def applied(run_cli: Run, rules_file: RulesFile, tmp_path: Path) -> Callable[..., Ran]:
    """Apply rules to a graph of these nodes: `applied(nodes, rule, ..., more=("--json",))`."""

    def run(nodes: list[Any], *rules: Any, more: tuple[Any, ...] = ()) -> Any:
        return run_cli("apply", rules_file(*rules), saved(tmp_path, *nodes), *more)

    return run


def test_a_filter_of_what_an_earlier_rule_replaced(applied: Callable[..., Ran]) -> None:
    guided = {"name": "guided", "match": {"op": "Relu"}, "patch": {"override_gradient": "zero"}}
    clip = {"clip": {"min": -1, "max": 1}}
    late = {"match": {"op": "Relu", "name": "b/*"}, "patch": {"filter_gradient": clip}}
    done = applied(RELUS, {**guided, "emit": "function"}, late, more=("--json",))
    [_, filtered] = done.json["outputs"][0]["rules"]
    assert filtered["matches"] == [{"body": "main", "op": "b/relu", "type": "Relu"}]
    assert applied(RELUS, late, guided).code == 0


def test_a_loop_goes_to_a_meta(applied: Callable[..., Ran], tmp_path: Path) -> None:
    loop = [node("x", "Placeholder"), *v1_loop("x", node("s", "Relu", "switch:1"), gives="s")]
    said = "  note: v1 loops or branches: tf.gradients needs their contexts"
    assert said in applied(loop, STOPPED).stdout
    out = applied(loop, STOPPED, more=("-o", tmp_path / "m.meta"))
    assert (out.code, "note" in out.stdout) == (0, False)


def test_gradients_that_were_built_before(applied: Callable[..., Ran]) -> None:
    built = net("train/gradients/a/relu_grad/ReluGrad:ReluGrad(b/relu, a/relu)")
    said = applied([*RELUS, *built], STOPPED).stdout
    assert f"  note: train/gradients/** (1 op) are gradients that {OLD}" in said
    # A scope that a program called so.
    assert OLD not in applied([*RELUS, *net("policy/gradients/relu:Relu(b/relu)")], STOPPED).stdout


def test_a_freeze_says_nothing_of_built_gradients(applied: Callable[..., Ran]) -> None:
    training = net("""w:VariableV2 w/read:Identity(w) b:VariableV2 b/read:Identity(b) x:Placeholder
        y:AddN(x, w/read, b/read, N=3) relu:Relu(y)
        gradients/relu_grad/ReluGrad:ReluGrad(relu, relu)
        update_w/Apply:ApplyGradientDescent(w, x, gradients/relu_grad/ReluGrad)""")
    frozen, stopped = (
        {"match": {"name": f"{name}/read"}, "patch": {"freeze": True}} for name in "wb"
    )
    for others in (), (STOPPED,), (stopped,):
        said = applied(training, frozen, *others, more=("--dry-run",)).stdout
        assert (OLD in said, "note: frozen: " in said) == (bool(others), True)


def test_which_gradients_are_to_be_registered(applied: Callable[..., Ran], tmp_path: Path) -> None:
    out = tmp_path / "out.pb"
    must = "  the program that loads it must register these gradients first"

    def said(*gradients: Any) -> list[str]:
        rules = [
            {"match": {"name": name}, "patch": {"override_gradient": one}, "emit": "attr"}
            for name, one in zip(("a/relu", "b/relu"), gradients, strict=False)
        ]
        lines = applied(RELUS, *rules, more=("-o", out)).stdout.splitlines()
        return [line for line in lines[1 + len(rules) :] if "note" not in line]

    ours = [f"{must}: graphpatch.register_gradients({str(out)!r})", "    graphpatch:guided_relu"]
    others = [f"{must}, by tf.RegisterGradient:", "    Foo"]
    assert said({"registered": "Foo"}) == others
    assert said("guided_relu") == ours
    assert said({"registered": "Foo"}, "guided_relu") == ours + others


def test_an_output_without_a_suffix(run_cli: Run, rules_file: RulesFile, tmp_path: Path) -> None:
    saved(tmp_path, *RELUS)
    typed = ("apply", rules_file(STOPPED), "model.pb", "-o")
    said = run_cli(*typed, "out", cwd=tmp_path).stdout.splitlines()
    assert "  note: out is a file; a / at its end would make it a folder" in said
    said = run_cli(*typed, "out/", cwd=tmp_path).stderr
    assert "out/ is a file, and models go to a folder" in said
    assert "is a file" not in run_cli(*typed, "new/", cwd=tmp_path).stdout


def test_a_glob_that_stays_in_its_scope(run_cli: Run, tmp_path: Path) -> None:
    model = saved(tmp_path, *RELUS)
    done = run_cli("ops", model, "*relu", "x")
    assert (done.code, done.stdout.splitlines()[0]) == (1, "x")
    assert done.stderr == f"graphpatch: {model}: no op is named '*relu'; '**/*relu' matches 2\n"


def test_notes_that_differ_in_a_function_are_one() -> None:
    notes = ["function f: it is so", "another", "function g: it is so", "function h: it is not"]
    assert fold_notes(notes) == ["functions f, g: it is so", "another", "function h: it is not"]
