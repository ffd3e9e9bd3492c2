"""A user's program passes `mypy --strict` with graphpatch installed from its wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import ROOT

SCRIPT = Path(__file__).parent / "typed_script.py"

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


def ran(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-m", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel holds, built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    sources, site = folder / "sources", folder / "site"
    shutil.copytree(ROOT / "graphpatch", sources / "graphpatch")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources / name)
    quiet = ("-q", "--no-deps", "--disable-pip-version-check")
    done = ran("pip", "wheel", *quiet, "--no-build-isolation", "-w", folder, ".", cwd=sources)
    if done.returncode:
        pytest.skip(f"no wheel can be built here: {done.stderr[-300:]}")
    [wheel] = folder.glob("*.whl")
    done = ran("pip", "install", *quiet, "--target", site, wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    return site


def checked(script: str, installed: Path) -> subprocess.CompletedProcess[str]:
    """What mypy says of a program beside which nothing of the checkout lies."""
    pytest.importorskip("mypy")
    folder = installed.parent / "user"
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(script)
    # No configuration but this: TensorFlow and tensorboard have no annotations.
    (folder / "mypy.ini").write_text("[mypy]\n[mypy-tensorflow.*]\nignore_missing_imports = True\n")
    os.environ["MYPYPATH"] = str(installed)
    try:
        return ran("mypy", "--strict", "--follow-imports=silent", "script.py", cwd=folder)
    finally:
        del os.environ["MYPYPATH"]


@pytest.mark.slow
def test_a_program_that_uses_all_of_it_passes(installed: Path) -> None:
    done = checked(SCRIPT.read_text(), installed)
    assert done.returncode == 0, done.stdout
    assert (installed / "graphpatch" / "py.typed").exists()


@pytest.mark.slow
def test_what_is_wrong_is_seen(installed: Path) -> None:
    done = checked(WRONG, installed)
    told = [line.split(":")[1] for line in done.stdout.splitlines() if ": error:" in line]
    assert told == ["4", "5", "6", "7", "8", "9", "10", "11"], done.stdout
