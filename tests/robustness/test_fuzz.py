"""The fuzzers: they see each kind of fault; and in 8,000 inputs they find none."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from fuzzing import case, kinds, outputs  # noqa: E402

from graphpatch.page.view import page  # noqa: E402

pytestmark = pytest.mark.slow

Seen = Callable[..., list[str]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Seen:
    """The faults that are seen where the first of some commands does this: `seen(does, *words)`."""

    def faults(
        does: Callable[..., Any], *typed: str, original: str = "", **files: bytes
    ) -> list[str]:
        named = {name.replace("_", "."): data for name, data in files.items()} or {"m.pb": b"no"}
        commands = [words.split() for words in typed]
        command = importlib.import_module(f"graphpatch.cli.{commands[-1][0]}").command
        monkeypatch.setattr(command, "callback", does)
        finds, _ = case.tried(case.Case(named, commands, "m.pb", original), tmp_path)
        assert not list(tmp_path.iterdir())
        return [find.fault for find in finds]

    return faults


def crash(**given: Any) -> None:
    raise KeyError(given["model"])


def long(**given: Any) -> int:
    click.echo("graphpatch: " + "x" * 9_000, err=True)
    return 1


def spin(**given: Any) -> None:
    until = time.process_time() + 5
    while time.process_time() < until:
        pass


def nest(**given: Any) -> None:
    nest(**given)


FAULTS: dict[str, Callable[..., Any]] = {
    "an input is overwritten": lambda **given: Path("m.pb").write_bytes(b"another") and None,
    "not JSON": lambda **given: click.echo('{"a": NaN}'),
    "crash": crash,
    "recursion": nest,
    "raw control characters": lambda **given: click.echo("a\x07"),
    "long message": long,
    "left over": lambda **given: Path(".out.pb.1.tmp").touch(),
    "slow": spin,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(fault: str, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case, "SECONDS", 0.2)
    typed = "ops m.pb --json" if fault == "not JSON" else "ops m.pb"
    assert seen(FAULTS[fault], typed) == [fault]


def test_a_wrong_output_is_seen(seen: Seen) -> None:
    made, rule = kinds.models()[0][1], kinds.rules_file(kinds.RULES[:1])

    def twice(**given: Any) -> None:
        Path(given["out"]).write_bytes(made + made)

    typed = ("apply r.json m.pb -o out.pb", "revert out.pb -o back.pb")
    assert "not reverted" in seen(twice, *typed, original="m.pb", m_pb=made, r_json=rule)


@pytest.mark.parametrize(
    ("file", "fault"), [("saved_model.pb", "not whole"), (".saved_model.pb.1.tmp", "left over")]
)
def test_a_folder_that_is_not_what_it_should_be_is_seen(file: str, fault: str, seen: Seen) -> None:
    def half(**given: Any) -> None:
        Path(given["out"]).mkdir()
        Path(given["out"], file).write_bytes(b"half")

    typed = f"apply r.json m.pb --inputs=x --outputs=out -o {outputs.EXPORTED}"
    assert fault in seen(half, typed)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (page({"a": "</script>"}, "<script>"), ""),
        (page({}, "")[:-9], "cut off"),
        (page({}, "").replace("{}", '{"a":NaN}', 1), "NaN"),
        (page({}, "").replace('id="document">', 'id="document"></script><script>'), "markup"),
    ],
)
def test_a_page_that_is_not_whole_is_seen(text: str, fault: str, seen: Seen) -> None:
    def written(code: int, **given: Any) -> int:
        Path(given["output"]).write_text(text)
        return code

    for code, kind in enumerate(("not whole", "half written")):
        faults = seen(functools.partial(written, code), f"view m.pb -o {outputs.PAGE}")
        assert faults == ([kind] if fault else [])
    if fault:
        with pytest.raises((AssertionError, ValueError), match=fault):
            outputs.check_page(text)


def ran(*words: str) -> str:
    environment = {**os.environ, "FUZZ_PYTHON": sys.executable}
    done = subprocess.run(
        [ROOT / "scripts/fuzz", *words], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_hostile_input_of_a_known_seed(tmp_path: Path) -> None:
    """The same inputs each time: where this fails, the change that it is run for did it."""
    typed = ("--seed", "1", "--inputs", "8000", "--folder", str(tmp_path))
    assert " 0 finds" in ran(*typed)


def test_random_graphs_beside_tensorflow(tmp_path: Path) -> None:
    told = ran("semantic", "--seed", "5", "--inputs", "8", "--folder", str(tmp_path))
    assert "ops patched" in told
    assert "finds" not in told


def test_kills_and_limits() -> None:
    assert "0 faults" in ran("crash", "--seed", "1", "--kills", "10")
