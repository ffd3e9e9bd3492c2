"""`apply --inputs --outputs`: a TF2 SavedModel, and what is said where there can be none."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphpatch.application import PATCH_LAST, TAPE_FLOOR
from graphpatch.formats import load
from tests import graphs
from tests.conftest import Run
from tests.refusals import META, MODEL, RULE, everything, refused, rules_text, sound_files

XY = ("--inputs", "x", "--outputs", "out")
GUIDED = RULE | {"patch": {"override_gradient": "guided_relu"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = sound_files(tmp_path)
    (found / "rules.json").write_text(rules_text(GUIDED))
    return found


@pytest.mark.parametrize("out", ["new", "new/", "empty", "older"])
def test_a_graph_becomes_a_saved_model(run_cli: Run, folder: Path, out: str) -> None:
    (folder / "empty").mkdir()
    graphs.saved_model_folder(folder / "older", graphs.metagraph(graphs.sample(), "old"))
    done = run_cli("apply", "rules.json", "model.pb", "-o", out, *XY, "--force", cwd=folder)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"model.pb -> {out}{' (replaced)' if out == 'older' else ''}",
        "  rule 1  1 Relu  (function)",
        f"  note: {PATCH_LAST}",
        f"  note: {TAPE_FLOOR}",
    ]
    written = everything(folder / out)
    assert sorted(written) == [
        "saved_model.pb", "variables/variables.data-00000-of-00001", "variables/variables.index",
    ]  # fmt: skip
    assert load(folder / out).format == "SavedModel"


def test_names_may_be_repeated_or_separated_by_commas(run_cli: Run, folder: Path) -> None:
    one = ("--inputs", "x, round", "--outputs", "out", "--json")
    other = ("--inputs", "x", "--inputs", "round", "--outputs", "out", "--json")
    first = run_cli("apply", "rules.json", "model.pb", "-o", "a", *one, cwd=folder)
    second = run_cli("apply", "rules.json", "model.pb", "-o", "b", *other, cwd=folder)
    assert (first.code, second.code) == (0, 0)
    assert everything(folder / "a") == everything(folder / "b")
    [report] = first.json["outputs"]
    assert report["consumer"] == {"session": [], "tape": []}
    assert "input x: no output depends on it" in report["notes"]


def test_a_model_from_a_pipe(run_cli: Run, folder: Path) -> None:
    args = ("apply", "rules.json", "-", "-o", "new", *XY)
    done = run_cli(*args, cwd=folder, stdin=MODEL)
    assert (done.code, done.stderr) == (0, "")
    assert load(folder / "new").graphs[0].around.is_object_based


def test_a_dry_run_writes_nothing(run_cli: Run, folder: Path) -> None:
    before = everything(folder)
    args = ("apply", "rules.json", "model.pb", "-o", "new", *XY, "--dry-run")
    assert run_cli(*args, cwd=folder).code == 0
    assert everything(folder) == before


USAGE: dict[str, list[str]] = {
    "no output": ["model.pb", *XY],
    "a pipe": ["model.pb", "-o", "-", *XY],
    "a file": ["model.pb", "-o", "new.pb", *XY],
    "no outputs": ["model.pb", "-o", "new", "--inputs", "x"],
    "empty": ["model.pb", "-o", "new", "--inputs", "", "--outputs", ""],
}


@pytest.mark.parametrize("args", USAGE.values(), ids=USAGE)
def test_wrong_usage(run_cli: Run, folder: Path, args: list[str]) -> None:
    before = everything(folder)
    done = run_cli("apply", "rules.json", *args, cwd=folder)
    assert (done.code, done.stdout) == (2, "")
    assert "Error: --inputs and --outputs " in done.stderr
    assert everything(folder) == before


REFUSED: dict[str, tuple[list[str], str]] = {
    "a placeholder is missing": (
        ["model.pb", "-o", "new", "--inputs", "done", "--outputs", "out"],
        "model.pb: there is no tensor done: 'done' is an op with 0 outputs",
    ),
    "over the rules": (["model.pb", "-o", "rules.json", *XY], "rules.json is the rules file"),
    "over a file": (["model.pb", "-o", "notes", *XY, "--force"], "notes is a file, and"),
    "below a file": (["model.pb", "-o", "notes/new", *XY], "cannot write notes/new: Not a dir"),
    "around the model": (["model.pb", "-o", ".", *XY, "--force"], ". holds the model itself"),
    "over other things": (
        ["model.pb", "-o", "other", *XY, "--force"],
        "other is a folder of other",
    ),
    "in the model": (["saved", "-o", "saved/new", *XY], "saved/new lies in a model's folder"),
}


@pytest.mark.parametrize(("args", "said"), REFUSED.values(), ids=REFUSED)
def test_where_there_can_be_none(run_cli: Run, folder: Path, args: list[str], said: str) -> None:
    (folder / "notes").write_text("of somebody")
    (folder / "other").mkdir()
    (folder / "other" / "model.meta").write_bytes(META)
    before = everything(folder)
    refused(run_cli("apply", "rules.json", *args, cwd=folder), said)
    assert everything(folder) == before
    assert not [path for path in folder.iterdir() if path.name in {"new", "gone"}]
