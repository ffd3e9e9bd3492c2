"""A disk that is really full, where this process may mount one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.refusals import LARGE, RULE, everything, rules_text

ROOM = 5 * len(LARGE)


def mounted(folder: Path, options: str) -> bool:
    if shutil.which("mount") is None:
        return False
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if not mounted(folder, f"size={ROOM}"):
        pytest.skip("a small disk cannot be mounted here: that takes root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_has_room_is_whole_and_the_rest_is_resumed(
    run_cli: Run, tmp_path: Path, small: Path, jobs: str
) -> None:
    (tmp_path / "reg").mkdir()
    for place in range(12):
        (tmp_path / "reg" / f"{place}.pb").write_bytes(LARGE)
    (tmp_path / "rules.json").write_text(rules_text(RULE))
    args = ("apply", "rules.json", "reg", "-j", jobs, "-o")
    run_cli(*args, "here", cwd=tmp_path)
    whole = everything(tmp_path / "here")
    done = run_cli(*args, "small/out", cwd=tmp_path)
    assert done.code == 1
    assert "Traceback" not in done.stderr
    failed = [line for line in done.stderr.splitlines() if "No space left on device" in line]
    written = everything(small / "out")
    named = {name: data for name, data in written.items() if name.endswith(".pb")}
    assert not [name for name in written if name.startswith(".")]
    assert named == {name: whole[name] for name in named}
    assert 0 < len(named) < 12
    assert len(failed) == 12 - len(named)
    assert mounted(small, f"remount,size={100 * len(LARGE)}")
    assert run_cli(*args, "small/out", "--resume", cwd=tmp_path).code == 0
    after = everything(small / "out")
    assert after.keys() == whole.keys()
    assert all(after[name] == whole[name] for name in whole if name.endswith(".pb"))
