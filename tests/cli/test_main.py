"""What all commands have in common: help, versions, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from fuzzing import worker
from fuzzing.__main__ import TURN

import graphpatch
from graphpatch import cli
from graphpatch.cli.completion import TURNED_ON, VARIABLE
from graphpatch.cli.schema import schema
from graphpatch.errors import GraphpatchError, ModelError
from tests import graphs
from tests.conftest import CHECKOUT, RulesFile, Run
from tests.patches.one_op import net


def test_every_command_is_tried() -> None:
    """Each command of `graphpatch --help`, in some of its ways, among the first inputs."""
    numbers = (worker.Number(TURN[number % len(TURN)], 1, number) for number in range(1_500))
    typed = [command for number in numbers for command in number.case().commands]
    untried = set(cli.COMMANDS) - {command[0] for command in typed}
    assert not untried, f"add a call to scripts/fuzzing/commands.py: {sorted(untried)}"
    options = {word for command in typed for word in command if word.startswith("--")}
    assert {"--fix", "--rules", "--pattern", "--no-run", "--save", "--emit", "--rule"} <= options
    plain = {tuple(command[:1]) for command in typed if len(command) == 2}
    assert {("doctor",), ("ops",), ("recipes",), ("gradients",), ("patterns",)} <= plain
    assert any(command[0] == "verify" and command[1] == command[2] for command in typed)


def test_help_names_every_command(run_cli: Run) -> None:
    done = run_cli("--help")
    assert (done.code, done.stderr) == (0, "")
    for name, does in cli.COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert does[:30] in done.stdout


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(run_cli: Run, name: str) -> None:
    done = run_cli(name, "--help")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")
    assert f" {name} " in done.stdout.splitlines()[0]
    examples = done.stdout.partition("\n  Examples:\n")[2].splitlines()
    assert len(examples) == 2
    assert all(line.startswith("    graphpatch ") for line in examples)
    assert max(map(len, run_cli(name, "--help", env={"COLUMNS": "80"}).stdout.splitlines())) <= 80


# What is typed, and what a shell is offered.
COMPLETED = {
    "graphpatch ap": "plain,apply",
    "graphpatch gradients guided_rel": "plain,guided_relu",
    "graphpatch patterns batch": "plain,@batch_norm",
    "graphpatch match m.pb --pattern @batch": "plain,@batch_norm",
    "graphpatch apply ru": "file,ru",
    "graphpatch completion ba": "plain,bash",
    "graphpatch apply --dr": "plain,--dry-run",
}


@pytest.mark.parametrize("typed", COMPLETED)
def test_shells_complete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    monkeypatch.setenv("_GRAPHPATCH_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    with pytest.raises(SystemExit):
        cli._run()
    assert COMPLETED[typed] in capsys.readouterr().out.splitlines()


def test_how_completion_is_turned_on(run_cli: Run) -> None:
    every = run_cli("completion").stdout
    for name, how in TURNED_ON.items():
        assert f"{name:5} {how}\n" in every
        assert VARIABLE in run_cli("completion", name).stdout


def test_the_version(run_cli: Run) -> None:
    assert run_cli("--version").stdout.endswith(f"version {graphpatch.__version__}\n")


def test_the_schema(run_cli: Run) -> None:
    done = run_cli("schema")
    assert run_cli("schema", "--json").raw == done.raw
    assert done.json == json.loads(json.dumps(schema()))


def test_wrong_usage_exits_2(run_cli: Run) -> None:
    done = run_cli("z" * 300)
    assert (done.code, done.stdout) == (2, "")
    assert "`graphpatch --help` lists the commands" in done.stderr


RAISED: list[tuple[BaseException, int, str]] = [
    (GraphpatchError("what is wrong"), 1, "graphpatch: what is wrong\n"),
    (ModelError("m.pb: is empty"), 1, "graphpatch: m.pb: is empty\n"),
    (click.UsageError("not so"), 2, "Error: not so\n"),
    (KeyboardInterrupt(), 130, ""),
    (OSError(28, "No space left on device"), 1, "cannot write standard output: No space left"),
    (OSError(36, "File name too long", "nnn"), 1, "graphpatch: cannot use nnn: File name too long"),
    (OSError(2, "No such file"), 3, "this is a bug of graphpatch; please report the above"),
    (KeyError("x"), 3, "Traceback (most recent call last):"),
    (ZeroDivisionError(), 3, "this is a bug of graphpatch; please report the above"),
]


@pytest.mark.parametrize(("error", "code", "message"), RAISED, ids=repr)
def test_exit_codes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
) -> None:
    def fail(**options: object) -> None:
        raise error

    monkeypatch.setattr(cli.cli, "main", fail)
    assert cli._run() == code
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err


def test_a_reader_that_goes_away_is_no_bug(model_file: Path) -> None:
    line = f"set -o pipefail; {sys.executable} -m graphpatch ops {model_file} --all | true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=False, cwd=CHECKOUT)
    assert done.returncode in (0, 1)
    assert done.stderr == b""


# What a command imports before it reads a model: nothing that it does not need.


PROGRAM = """
import sys
from graphpatch.cli import main
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
sys.stderr.write("\\n".join(sys.modules))
"""

NEVER = {"numpy", "networkx", "tensorflow", "graphpatch.runtime", "graphpatch.page"}
NOT_FOR_OPS = {
    *("shutil", "graphpatch.rules", "graphpatch.patches", "graphpatch.gradients"),
    *("graphpatch.fleet", "graphpatch.recipes", "graphpatch.match.matcher"),
}
NOT_FOR_APPLY = {"graphpatch.match.ready", "graphpatch.analysis.doctor", "graphpatch.analysis.ops"}
RULE = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
IMPORTS = {
    ("ops", "model.pb"): ("graphpatch.analysis.ops", NEVER | NOT_FOR_OPS),
    ("apply", "rules.json", "model.pb"): ("graphpatch.patches.override", NEVER | NOT_FOR_APPLY),
}


@pytest.mark.parametrize("typed", IMPORTS)
def test_a_command_imports_what_it_needs(
    typed: tuple[str, ...], rules_file: RulesFile, tmp_path: Path
) -> None:
    graphs.saved(tmp_path, *net("x:Placeholder y:Relu(x)"))
    rules_file(RULE)
    command, env = [sys.executable, "-c", PROGRAM, *typed], {"PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        command, capture_output=True, check=True, text=True, cwd=tmp_path, env={**os.environ, **env}
    )
    imported = set(done.stderr.split("\n"))
    needed, others = IMPORTS[typed]
    assert needed in imported
    assert not imported & others
