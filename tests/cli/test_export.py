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
@pytest.mark.parametrize("model", ["model.pb", "-"])
def test_a_graph_becomes_a_saved_model(run_cli: Run, folder: Path, out: str, model: str) -> None:
    (folder / "empty").mkdir()
    graphs.saved_model_folder(folder / "older", graphs.metagraph(graphs.sample(), "old"))
    before = everything(folder)
    typed = ("apply", "rules.json", model, "-o", out, *XY, "--force")
    assert run_cli(*typed, "--dry-run", cwd=folder, stdin=MODEL).code == 0
    assert everything(folder) == before
    done = run_cli(*typed, cwd=folder, stdin=MODEL)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{model} -> {out}{' (replaced)' if out == 'older' else ''}",
        "  rule 1  1 Relu  (function)",
        f"  note: {PATCH_LAST}",
        f"  note: {TAPE_FLOOR}",
    ]
    assert sorted(everything(folder / out)) == [
        "saved_model.pb", "variables/variables.data-00000-of-00001", "variables/variables.index",
    ]  # fmt: skip
    assert load(folder / out).graphs[0].around.is_object_based


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


USAGE = {
    "no output": ("model.pb", *XY),
    "a pipe": ("model.pb", "-o", "-", *XY),
    "a file": ("model.pb", "-o", "new.pb", *XY),
    "no outputs": ("model.pb", "-o", "new", "--inputs", "x"),
    "empty": ("model.pb", "-o", "new", "--inputs", "", "--outputs", ""),
}


@pytest.mark.parametrize("args", USAGE.values(), ids=USAGE)
def test_wrong_usage(run_cli: Run, folder: Path, args: tuple[str, ...]) -> None:
    before = everything(folder)
    done = run_cli("apply", "rules.json", *args, cwd=folder)
    assert (done.code, done.stdout) == (2, "")
    assert "Error: --inputs and --outputs " in done.stderr
    assert everything(folder) == before


REFUSED = {
    "model.pb -o new --inputs done --outputs out": (
        "model.pb: there is no tensor done: 'done' is an op with 0 outputs"
    ),
    "model.pb -o rules.json": "rules.json is the rules file",
    "model.pb -o notes --force": "notes is a file, and",
    "model.pb -o notes/new": "cannot write notes/new: Not a dir",
    "model.pb -o . --force": ". holds the model itself",
    "model.pb -o other --force": "other is a folder of other",
    "saved -o saved/new": "saved/new lies in a model's folder",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_where_there_can_be_none(run_cli: Run, folder: Path, typed: str) -> None:
    (folder / "notes").write_text("of somebody")
    (folder / "other").mkdir()
    (folder / "other" / "model.meta").write_bytes(META)
    before = everything(folder)
    ends = () if "--inputs" in typed else XY
    refused(run_cli("apply", "rules.json", *typed.split(), *ends, cwd=folder), REFUSED[typed])
    assert everything(folder) == before
    assert not (folder / "new").exists()
