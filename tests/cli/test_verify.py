"""`graphpatch verify`: what it prints, and how it exits."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphpatch.protos import GraphDef
from tests.conftest import Run
from tests.examples import DIGITS, GUIDED, PROGRESS
from tests.graphs import node, saved
from tests.patches.one_op import net


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return saved(tmp_path, *net("x:Placeholder a:Relu(x) y:Tanh(a)"))


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return saved(tmp_path, *net("x:Placeholder b:Relu(x) y:Tanh(a)"), name="broken.pb")


def test_a_broken_graph_needs_no_tensorflow(run_cli: Run, sound: Path, broken: Path) -> None:
    done = run_cli("verify", sound, broken, "--no-run")
    assert (done.code, PROGRESS.sub("", done.stderr)) == (1, "")
    faults = [
        "Relu 'a' is gone: no op has its name",
        "Relu 'b' is not in the original, and no rule adds it",
    ]
    assert done.stdout.splitlines() == [
        "structure   2 faults",
        *(f"            {fault}" for fault in faults),
        f"{broken}: differs: 2 failures",
        *(f"  {fault}" for fault in faults),
    ]


def test_a_fault_of_the_original_is_not_one_of_the_patch(run_cli: Run, broken: Path) -> None:
    done = run_cli("verify", broken, broken, "--no-run")
    assert (done.code, PROGRESS.sub("", done.stderr)) == (0, "")
    assert done.stdout.splitlines() == [
        "structure   sound: it has the same bytes",
        f"{broken}: same structure; nothing was run",
    ]


def test_what_cannot_be_run_exits_4_and_names_the_option(run_cli: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    nodes = net("x:Placeholder eleven:Const(dtype=int32) z:Reshape(x, eleven, Tshape=int32)")
    nodes[0].attr["shape"].shape.unknown_rank = True
    value = {"dtype": 3, "tensor_shape": {"dim": [{"size": 1}]}, "int_val": [11]}
    nodes[1].attr["value"].tensor.MergeFrom(type(nodes[1].attr["value"].tensor)(**value))
    path = saved(tmp_path, *nodes)
    done = run_cli("verify", path, path)
    assert done.code == 4, done.stdout
    assert f"{path}: not compared: 1 gap" in done.stdout
    assert "--feed FILE.npz gives inputs that it takes (in Python: feed={...})" in done.stdout


def test_many_failures_are_cut_short(run_cli: Run, sound: Path, tmp_path: Path) -> None:
    nodes = [node("x", "Placeholder"), *(node(f"n{n}", "Exp", "x") for n in range(40))]
    many = saved(tmp_path, *nodes, name="many.pb")
    done = run_cli("verify", sound, many, "--no-run")
    assert done.stdout.count(" more; --all lists them") == 2
    assert len(done.stdout.splitlines()) == 1 + 2 * 11
    assert len(run_cli("verify", sound, many, "--no-run", "--all").stdout.splitlines()) == 86


def test_a_carrier_that_calls_no_function_is_told(run_cli: Run, tmp_path: Path) -> None:
    """The command ended in a KeyError: it printed the values of a run that there was not."""
    pytest.importorskip("tensorflow")
    path = tmp_path / "patched.pb"
    assert run_cli("apply", GUIDED, DIGITS, "-o", path).code == 0
    graph = GraphDef.FromString(path.read_bytes())
    guard = next(one for one in graph.node if one.op.startswith("graphpatch_guard"))
    guard.op = "graphpatch_guided_relu_00000000"
    path.write_bytes(graph.SerializeToString())
    done = run_cli("verify", DIGITS, path)
    assert (done.code, PROGRESS.sub("", done.stderr)) == (1, "")
    assert "not run     " in done.stdout
    assert f"{guard.name}' calls a function of which the library has no gradient" in done.stdout


def test_what_differs_exits_1_and_is_named(run_cli: Run, sound: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    other = saved(tmp_path, *net("x:Placeholder a:Relu(x) y:Sinh(a)"), name="other.pb")
    done = run_cli("verify", sound, other)
    assert (done.code, PROGRESS.sub("", done.stderr)) == (1, "")
    assert "  forward: y:0: " in done.stdout
    assert "Sinh 'y' differs: op type: Tanh -> Sinh" in done.stdout
    assert f"{other}: differs: 2 failures" in done.stdout
