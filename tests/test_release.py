"""What is released holds what it needs."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.examples import ROOT

# What is of use in a checkout alone.
OF_THE_CHECKOUT = {".ci", ".gitignore", ".github", "MANIFEST.in"}


def tracked() -> set[str]:
    """The files that git knows; the test is skipped outside a checkout."""
    run = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        pytest.skip("not a git checkout")
    return {name for name in run.stdout.splitlines() if name.split("/")[0] not in OF_THE_CHECKOUT}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that is made of it."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", folder, ROOT]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return folder


@pytest.mark.slow
def test_the_sdist_holds_the_checkout(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert tracked() - names == set()


@pytest.mark.slow
def test_the_wheel_holds_the_package_alone(built: Path) -> None:
    (archive,) = built.glob("*.whl")
    names = zipfile.ZipFile(archive).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"graphpatch", "graphpatch_tf"}
    package = {name for name in tracked() if name.startswith("graphpatch/")}
    assert package - set(names) == set()
