"""The fuzzers: they see each kind of fault; and in two minutes (where slow) they find none."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import click
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from fuzzing import case, kinds, worker  # noqa: E402

from graphpatch.cli import ops  # noqa: E402

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


FAULTS = {
    "crash": crash,
    "raw control characters": raw,
    "long message": long,
    "left over": leave,
    "slow": spin,
}


@pytest.mark.parametrize(("fault", "callback"), FAULTS.items())
def test_a_fault_is_seen(
    fault: str, callback: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(case, "SECONDS", 0.2)
    monkeypatch.setattr(ops.command, "callback", callback)
    finds, _ = case.tried(CASE, tmp_path)
    assert [one.fault for one in finds] == [fault]


def sleep(**given: Any) -> None:
    time.sleep(60)


def spin_in_one_call(**given: Any) -> None:
    sum(range(10**11))  # Python handles no signal before this ends


def wait_for_a_processor(**given: Any) -> None:
    """What a busy machine does: five seconds pass, and the process is not asleep."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        pass


@pytest.mark.parametrize(
    ("callback", "faults"),
    [(sleep, ["hang"]), (spin_in_one_call, ["slow"]), (wait_for_a_processor, [])],
)
def test_a_hang_is_told_from_a_busy_machine(
    callback: Any, faults: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "WAITING", 2)
    monkeypatch.setattr(worker, "SECONDS", 0.2 if faults else 10)
    monkeypatch.setattr(worker.Number, "case", lambda number: CASE)
    monkeypatch.setattr(ops.command, "callback", callback)
    (answer,) = worker.answers(iter([worker.Number("models", 1, 1)]))
    assert [one.fault for one in answer.finds] == faults


def test_no_input_changes_another() -> None:
    before = repr(kinds.VALUES)
    for number in range(300):
        worker.Number("rules", 3, number).case()
    assert repr(kinds.VALUES) == before


def test_an_output_that_is_not_what_it_should_be_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_an_input_is_the_same_every_time(kind: str) -> None:
    number = worker.Number(kind, 1, 2)
    assert number.case() == number.case()
    assert kinds.KINDS[kind](Random(1)) != kinds.KINDS[kind](Random(2))


def test_a_find_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash_at_a(**given: Any) -> None:
        if b"a" in Path(given["model"]).read_bytes():
            raise KeyError("a")

    monkeypatch.setattr(ops.command, "callback", crash_at_a)
    found = case.Case({"m.pb": b"bcdefgh" * 10 + b"a" + b"xyz" * 10}, [["ops", "m.pb"]], "m.pb")
    find = case.Find("crash", "", ["ops", "m.pb"], "")
    (told,) = case.tried(found, Path(worker.tempfile.mkdtemp()))[0]
    small = worker.shrunk(found, find._replace(where=told.where))
    assert small.files["m.pb"] == b"a"


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


@pytest.mark.slow
def test_two_minutes_of_hostile_input(tmp_path: Path) -> None:
    """The same inputs each time: where this fails, the change that it is run for did it."""
    more = ("--seed", "1", "--inputs", "15000", "--folder", str(tmp_path))
    assert " 0 finds" in ran("fuzz", *more)


@pytest.mark.slow
def test_kills_and_limits() -> None:
    assert "0 faults" in ran("crash", "--seed", "1", "--kills", "20")
