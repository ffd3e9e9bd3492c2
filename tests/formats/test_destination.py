"""What a path or URL leads to, and what an output may replace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from graphpatch import load
from graphpatch.errors import OutputError
from graphpatch.formats.destination import JSON_MARK, Inputs, is_unedited, marked, place, replaces
from graphpatch.gradients import tensors
from graphpatch.runtime.references import References
from tests.conftest import Run
from tests.refusals import everything

MANIFEST = "out/graphpatch-manifest.jsonl"


@pytest.mark.parametrize(
    "url",
    [
        "file://{0}/model.pb",
        "local://{0}/model.pb",
        "file:///{0}/saved/../model.pb",
        "simplecache::file://{0}/model.pb",
        "zip://a.pb::file://{0}/model.pb",
        "dir://model.pb::file://{0}",
        "{0}/link.pb",
        "{0}/hard.pb",
    ],
)
def test_urls_and_links_of_one_file_are_the_same(folder: Path, url: str) -> None:
    (folder / "link.pb").symlink_to("model.pb")
    os.link(folder / "model.pb", folder / "hard.pb")
    path = url.format(folder)
    assert Inputs([path]).met_by(folder / "model.pb")
    assert Inputs([str(folder / "model.pb")]).met_by(path)
    assert not Inputs([path]).met_by(folder / "large.pb")


def test_stores_are_spelled_in_one_way() -> None:
    assert place("memory://a/b.pb") == place("memory:///a/./b.pb")
    assert place("zip://m.pb::memory://a.zip") != place("zip://n.pb::memory://a.zip")
    assert not Inputs(["zip://m.pb::memory://a.zip"]).met_by("zip://n.pb::memory://a.zip")


def test_no_folder_that_holds_an_input_is_replaced(run_cli: Run, folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "rules.json").rename(folder / "out/rules.json")
    (folder / "saved").rename(folder / "out/saved")
    before = everything(folder)
    done = run_cli("apply", "out/rules.json", "model.pb", "-o", "out", cwd=folder)
    assert (done.code, everything(folder).keys() - before.keys()) == (0, {"out/model.pb", MANIFEST})
    before = everything(folder)
    args = ("--inputs", "x", "--outputs", "out", "-o", "out", "--force")
    done = run_cli("apply", "out/rules.json", "model.pb", *args, cwd=folder)
    assert (done.code, "out holds the rules file" in done.stderr) == (1, True)
    with pytest.raises(OutputError, match="holds the model itself"):
        load(folder / "out/saved").save(folder / "out")
    assert everything(folder) == before


@pytest.mark.parametrize(
    ("model", "out"),
    [
        ("model.pb", "file://{0}/model.pb"),
        ("local://{0}/model.pb", "file://{0}/hard.pb"),
        ("many", "file://{0}/many/"),
        ("file://{0}/many", "many/"),
        ("saved", "file://{0}/saved"),
    ],
)
def test_no_command_writes_over_its_input(run_cli: Run, folder: Path, model: str, out: str) -> None:
    (folder / "many").mkdir()
    (folder / "many/a.pb").write_bytes((folder / "model.pb").read_bytes())
    os.link(folder / "model.pb", folder / "hard.pb")
    before = everything(folder)
    for force in ([], ["--force"]):
        args = ("rules.json", model.format(folder), "-o", out.format(folder))
        done = run_cli("apply", *args, *force, cwd=folder)
        assert done.code == 1, done.stderr
        assert everything(folder) == before


OVER = {
    "revert": (["revert", "patched.pb", "-o"], "patched.pb", "out.pb"),
    "view": (["view", "model.pb", "-o"], "model.pb", "out.html"),
    "view, of two": (["view", "model.pb", "patched.pb", "-o"], "patched.pb", "out.html"),
    "references": (["references", "model.pb", "--feed", "x.npz", "-o"], "model.pb", "out.json"),
    "doctor": (["doctor", "model.pb", "--fix"], "model.pb", "out.json"),
    "match": (["match", "rules.json", "model.pb", "--save"], "model.pb", "out.json"),
}


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize(("args", "read", "out"), OVER.values(), ids=OVER)
def test_no_link_to_what_is_read_is_replaced(
    run_cli: Run, folder: Path, args: list[str], read: str, out: str, link: Any
) -> None:
    assert run_cli("apply", "rules.json", "model.pb", "-o", "patched.pb", cwd=folder).code == 0
    link(folder / read, folder / out)
    before = everything(folder)
    done = run_cli(*args, out, "--force", cwd=folder)
    assert (done.code, "never written over" in done.stderr) == (1, True)
    assert everything(folder) == before


# Each command that writes; what it writes; what else it needs.
WRITERS: dict[str, tuple[list[str], str]] = {
    "apply": (["apply", "rules.json", "model.pb", "-o", "out.pb"], "out.pb"),
    "apply, a folder": (["apply", "rules.json", "saved", "-o", "out"], "out"),
    "apply, many": (["apply", "rules.json", "model.pb", "large.pb", "-o", "out/"], "out/model.pb"),
    "revert": (["revert", "patched.pb", "--rule", "rule 1", "-o", "out.pb"], "out.pb"),
    "revert, a folder": (["revert", "patched", "-o", "out"], "out"),
    "view": (["view", "model.pb", "-o", "out.html"], "out.html"),
    "recipes": (["recipes", "guided_backprop", "--save", "out.json"], "out.json"),
    "doctor": (["doctor", "model.pb", "--fix", "out.json"], "out.json"),
    "match": (["match", "rules.json", "model.pb", "--save", "out.json"], "out.json"),
}


@pytest.mark.parametrize(("args", "out"), WRITERS.values(), ids=WRITERS)
def test_what_graphpatch_did_not_write_is_replaced_by_force_alone(
    run_cli: Run, folder: Path, args: list[str], out: str
) -> None:
    assert run_cli("apply", "rules.json", "model.pb", "-o", "patched.pb", cwd=folder).code == 0
    assert run_cli("apply", "rules.json", "saved", "-o", "patched", cwd=folder).code == 0
    path = folder / out
    if out == "out":
        path.mkdir()
        mine = path / "saved_model.pb"
    else:
        path.parent.mkdir(exist_ok=True)
        mine = path
    mine.write_bytes(b"mine")
    refused = run_cli(*args, cwd=folder)
    assert refused.code == 1
    assert "--force" in refused.stderr
    assert mine.read_bytes() == b"mine"
    assert run_cli(*args, "--force", cwd=folder).code == 0
    assert mine.read_bytes() != b"mine"
    again = run_cli(*args, cwd=folder)
    assert again.code == 0, again.stderr
    assert "(replaced)" in again.stdout


def test_a_rules_file_that_was_edited_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    text = f'{{"rules": [], "written": "{JSON_MARK["written"]}"}}\n'
    path.write_bytes(marked(text.encode()))
    assert is_unedited(path.read_bytes())
    assert replaces(str(path), is_marked=True)
    path.write_bytes(path.read_bytes().replace(b"[]", b"[1]"))
    with pytest.raises(OutputError, match="or it was edited since"):
        replaces(str(path), is_marked=True)
    assert replaces(str(path), force=True, is_marked=True)


def test_a_folder_with_a_file_of_the_users_is_not_replaced(run_cli: Run, folder: Path) -> None:
    args = ("apply", "rules.json", "saved", "-o", "out")
    assert run_cli(*args, cwd=folder).code == 0
    assert "(replaced)" in run_cli(*args, cwd=folder).stdout
    (folder / "out/notes.txt").write_text("mine")
    assert "holds what graphpatch did not write: notes.txt" in run_cli(*args, cwd=folder).stderr
    assert (folder / "out/notes.txt").read_text() == "mine"


def test_a_copy_of_the_model_and_empty_files_are_nothing_to_lose(folder: Path) -> None:
    (folder / "copy.pb").write_bytes((folder / "model.pb").read_bytes())
    (folder / "empty.pb").touch()
    assert replaces(str(folder / "copy.pb"), original=folder / "model.pb")
    assert not replaces(str(folder / "empty.pb"))
    assert not replaces("/dev/null")


@pytest.mark.parametrize("array", [np.eye(3, 2), np.float32(2), np.asfortranarray(np.eye(2, 5))])
def test_arrays_of_references_stay_where_edited(run_cli: Run, tmp_path: Path, array: Any) -> None:
    args = ("references", "model.pb", "--feed", "gone.npz", "-o", "ref.json")
    arrays = {"ref/000.npy": np.asarray(array)}
    with References({"rules": []}, arrays, {}).writing(tmp_path / "ref.json"):
        pass
    path = tmp_path / "ref/000.npy"
    assert_array_equal(np.load(path), array)
    assert_array_equal(tensors.array(path.read_bytes(), "000.npy"), array)
    assert "cannot read gone.npz" in run_cli(*args, cwd=tmp_path).stderr  # they may be replaced
    (tmp_path / "ref/notes.txt").write_text("mine")
    refused = "ref/notes.txt exists, and graphpatch did not write it"
    assert refused in run_cli(*args, cwd=tmp_path).stderr
    (tmp_path / "ref/notes.txt").unlink()
    np.save(path, np.asarray(array) + 1)
    assert "ref/000.npy exists" in run_cli(*args, cwd=tmp_path).stderr
