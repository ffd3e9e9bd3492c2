from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from graphpatch.errors import OutputError
from graphpatch.fleet.search import Task, plan, search


@pytest.fixture(autouse=True)
def _tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (
        "reg/a.pb", "reg/v1/a.pb", "other/a.pb", "other/m/x.pb", "third/m/saved_model.pb",
        "rules/rules.pb",
    ):  # fmt: skip
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"")
    Path("file").write_bytes(b"")
    Path("link").symlink_to("reg")


def planned(*models: str, out: str | None = "out") -> dict[str, str]:
    tasks = plan(search(models), out, "rules/rules.pb")
    return {task.model: task.output for task in tasks}


def test_the_tree_is_mirrored() -> None:
    both = {"reg/a.pb": "out/a.pb", "reg/v1/a.pb": "out/v1/a.pb"}
    assert planned("reg") == both
    assert planned("reg/**/*.pb", out="./out/") == both
    assert planned("reg/v*/a.pb") == {"reg/v1/a.pb": "out/v1/a.pb"}
    assert planned("reg/a.pb", "third/m") == {"reg/a.pb": "out/a.pb", "third/m": "out/m"}
    assert planned("reg/*.pb", out="reg/out") == {"reg/a.pb": "reg/out/a.pb"}


def test_beside_where_nothing_is_said() -> None:
    expected = {"reg/a.pb": "reg/a.patched.pb", "third/m": "third/m.patched"}
    assert planned("reg/a.pb", "third/m", out=None) == expected
    assert planned("third/m/saved_model.pb", out=None) == {
        "third/m/saved_model.pb": "third/m.patched"
    }


REFUSED = {
    "reg other/a.pb -o out": "two models would be written to out/a.pb: reg/a.pb and other/a.pb",
    "other third/m -o out": (
        "other/m/x.pb would be written to out/m/x.pb, which lies in the output of third/m"
    ),
    "reg -o reg/out": "reg/out lies in reg, which is searched for models",
    "reg -o reg": "reg lies in reg, which is searched for models",
    "link -o reg/out": "reg/out lies in link, which is searched",
    "reg/**/*.pb -o reg/out": "reg/out lies in reg, which is searched",
    "reg/* -o reg/out/": "reg/out/ lies in reg, which is searched",
    "reg/*.pb -o reg": "reg/a.pb is the model itself; a model is never",
    "reg/v1/a.pb third/m other/m/x.pb -o third": "third/m is the",
    "rules/*.pb -o rules": "rules/rules.pb is the rules file; it is never",
    "reg -o file": "file is a file, and models go to a folder",
    "reg": "say where the models that are found go when patched: -o DIR",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_what_is_refused(typed: str) -> None:
    models, _, out = typed.partition(" -o ")
    with pytest.raises(OutputError, match=re.escape(REFUSED[typed])):
        planned(*models.split(), out=out or None)
    assert not os.path.lexists("out")


def test_an_output_over_another_input() -> None:
    models = [Task("reg/a.pb", relative="a.pb"), Task("other/a.pb", relative="b.pb")]
    with pytest.raises(OutputError, match=r"other/a\.pb is another of the models; a model is"):
        plan(models, "other", "rules/rules.pb")
