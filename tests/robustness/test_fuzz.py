"""The fuzzers: they see each kind of fault; and in 8,000 inputs they find none."""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from fuzzing import (  # noqa: E402
    case,
    kinds,
    outputs,
    worker,
)
from fuzzing.__main__ import TURN  # noqa: E402

from graphpatch import cli  # noqa: E402
from graphpatch.cli import ops  # noqa: E402
from graphpatch.page.view import page  # noqa: E402

pytestmark = pytest.mark.slow

CASE = case.Case({"m.pb": b"no model"}, [["ops", "m.pb"]], "m.pb")


def crash(**given: Any) -> None:
    raise KeyError(given["model"])


def raw(**given: Any) -> None:
    click.echo("a\x07")


def long(**given: Any) -> int:
    click.echo("graphpatch: " + "x" * 9_000, err=True)
    return 1


def leave(**given: Any) -> None:
    Path(".out.pb.1.tmp").write_bytes(b"")


def spin(**given: Any) -> None:
    until = time.process_time() + 5
    while time.process_time() < until:
        pass


def nest(**given: Any) -> None:
    nest(**given)


def print_no_json(**given: Any) -> None:
    click.echo('{"a": NaN}')


def overwrite(**given: Any) -> None:
    Path("m.pb").write_bytes(b"another")


FAULTS = {
    "an input is overwritten": overwrite,
    "not JSON": print_no_json,
    "crash": crash,
    "recursion": nest,
    "raw control characters": raw,
    "long message": long,
    "left over": leave,
    "slow": spin,
}


@pytest.mark.parametrize(("fault", "callback"), FAULTS.items())
def test_fault(fault: str, callback: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(case, "SECONDS", 0.2)
    monkeypatch.setattr(ops.command, "callback", callback)
    more = ["--json"] if fault == "not JSON" else []
    tried = case.Case(CASE.files, [["ops", "m.pb", *more]], CASE.varied)
    finds, _ = case.tried(tried, tmp_path)
    assert [one.fault for one in finds] == [fault]


def test_a_wrong_output_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from graphpatch.cli import revert

    made = kinds.models()[0][1]

    def other(**given: Any) -> None:
        Path(given["out"]).write_bytes(made + made)

    monkeypatch.setattr(revert.command, "callback", other)
    rule = kinds.rules_file(kinds.RULES[:1])
    commands = [["apply", "r.json", "m.pb", "-o", "out.pb"], ["revert", "out.pb", "-o", "back.pb"]]
    wrong = case.Case({"m.pb": made, "r.json": rule}, commands, "m.pb", "m.pb")
    finds, _ = case.tried(wrong, tmp_path)
    assert {one.fault for one in finds} >= {"not reverted"}


@pytest.mark.parametrize(
    ("file", "fault"), [("saved_model.pb", "not whole"), (".saved_model.pb.1.tmp", "left over")]
)
def test_a_folder_that_is_not_what_it_should_be_is_seen(
    file: str, fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from graphpatch.cli import apply

    def half(**given: Any) -> None:
        Path(given["out"]).mkdir()
        Path(given["out"], file).write_bytes(b"half")

    monkeypatch.setattr(apply.command, "callback", half)
    command = ["apply", "r.json", "m.pb", "--inputs=x", "--outputs=out", "-o", outputs.EXPORTED]
    finds, _ = case.tried(case.Case({"m.pb": b""}, [command], "m.pb"), tmp_path)
    assert fault in {one.fault for one in finds}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (page({}, ""), ""),
        (page({"a": "</script>"}, "<script>"), ""),
        (page({}, "")[:-9], "cut off"),
        (page({}, "").replace("{}", '{"a":NaN}', 1), "NaN"),
        (page({}, "").replace('id="document">', 'id="document"></script><script>'), "markup"),
    ],
)
def test_a_page_that_is_not_whole_is_seen(
    text: str, fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from graphpatch.cli import view

    def written(**given: Any) -> int:
        Path(given["output"]).write_text(text)
        return given["code"]

    given = case.Case({"m.pb": b""}, [["view", "m.pb", "-o", outputs.PAGE]], "m.pb")
    for code, kind in ((0, "not whole"), (1, "half written")):
        monkeypatch.setattr(view.command, "callback", functools.partial(written, code=code))
        finds, _ = case.tried(given, tmp_path)
        assert [one.fault for one in finds] == ([kind] if fault else [])
    if fault:
        with pytest.raises((AssertionError, ValueError), match=fault):
            outputs.check_page(text)


def test_every_command_is_tried() -> None:
    """Each command of `graphpatch --help`, in some of its ways, among the first inputs."""
    typed = [
        command
        for number in range(1_500)
        for command in worker.Number(TURN[number % len(TURN)], 1, number).case().commands
    ]
    assert set(cli.COMMANDS) - {command[0] for command in typed} == set()
    options = {word for command in typed for word in command if word.startswith("--")}
    assert {"--fix", "--rules", "--pattern", "--no-run", "--save", "--emit", "--rule"} <= options
    plain = {tuple(command[:1]) for command in typed if len(command) == 2}
    assert {("doctor",), ("ops",), ("recipes",), ("gradients",), ("patterns",)} <= plain
    assert any(command[0] == "verify" and command[1] == command[2] for command in typed)


def ran(*command: str) -> str:
    done = subprocess.run(
        [str(ROOT / "scripts" / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**worker.os.environ, "FUZZ_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_hostile_input_of_a_known_seed(tmp_path: Path) -> None:
    """The same inputs each time: where this fails, the change that it is run for did it."""
    more = ("--seed", "1", "--inputs", "8000", "--folder", str(tmp_path))
    assert " 0 finds" in ran("fuzz", *more)


def test_random_graphs_beside_tensorflow(tmp_path: Path) -> None:
    told = ran("fuzz", "semantic", "--seed", "5", "--inputs", "8", "--folder", str(tmp_path))
    assert "ops patched" in told
    assert "finds" not in told


def test_kills_and_limits() -> None:
    assert "0 faults" in ran("fuzz", "crash", "--seed", "1", "--kills", "10")
