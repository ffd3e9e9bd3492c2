"""The wheel and the sdist, built once: what they hold, that they run, and that types are read.

The wheel runs in an empty environment on each Python that is here, and some tests from the sdist.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import try_release

from tests.examples import ROOT

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "typed_script.py"
# What is of use in a checkout alone.
OF_THE_CHECKOUT = {".ci", ".gitignore", ".github", "MANIFEST.in"}
# What is wrong, and that a type checker sees.
WRONG = """
import graphpatch.keras

graphpatch.load(3)
graphpatch.apply(3, "model.pb")
graphpatch.apply("rules.json", "model.pb").sav("patched.pb")
graphpatch.diff("a.pb")
number: int = graphpatch.check("rules.json", "model.pb").ok.document
graphpatch.clip_gradient([1.0], -0.1)
graphpatch.keras.GradientFilter(3)
graphpatch.keras.Surrogate("sign(x)", backwards="x")
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    try_release.build(folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def test_they_hold_what_git_knows(dist: tuple[Path, Path]) -> None:
    """The sdist all of the checkout, the wheel the package alone."""
    run = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        pytest.skip("not a git checkout")
    tracked = {one for one in run.stdout.splitlines() if one.split("/")[0] not in OF_THE_CHECKOUT}
    wheel, sdist = dist
    with tarfile.open(sdist) as file:
        assert tracked - {name.partition("/")[2] for name in file.getnames()} == set()
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"graphpatch", "graphpatch_tf"}
    assert {name for name in tracked if name.startswith("graphpatch/")} - set(names) == set()


@pytest.mark.parametrize("version", [try_release.VERSIONS[0], try_release.VERSIONS[-1]])
def test_the_wheel_runs_the_first_example(dist: tuple[Path, Path], version: str) -> None:
    if not try_release.try_wheel(dist[0], version):
        pytest.skip(f"no Python {version} is here")


def test_pipx_runs_it(dist: tuple[Path, Path]) -> None:
    try_release.try_pipx(dist[0])  # raises where the command does not run


def test_tests_run_from_the_sdist(dist: tuple[Path, Path]) -> None:
    """Some of them, which read scripts/ and docs/; scripts/try_release.py --sdist runs all."""
    chosen = ["tests/test_rules.py", "tests/test_schema.py", "tests/test_structure.py"]
    assert " passed" in try_release.try_sdist(dist[1], chosen)


@pytest.mark.parametrize(
    ("script", "lines"), [(SCRIPT.read_text(), []), (WRONG, range(4, 12))], ids=["right", "wrong"]
)
def test_mypy_reads_the_types_of_the_wheel(
    dist: tuple[Path, Path], tmp_path: Path, script: str, lines: list[int]
) -> None:
    """`mypy --strict` of a user's program, beside which nothing of the checkout lies."""
    pytest.importorskip("mypy")
    zipfile.ZipFile(dist[0]).extractall(tmp_path / "site")
    user = tmp_path / "user"
    user.mkdir()
    (user / "script.py").write_text(script)
    # No configuration but this: TensorFlow and tensorboard have no annotations.
    (user / "mypy.ini").write_text("[mypy]\n[mypy-tensorflow.*]\nignore_missing_imports = True\n")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "script.py"],
        capture_output=True, text=True, check=False, cwd=user,
        env={**environment, "MYPYPATH": str(tmp_path / "site")},
    )  # fmt: skip
    errors = [int(text.split(":")[1]) for text in done.stdout.splitlines() if ": error:" in text]
    assert errors == list(lines), done.stdout
    assert (done.returncode == 0) == (not errors)
    assert (tmp_path / "site/graphpatch/py.typed").exists()
