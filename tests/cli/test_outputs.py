"""Rules files and pages are written to names of their kind, so never over something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Run
from tests.refusals import everything, sound_files

# What each command writes, up to the name of the file.
RULES = {
    "doctor": ("doctor", "model.pb", "--fix"),
    "match": ("match", "rules.json", "model.pb", "--save"),
    "recipes": ("recipes", "guided_backprop", "--save"),
    "references": ("references", "model.pb", "--feed", "feed.npz", "-o"),
}
PAGE = ("view", "model.pb", "-o")
TYPED = [*((*one, "a rules file; name a .json file") for one in RULES.values())]
TYPED += [(*PAGE, "a page; name a .html file")]


@pytest.mark.parametrize("typed", TYPED, ids=[one[0] for one in TYPED])
@pytest.mark.parametrize("name", ["other.pb", "new", "-.pb"])
def test_another_file_is_never_written_over(
    run_cli: Run, tmp_path: Path, typed: tuple[str, ...], name: str
) -> None:
    folder = sound_files(tmp_path)
    (folder / "other.pb").write_bytes(b"mine")
    before = everything(folder)
    done = run_cli(*typed[:-1], name, cwd=folder)
    assert done.code == 2
    assert f"{name} gets {typed[-1]}" in done.stderr
    assert everything(folder) == before


@pytest.mark.parametrize("typed", RULES.values(), ids=RULES)
def test_no_rules_file_goes_to_a_file_of_the_name_of_a_pipe(
    run_cli: Run, tmp_path: Path, typed: tuple[str, ...]
) -> None:
    done = run_cli(*typed, "-", cwd=sound_files(tmp_path))
    assert done.code == 2
    assert "name a .json file" in done.stderr


def test_a_page_goes_to_a_device(run_cli: Run, tmp_path: Path) -> None:
    done = run_cli(*PAGE, "/dev/null", cwd=sound_files(tmp_path))
    assert (done.code, done.stderr) == (0, "")
