"""`graphpatch doctor`: what it prints, and the rules that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import graphs
from tests.conftest import COMMAND, Run
from tests.examples import DIGITS
from tests.graphs import node, saved
from tests.patches.one_op import net


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    return saved(tmp_path, *net("x:Placeholder a:Round(x) y:Tanh(a) z:Placeholder far:Exp(z)"))


def test_it_names_the_op_the_consequence_and_the_rule(run_cli: Run, blocked: Path) -> None:
    done = run_cli("doctor", blocked, "--from", "x", "--to", "y:0")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "x:0 -> y:0: the gradient is None",
        "  path     x:0 -> a:0 -> y:0",
        "  blocked  Round a, input 0",
        "           Round, a step function: TensorFlow's gradient of it is None",
        "           None: tf.gradients returns None, without an error",
        "    fix    let it count as the identity on the way back (straight_through), a stand-in",
    ]


def test_without_names_it_takes_placeholders_and_outputs(run_cli: Run, blocked: Path) -> None:
    found = run_cli("doctor", blocked, "--json").json
    [graph] = found["graphs"]
    pairs = {(one["from"], one["to"]): one["verdict"] for one in graph["pairs"]}
    assert pairs == {
        ("x:0", "y:0"): "none",
        ("z:0", "y:0"): "none",
        ("x:0", "far:0"): "none",
        ("z:0", "far:0"): "flows",
    }
    assert [one["connected"] for one in graph["pairs"]].count(True) == 2
    assert "2 more pairs are not connected by any tensor" in run_cli("doctor", blocked).stdout


def test_fix_writes_rules_that_apply_takes(run_cli: Run, blocked: Path, tmp_path: Path) -> None:
    rules, patched = tmp_path / "rules.json", tmp_path / "patched.pb"
    done = run_cli("doctor", blocked, "--from", "x", "--to", "y", "--fix", rules, "--json")
    assert done.json["fix"]["mended"] == [["x:0", "y:0"]]
    assert json.loads(rules.read_text())["rules"] == done.json["fix"]["rules"]
    assert run_cli("apply", rules, blocked, "-o", patched).code == 0
    again = run_cli("doctor", patched, "--from", "x", "--to", "y")
    assert again.stdout == "x:0 -> y:0: the gradient flows\n"


STAND_IN = "1 with a stand-in gradient"
# A graph, and the last line of `--fix rules.json`.
FIXES = {
    "nothing to fix; nothing was written": "x:Placeholder y:Relu(x) z:Placeholder v:Relu(z)",
    f"rules.json: 1 rule ({STAND_IN}); with it 1 more pair flows": "x:Placeholder y:Round(x)",
    f"rules.json: 2 rules ({STAND_IN}, 1 with the true gradient); with them 1 more pair flows": (
        "x:Placeholder m:TruncateMod(x, x) y:Sign(m)"
    ),
}


@pytest.mark.parametrize("last", FIXES)
def test_fix_says_what_it_fixes(run_cli: Run, tmp_path: Path, last: str) -> None:
    saved(tmp_path, *net(FIXES[last]))
    said = run_cli("doctor", "model.pb", "--fix", "rules.json", cwd=tmp_path).stdout
    assert said.splitlines()[-1] == last
    assert (tmp_path / "rules.json").exists() == last.startswith("rules.json")


def test_fix_of_a_v1_loop_is_a_file_that_converts_it(run_cli: Run, tmp_path: Path) -> None:
    rules, meta = tmp_path / "rules.json", tmp_path / "m.meta"
    inside = node("double", "Add", "switch:1", "switch:1")
    loop = graphs.v1_loop("x", inside, decides="merge", gives="double")
    nodes = [node("x", "Placeholder"), *loop, node("y", "Identity", "exit")]
    model = saved(tmp_path, *nodes, name="m.pb")
    ends = "--no-control-flow-v2", "--from", "x", "--to", "y"
    done = run_cli("doctor", model, *ends, "--fix", rules)
    assert done.stdout.splitlines()[-2:] == [
        f"{rules}: no rule, as what blocks is a v1 loop without its control-flow context",
        f"next: graphpatch apply {rules} {model} -o m.meta, which holds the loops' contexts; "
        f"import it after tf.compat.v1.disable_control_flow_v2()",
    ]
    assert "may fail when it is run" in done.stdout  # beside what raises nothing says it works
    assert "tf.gradients works" not in done.stdout
    assert run_cli("apply", rules, model, "-o", meta).code == 0
    assert run_cli("doctor", meta, *ends).stdout == "x:0 -> y:0: the gradient flows\n"


def test_ends_may_be_separated_by_commas(run_cli: Run, blocked: Path) -> None:
    done = run_cli("doctor", blocked, "--from", "x", "--to", "a, y:0", "--json")
    [graph] = done.json["graphs"]
    assert [(pair["from"], pair["to"]) for pair in graph["pairs"]] == [
        ("x:0", "a:0"),
        ("x:0", "y:0"),
    ]
    assert "named ''" in run_cli("doctor", blocked, "--from", "x", "--to", "").stderr


def test_ends_that_were_swapped_are_told(run_cli: Run, blocked: Path) -> None:
    done = run_cli("doctor", blocked, "--from", "y", "--to", "x")
    assert done.stdout.splitlines() == [
        "y:0 -> x:0: the gradient is None: no tensor leads from the one to the other",
        "  y:0 is computed from x:0: are source and target (--from and --to) swapped?",
    ]
    rules = blocked.with_name("rules.json")
    done = run_cli("doctor", blocked, "--from", "z", "--to", "y", "--fix", rules)
    assert done.stdout.splitlines()[1:] == ["no rule written: no single op can be fixed"]
    assert not rules.exists()


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Twelve outputs that flow, twelve behind a Round, two behind a stop; and a training step."""
    nodes = net("""x:Placeholder r:Round(x) s:StopGradient(x) v:VariableV2(dtype=float32)
        step:ApplyGradientDescent(v, x, x) pred:Placeholder(dtype=bool) branch:Switch(x, pred)
        train/gradients/sum:Exp(x) finite:IsFinite(x)""")
    for source, count in (("x", 12), ("r", 12), ("s", 2)):
        nodes += [node(f"{source}{place}", "Tanh", source) for place in range(count)]
    return saved(tmp_path, *nodes)


