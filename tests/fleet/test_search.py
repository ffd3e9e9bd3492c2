from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from graphpatch.errors import FleetError
from graphpatch.fleet.search import is_search, search

TREE = (
    "a.pb", "b.pbtxt", "notes.txt", "deep/c.meta", "deep/er/a.pb", ".hidden/x.pb", "deep/.y.pb",
    "saved/saved_model.pb", "saved/keras_metadata.pb", "saved/assets/labels.pbtxt",
    "saved/variables/variables.index", "text/saved_model.pbtxt", "empty/readme.md", "[1].pb",
)  # fmt: skip
ALL = ["[1].pb", "a.pb", "b.pbtxt", "deep/c.meta", "deep/er/a.pb", "saved", "text"]


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in TREE:
        path = tmp_path / "reg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (tmp_path / "linked").symlink_to("reg")
    (tmp_path / "reg" / "loop").symlink_to(".")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(*arguments: str) -> list[tuple[str, str]]:
    return [(one.model, one.relative) for one in search(arguments)]


@pytest.mark.parametrize("folder", ["reg", "reg/", "linked", "reg/../reg"])
def test_a_folder_is_searched(folder: str) -> None:
    assert [relative for _, relative in found(folder)] == ALL
    for model, relative in found(folder):
        assert Path(model).samefile(Path("reg", relative))


GLOBS = {
    "reg/*.pb": ["[1].pb", "a.pb"],
    "reg/**/*.pb": ["[1].pb", "a.pb", "deep/er/a.pb", "saved"],
    "reg/*/saved_model.pb": ["saved"],
    "reg/*": ALL,
    "reg/s*": ["saved"],
    "reg/[!ab]*": ["[1].pb", "deep/c.meta", "deep/er/a.pb", "saved", "text"],
    "reg/[ab].pb*": ["a.pb", "b.pbtxt"],
    "reg/**/er/*": ["deep/er/a.pb"],
    "reg/**/": ALL,
    "*/a.pb": ["reg/a.pb"],  # linked folders are not searched
}


@pytest.mark.parametrize(("glob", "expected"), GLOBS.items())
def test_a_glob(glob: str, expected: list[str]) -> None:
    assert [relative for _, relative in found(glob)] == expected


def test_a_name_is_a_name() -> None:
    names = {
        "reg/a.pb": "a.pb",
        "reg/saved": "saved",
        "reg/text/saved_model.pbtxt": "text",
        "reg/[1].pb": "[1].pb",
        "gone.pb": "gone.pb",
    }
    assert found(*names) == list(names.items())
    assert not any(map(is_search, [*names, "-"]))
    assert all(map(is_search, ["reg", "reg/*.pb", "@list.txt", "reg/[2].pb"]))


def test_a_list(tree: Path) -> None:
    Path("list.txt").write_text("reg/a.pb\n\n  reg/deep/er/a.pb \nreg/deep/*.meta\nreg/saved/\n")
    expected = [
        ("reg/a.pb", "a.pb"),
        ("reg/deep/er/a.pb", "deep/er/a.pb"),
        ("reg/deep/c.meta", "c.meta"),
        ("reg/saved/", "saved"),
    ]
    assert found("@list.txt") == expected


def test_a_list_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"reg/a.pb\n")))
    assert found("@-") == [("reg/a.pb", "a.pb")]


EMPTY = {
    "reg/empty": "reg/empty is a folder without saved_model.pb or saved_model.pbtxt, and there is",
    "reg/*.meta": "no model matches reg/*.meta (files that end in .meta, .pb, .pbtxt, or Saved",
    "gone/*.pb": "no model matches gone/*.pb",
    "@gone.txt": "cannot read the list gone.txt: No such file",
    "@freeze(x)": "cannot read the list freeze(x): No such file or directory; a call takes one",
    "@blank.txt": "the list blank.txt names no models",
    "@binary.txt": "the list binary.txt is not UTF-8 (byte 0)",
    "@home.txt": "the list home.txt holds ~/a.pb, and only a shell knows what ~ is",
    "@nested.txt": "the list nested.txt holds @list.txt; a list holds paths, folders and globs",
}


@pytest.mark.parametrize(("argument", "said"), EMPTY.items())
def test_what_means_no_model(argument: str, said: str) -> None:
    Path("blank.txt").write_text("\n \n")
    Path("binary.txt").write_bytes(b"\xff")
    Path("nested.txt").write_text("@list.txt\n")
    Path("home.txt").write_text("~/a.pb\n")
    with pytest.raises(FleetError) as raised:
        search(["reg/a.pb", argument])
    assert str(raised.value).startswith(said)
