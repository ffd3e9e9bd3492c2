"""The built wheel in an empty environment, on each Python that is here; and the sdist's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import try_release


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    try_release.build(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("version", [try_release.VERSIONS[0], try_release.VERSIONS[-1]])
def test_the_wheel_runs_the_first_example(dist: Path, version: str) -> None:
    (wheel,) = dist.glob("*.whl")
    if not try_release.try_wheel(wheel, version):
        pytest.skip(f"no Python {version} is here")


@pytest.mark.slow
def test_pipx_runs_it(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    try_release.try_pipx(wheel)  # raises where the command does not run
    assert wheel.exists()


@pytest.mark.slow
def test_tests_run_from_the_sdist(dist: Path) -> None:
    """Some of them, which read scripts/ and docs/; scripts/try_release.py --sdist runs all."""
    (sdist,) = dist.glob("*.tar.gz")
    chosen = ["tests/test_rules.py", "tests/test_schema.py", "tests/test_structure.py"]
    assert " passed" in try_release.try_sdist(sdist, chosen)
