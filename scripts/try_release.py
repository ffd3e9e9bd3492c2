"""Install the built wheel into empty environments, and run the first example with each Python.

try_release.py                 build wheel and sdist, then try the wheel with each Python from 3.10
                               to 3.13 that is here, and by `pipx run`
try_release.py --dist FOLDER   the same of what lies in this folder
try_release.py --sdist         run the tests of the sdist from the unpacked sdist too (those that
                               need no TensorFlow), with the packages of this environment

Packages are fetched as pip is set up to fetch them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "scripts" / "models"
VERSIONS = ("3.10", "3.11", "3.12", "3.13")

# The first example of the README, then the first patch: each command and what it prints at least.
EXAMPLE: tuple[tuple[str, str], ...] = (
    ("ops digits.pb block2/relu", "block2/relu\n  type      Relu6\n"),
    ("apply guided.json digits.pb -o patched.pb", "digits.pb -> patched.pb\n"),
    ("check guided.json patched.pb -j 1", "patched.pb: applied\n"),
    ("revert patched.pb -o again.pb", "patched.pb -> again.pb\n"),
)


def build(folder: Path) -> None:
    """Write the sdist, and the wheel that is made of it."""
    _run([sys.executable, "-m", "build", "--outdir", folder, ROOT])


def python(version: str) -> Path | None:
    """Return a Python of this version, on the path or from pyenv; None where there is none."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = shutil.which(f"python{version}")
    named = [Path(on_path)] if on_path else []
    for candidate in [*named, *root.glob(f"versions/{version}.*/bin/python")]:
        code = f"import sys, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
        if subprocess.run([candidate, "-c", code], capture_output=True).returncode == 0:
            return candidate
    return None


def environment(interpreter: Path, folder: Path, *packages: str | Path) -> Path:
    """Return a new environment with these packages and what they need; its folder of programs."""
    _run([interpreter, "-m", "venv", folder])
    programs = folder / "bin"
    _run([programs / "python", "-m", "pip", "install", "--quiet", "--no-cache-dir", *packages])
    return programs


def try_example(command: Sequence[str | Path]) -> None:
    """Run the first example by a command, in a folder with a model and rules alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in ("digits.pb", "guided.json"):
            shutil.copy(MODELS / file, folder)
        for words, prints in EXAMPLE:
            said = _run([*command, *words.split()], folder)
            if prints not in said:
                raise SystemExit(f"{words}: expected {prints!r}, found {said!r}")
        if (folder / "again.pb").read_bytes() != (folder / "digits.pb").read_bytes():
            raise SystemExit("revert: the original is not the same")


def try_wheel(wheel: Path, version: str) -> bool:
    """Whether there is such a Python; there, the wheel runs the example."""
    interpreter = python(version)
    if interpreter is not None:
        with tempfile.TemporaryDirectory() as name:
            try_example([environment(interpreter, Path(name, "venv"), wheel) / "graphpatch"])
    return interpreter is not None


def try_pipx(wheel: Path) -> None:
    """Run the example by `pipx run`, with a pipx of its own."""
    with tempfile.TemporaryDirectory() as name:
        pipx = environment(Path(sys.executable), Path(name, "venv"), "pipx") / "pipx"
        os.environ.update(PIPX_HOME=f"{name}/home", PIPX_BIN_DIR=f"{name}/bin")
        try_example([pipx, "run", "--spec", wheel, "graphpatch"])


def try_sdist(sdist: Path, arguments: Sequence[str] = ()) -> str:
    """Run the sdist's tests from the unpacked sdist; what pytest says at the end."""
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(sdist) as archive:
            archive.extractall(name, filter="data")
        (folder,) = Path(name).iterdir()
        given = arguments or ("--ignore", "tests/tf", "--ignore", "tests/models")
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        said = _run([*pytest, *given], folder)
    return said.strip().rpartition("\n")[2]


def _run(command: Sequence[str | Path], folder: Path | None = None) -> str:
    outside = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=outside, capture_output=True, text=True)
    if done.returncode:
        words = " ".join(map(str, command))
        raise SystemExit(f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dist", type=Path)
    parser.add_argument("--sdist", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.dist or Path(name)
        if options.dist is None:
            build(folder)
        (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
        for version in VERSIONS:
            found = try_wheel(wheel, version)
            print(f"Python {version}: {'the wheel runs the example' if found else 'not here'}")
        try_pipx(wheel)
        print("pipx run: the wheel runs the example")
        if options.sdist:
            print(f"sdist: {try_sdist(sdist)}")


if __name__ == "__main__":
    main()
