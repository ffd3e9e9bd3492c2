"""`graphpatch split`: what it writes, what it says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphpatch.cli.schema import output_schema
from tests.conftest import Run
from tests.forked import COMMAND, python
from tests.graphs import listed, saved
from tests.patches.one_op import net
from tests.refusals import everything, refused
from tests.test_no_tensorflow import REFUSE

CHAIN = net("""x:Placeholder a:Tanh(x) skip:Sin(x) add:AddV2(a, skip) rounded:Round(add)
    loss:Tanh(add) y:Tanh(rounded)""")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved(tmp_path, *CHAIN)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    return tmp_path


SPLIT = ("split", "model.pb", "--loss", "loss", "--wrt", "x")

REFUSED = {
    "--cut ad": ["no tensor 'ad'", "nearest: add"],
    "--cut a": ["a:0 is not a cut", "x:0 -> skip:0", "a:0, skip:0", "it: add:0"],
    "--cut y": ["y:0 is not upstream of loss:0"],
    "--cut add --loss y": ["no gradient flows from y:0 back to x:0: none passes Round 'rounded'"],
    "--cut add -o other": ["other is a folder of other things"],
    "--cut add -o model.pb": ["model.pb is not a folder"],
    "--cut add -o .": [". is a folder of other things"],
}


@pytest.mark.every(3)
@pytest.mark.parametrize("typed", REFUSED)
def test_bad_input(run_cli: Run, folder: Path, typed: str) -> None:
    """What is no cut is found out before TensorFlow is needed."""
    before = everything(folder)
    done = run_cli(*SPLIT, *typed.split(), cwd=folder, command=WITHOUT)
    refused(done, *REFUSED[typed])
    assert everything(folder) == before


WITHOUT = [*python(COMMAND), "-c", f"{REFUSE}from graphpatch.cli import main; main()"]
NOT_INSTALLED = REFUSE.replace("AssertionError", "ModuleNotFoundError")


def test_without_tensorflow(run_cli: Run, folder: Path) -> None:
    code = f"{NOT_INSTALLED}from graphpatch.cli import main; main()"
    done = run_cli(*SPLIT, "--cut", "add", cwd=folder, command=[*python(COMMAND), "-c", code])
    refused(done, "TensorFlow, which is not installed here", "pip install tensorflow")
    assert not list(folder.glob("*.parts"))


def test_what_is_written(run_cli: Run, folder: Path) -> None:
    pytest.importorskip("tensorflow")
    done = run_cli(*SPLIT, "--cut", "a,skip", "--cut", "add", "--json", cwd=folder)
    assert done.code == 0, done.stderr
    written = json.loads((folder / "model.parts" / "parts.json").read_text())
    assert written.pop("written").startswith("by graphpatch; checksum ")
    assert done.json == {"output": "model.parts", **written, "notes": []}
    pytest.importorskip("jsonschema").validate(done.json, output_schema("split"))
    assert written["cuts"] == [["a:0", "skip:0"], ["add:0"]]
    assert [part["file"] for part in written["parts"]] == ["part1.pb", "part2.pb", "part3.pb"]
    fed = ("gradient/a:0", "gradient/skip:0", "x:0")
    assert written["steps"][-1] == {
        "part": "part1.pb",
        "feed": dict(zip(fed, fed, strict=True)),
        "fetch": {"gradient/x:0": "gradient/x:0"},
        "may_feed": [],
    }
    first = everything(folder / "model.parts")
    again = run_cli(*SPLIT, "--cut", "a,skip", "--cut", "add", cwd=folder)
    assert again.code == 0, again.stderr
    assert everything(folder / "model.parts") == first
    assert "model.pb -> model.parts" in again.stdout
    assert f"  5. part1.pb: feed {', '.join(fed)}; fetch gradient/x:0" in again.stdout


def test_what_an_import_would_run_is_refused(run_cli: Run, tmp_path: Path) -> None:
    """Before TensorFlow is imported: it reads the file of a constant name to know its shape."""
    text = listed("name", b"/etc/passwd", dtype="string")
    nodes = net("read:ReadFile(name) x:Placeholder y:Relu(x) z:Relu(y)")
    model = saved(tmp_path, text, *nodes)
    asked = ("--cut", "y", "--loss", "z", "--wrt", "x")
    done = run_cli("split", model, *asked, "-o", tmp_path / "out")
    assert (done.code, (tmp_path / "out").exists()) == (1, False)
    assert "ReadFile 'read' touches files" in done.stderr
