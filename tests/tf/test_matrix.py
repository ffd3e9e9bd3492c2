"""The page on runtimes says what the TensorFlows that are installed here do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scripts import matrix, matrix_files

PAGE = matrix.PAGE.read_text()
VERSIONS = [runtime.version for runtime in matrix.RUNTIMES]


def told() -> dict[tuple[str, str, str], str]:
    """What the page says, by version, way and file."""
    found = {}
    for section in re.split(r"^### ", PAGE, flags=re.M)[1:]:
        way, _, rest = section.partition("\n")
        if way == "Patch last":
            continue
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in rest.splitlines()
            if line.startswith("|")
        ]
        for name, newest, earlier in rows[2:]:
            found[VERSIONS[-1], way, name] = newest
            for run in filter(None, earlier.split("; ")):
                parts = re.fullmatch(r"([\d.]+)(?: to ([\d.]+))? (.*)", run)
                assert parts, run
                first, last, word = parts.groups()
                places = VERSIONS.index(first), VERSIONS.index(last or first)
                for version in VERSIONS[places[0] : places[1] + 1]:
                    found[version, way, name] = word
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files."""
    pytest.importorskip("tensorflow")
    found = tmp_path_factory.mktemp("matrix")
    matrix_files.build(found / "files")
    return found


@pytest.fixture(scope="module")
def measured(folder: Path) -> dict[str, Any]:
    """What the TensorFlows that are here do with the files."""
    found = {}
    for runtime in matrix.RUNTIMES:
        python = matrix.present(runtime, Path("no such folder"))
        if python is not None:
            output = folder / f"{runtime.version}.json"
            found[runtime.version] = matrix.measure(python, folder / "files", output)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("version", [runtime.version for runtime in matrix.RUNTIMES])
def test_the_page_is_right(measured: dict[str, Any], version: str) -> None:
    if version not in measured:
        pytest.skip(f"no TensorFlow {version} here; scripts/matrix.py --install has it")
    rows = measured[version]["rows"]
    said = {(way, name): word for name, row in rows.items() for way, word in row.items()}
    page = {(way, name): word for (of, way, name), word in told().items() if of == version}
    assert said == page


@pytest.mark.slow
def test_nothing_is_silently_wrong(measured: dict[str, Any]) -> None:
    assert measured
    assert list(matrix.silent(measured)) == []


def test_the_page_tells_of_every_file() -> None:
    names = {name for _, _, name in told()}
    assert names == {case.name for case in matrix_files.CASES}
