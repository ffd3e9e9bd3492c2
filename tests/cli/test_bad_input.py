"""Bad input: one clear message, exit 1, no output file, and nothing temporary left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphpatch import apply, cli, load, revert
from graphpatch.errors import ModelError
from graphpatch.graph import wire
from graphpatch.graph.wire import SMALL
from tests import graphs
from tests.conftest import Run
from tests.graphs import graphdef, node
from tests.refusals import LARGE, META, MODEL, RULE, SAMPLE, everything, refused, rules_text

BROKEN: dict[str, tuple[bytes, list[str]]] = {
    "weights cut": (LARGE[:200_000], ["truncated"]),
    "text cut": (str(SAMPLE)[:-3].encode(), ["not a GraphDef in text form"]),
    "dangling inputs": (
        graphdef(node("features", "NoOp"), node("r", "Relu", "featrues")).SerializeToString(),
        ["1 inputs name no op; the first is input 'featrues' of 'r'", "nearest: features"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "said"), BROKEN.values(), ids=BROKEN)
def test_a_broken_model(run_cli: Run, folder: Path, data: bytes, said: list[str]) -> None:
    (folder / "broken.pb").write_bytes(data)
    before = everything(folder)
    done = run_cli("apply", "rules.json", "broken.pb", cwd=folder)
    refused(done, "broken.pb", *said)
    assert everything(folder) == before


@pytest.mark.parametrize("data", [b"", b"no model", MODEL[:-1]])
def test_a_broken_model_in_a_pipe(run_cli: Run, folder: Path, data: bytes) -> None:
    before = everything(folder)
    for command in ("apply", "rules.json"), ("ops",):
        done = run_cli(*command, "-", cwd=folder, stdin=data)
        refused(done, "-: " if data else "standard input is empty")
    assert everything(folder) == before


@pytest.mark.every(2)
@pytest.mark.parametrize("data", [MODEL, META], ids=["GraphDef", "MetaGraphDef"])
def test_a_model_cut_short_anywhere(
    folder: Path,
    data: bytes,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = everything(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["graphpatch", "apply", "rules.json", "cut.pb"])
    for end in set(range(len(data))) - {field.end for field in wire.fields(data, 0, len(data))}:
        (folder / "cut.pb").write_bytes(data[:end])
        assert cli._run() == 1
        said = capfdbinary.readouterr()
        assert said.out == b""
        assert said.err.startswith(b"graphpatch: cut.pb")
        assert said.err.count(b"\n") == 1
    (folder / "cut.pb").unlink()
    assert everything(folder) == before


@pytest.mark.parametrize("more", [(), ("-o", "new/", "--dry-run")])
def test_bad_rules_write_nothing(run_cli: Run, folder: Path, more: tuple[str, ...]) -> None:
    """What is said of each mistake stands in tests/data/messages.md."""
    rules = (RULE, RULE | {"match": {"any": [{"nmae": "x"}]}})
    (folder / "rules.json").write_text(rules_text(*rules))
    done = run_cli("apply", "rules.json", "model.pb", *more, cwd=folder)
    refused(done, "rules.json: rules[1].match.any[0]: unknown key 'nmae'; nearest: name")
    (folder / "rules.json").write_text(rules_text(RULE, RULE | {"match": {"op": "Rleu"}}))
    before = everything(folder)
    refused(run_cli("apply", "rules.json", "model.pb", *more, cwd=folder), "matched nothing")
    assert everything(folder) == before


# A model that is cut short, or changed, while it is read.


RULES = [{"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}]

READ_AFTER = """
import os, sys
from graphpatch.cli import report_cut_short
report_cut_short()
from pathlib import Path
from graphpatch import load
from graphpatch.formats.output import unfinished
model = load(sys.argv[1])
with unfinished(Path(sys.argv[1] + ".out")):
    os.truncate(sys.argv[1], 4096)
    model.graphs[0].main.node("last").attrs()
"""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A model that is mapped, not read: a constant of more than SMALL bytes, and an op behind."""
    path = tmp_path / "large.pb"
    graph = graphs.graphdef(
        node("x", "Placeholder"), graphs.const("w", SMALL + 4), node("last", "Relu", "x")
    )
    path.write_bytes(graph.SerializeToString(deterministic=True))
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="SIGBUS")
def test_the_command_says_so(large: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", READ_AFTER, str(large)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip().startswith("graphpatch: the file of the model was changed while")
    assert [path.name for path in tmp_path.iterdir()] == ["large.pb"]


def _truncated(path: Path) -> None:
    os.truncate(path, 4096)


def _overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(SMALL // 2)
        file.write(b"other")


@pytest.mark.parametrize("change", [_truncated, _overwritten])
def test_nothing_is_written_of_a_file_that_was_changed(
    large: Path, tmp_path: Path, change: Callable[[Path], Any]
) -> None:
    patched = apply(RULES, large).model
    (tmp_path / "out.pb").write_bytes(b"the old one")
    change(large)
    with pytest.raises(ModelError, match="was changed while it was read"):
        patched.save(tmp_path / "out.pb")
    assert (tmp_path / "out.pb").read_bytes() == b"the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large.pb", "out.pb"]


def test_a_large_model_is_given_back_and_checked(large: Path, tmp_path: Path) -> None:
    apply(RULES, large).model.save(tmp_path / "out.pb")
    revert(load(tmp_path / "out.pb")).model.save(tmp_path / "back.pb")
    assert (tmp_path / "back.pb").read_bytes() == large.read_bytes()
    with (tmp_path / "out.pb").open("r+b") as file:
        file.seek(SMALL // 2)
        file.write(b"\x03")
    with pytest.raises(ModelError, match="its checksum differs"):
        revert(load(tmp_path / "out.pb"))
