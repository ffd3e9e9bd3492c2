from __future__ import annotations

import os
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


REFUSED: dict[str, tuple[list[str], str | None, str]] = {
    "two to one": (
        ["reg", "other/a.pb"], "out",
        "two models would be written to out/a.pb: reg/a.pb and other/a.pb",
    ),
    "one in another": (
        ["other", "third/m"], "out",
        "other/m/x.pb would be written to out/m/x.pb, which lies in the output of third/m",
    ),
    "in the tree": (["reg"], "reg/out", "reg/out lies in reg, which is searched for models"),
    "the tree": (["reg"], "reg", "reg lies in reg, which is searched for models"),
    "in the tree, by a link": (["link"], "reg/out", "reg/out lies in link, which is searched"),
    "in the tree of a glob": (["reg/**/*.pb"], "reg/out", "reg/out lies in reg, which is searched"),
    "over itself": (["reg/*.pb"], "reg", "reg/a.pb is the model itself; a model is never"),
    "over another": (["reg/*.pb", "other/a.pb"], "other", "two models would be written to other/a"),
    "over one of them": (
        ["reg/v1/*.pb", "reg/a.pb"], "reg", "two models would be written to reg/a.pb",
    ),
    "over another model": (["reg/v1/a.pb", "third/m", "other/m/x.pb"], "third", "third/m is the"),
    "over the rules": (["rules/*.pb"], "rules", "rules/rules.pb is the rules file; it is never"),
    "a file": (["reg"], "file", "file is a file, and models go to a folder"),
    "nowhere": (["reg"], None, "say where the models that are found go when patched: -o DIR"),
}  # fmt: skip


@pytest.mark.parametrize(("models", "out", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(models: list[str], out: str | None, said: str) -> None:
    with pytest.raises(OutputError) as raised:
        planned(*models, out=out)
    assert str(raised.value).startswith(said)
    assert not os.path.lexists("out")


def test_an_output_over_another_input() -> None:
    found = [Task("reg/a.pb", relative="a.pb"), Task("other/a.pb", relative="b.pb")]
    with pytest.raises(
        OutputError, match=r"other/a\.pb is another of the models; a model is never"
    ):
        plan(found, "other", "rules/rules.pb")