def test_of_many_pairs_one_of_each_kind_is_printed(run_cli: Run, many: Path) -> None:
    lines = run_cli("doctor", many, "--from", "x").stdout.splitlines()
    assert [line for line in lines if line.startswith(("x:0", "  ... "))] == [
        "x:0 -> r0:0: the gradient is None",
        "  ... 11 more pairs like this; --all shows them",
        "x:0 -> s0:0: the gradient is None",
        "  ... 1 more pair like this; --all shows them",
        "x:0 -> x0:0: the gradient flows",
        "  ... 11 more pairs like this; --all shows them",
    ]


def test_what_is_said_of_several_ops_is_said_once(run_cli: Run, tmp_path: Path) -> None:
    rounds = [node(f"r{n}", "Round", f"r{n - 1}" if n else "x") for n in range(5)]
    path = saved(tmp_path, node("x", "Placeholder"), *rounds)
    blocked = "  blocked  Round r{}, input 0".format
    lines = run_cli("doctor", path, "--from", "x", "--to", "r4").stdout.splitlines()
    assert lines[2:6] == [
        *map(blocked, (4, 3)), "           and 3 more like these; --all lists them",
        "           Round, a step function: TensorFlow's gradient of it is None",
    ]  # fmt: skip
    assert sum("    fix " in line for line in lines) == 1
    lines = run_cli("doctor", path, "--from", "x", "--to", "r4", "--all").stdout.splitlines()
    assert lines[2:7] == [*map(blocked, (4, 3, 2, 1, 0))]


def test_each_graph_of_a_saved_model(run_cli: Run, tmp_path: Path) -> None:
    metas = [graphs.metagraph(graphs.sample(), tag) for tag in ("serve", "train")]
    said = run_cli("doctor", graphs.saved_model_folder(tmp_path / "saved", *metas)).stdout
    assert ["[serve]" in said, "[train]" in said] == [True, True]


