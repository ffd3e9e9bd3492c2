"""The files of the page: all scripts are in it, and their lines are as short as those of Python."""

from __future__ import annotations

from pathlib import Path

import graphpatch.page.view as page

FILES = Path(page.__file__).parent / "files"
COLUMNS = 100


def test_every_file_is_in_the_script() -> None:
    assert sorted(path.stem for path in FILES.glob("*.js")) == sorted(page.SCRIPTS)


def test_no_line_is_longer_than_those_of_python() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in FILES.iterdir()}
    long = {
        f"{name}:{number}": len(line)
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > COLUMNS
    }
    assert long == {}