def test_kinds_beyond_the_tenth_are_counted(run_cli: Run, tmp_path: Path) -> None:
    rounds = [node(f"r{place}", "Round", "x") for place in range(13)]
    path = saved(tmp_path, node("x", "Placeholder"), *rounds)
    lines = run_cli("doctor", path).stdout.splitlines()
    assert sum(line.startswith("x:0 -> ") for line in lines) == 10
    assert lines[-1] == "... 3 more pairs of other kinds; --all shows them"


INPUTS = "inputs: image:0, dropout_rate:0"
MISNAMED = {
    ("--to", "logit"): "'logit'; nearest: logits; outputs: logits:0",
    ("--to", "zzz"): "'zzz'; outputs: logits:0",
    ("--from", "imag"): f"'imag'; nearest: image; {INPUTS}",
    ("--from", "zzz"): f"'zzz'; {INPUTS}",
    ("--from", "image:3"): "'image:3': Placeholder 'image' has 1 output, counted from 0",
}


@pytest.mark.parametrize("command", ["doctor", "view"])
@pytest.mark.parametrize("ends", MISNAMED)
def test_an_end_that_is_not_there_gets_those_that_are(
    run_cli: Run, command: str, ends: tuple[str, str], tmp_path: Path
) -> None:
    output = ["-o", tmp_path / "page.html"] if command == "view" else []
    done = run_cli(command, DIGITS, *ends, *output)
    message = f"graphpatch: {DIGITS}: no tensor of the main graph is named {MISNAMED[ends]}\n"
    assert (done.code, done.stderr) == (1, message)


@pytest.mark.slow
def test_nothing_of_the_log_of_tensorflow_is_said(run_cli: Run) -> None:
    pytest.importorskip("tensorflow")
    asked = ("doctor", DIGITS, "--from", "features", "--to", "logits", "--run")
    done = run_cli(*asked, command=COMMAND, env={"TF_ENABLE_ONEDNN_OPTS": "1"})
    assert (done.code, done.stderr) == (0, "")


def test_run_says_that_a_gradient_is_zero(run_cli: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    nodes = net("x:Placeholder y:Mul(x, zero)")
    path = saved(tmp_path, graphs.const("zero", fill=b"\0"), *nodes)
    done = run_cli("doctor", path, "--run")
    assert "x:0 -> y:0: the gradient flows" in done.stdout
    assert "run      exactly zero on these values" in done.stdout
    [pair] = run_cli("doctor", path, "--run", "--json").json["graphs"][0]["pairs"]
    assert pair["run"] == {**pair["run"], "gradient": "tensor", "ran": True, "zero": True}


def test_run_takes_no_constant_sum_as_the_loss(run_cli: Run, tmp_path: Path) -> None:
    """The gradient of the sum of a softmax is zero: each upstream gradient is another."""
    pytest.importorskip("tensorflow")
    nodes = net("x:Placeholder y:Softmax(x)")
    for size in (2, 4):
        nodes[0].attr["shape"].shape.dim.add(size=size)
    path = saved(tmp_path, *nodes)
    first, second = (run_cli("doctor", path, "--run").stdout for _ in range(2))
    assert "run      largest element" in first
    assert float(first.split()[-1]) > 1e-3
    assert first == second


def test_run_refuses_ops_that_touch_files(run_cli: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    written = tmp_path / "written"
    texts = [
        graphs.listed(name, value, dtype="string")
        for name, value in (("file", bytes(written)), ("text", b"there"))
    ]
    nodes = net("write:WriteFile(file, text) x:Placeholder y:Exp(x, ^write)")
    path = saved(tmp_path, *texts, *nodes)
    typed = ("doctor", path, "--from", "x", "--to", "y")
    done = run_cli(*typed, "--run")
    assert (done.code, done.stdout) == (1, "")
    assert "WriteFile 'write' touches files" in done.stderr
    assert not written.exists()
    assert run_cli(*typed).code == 0
    assert run_cli(*typed, "--run", "--allow-unsafe-ops").code == 0
    assert written.exists()
