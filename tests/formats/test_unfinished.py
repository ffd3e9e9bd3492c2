"""What is not whole yet: its name, who may take it away, the mode of what it takes the place of."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from graphpatch import load
from graphpatch.errors import OutputError
from graphpatch.formats import output
from graphpatch.formats.output import sweep, unfinished, write_file, write_folder
from tests import graphs
from tests.conftest import Run
from tests.refusals import RULE, everything, rules_text

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="locks of open files")

HOLD = """
import sys, time
from pathlib import Path
from graphpatch.formats.output import unfinished
with unfinished(Path(sys.argv[1]), is_folder=sys.argv[2] == "folder") as path:
    print(path.name, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_process_left_is_swept_and_no_other(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "out"), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        left = tmp_path / holder.stdout.readline().strip()
        sweep([tmp_path / "out"])
        assert left.exists()
        holder.kill()
        holder.wait()
        assert left.exists()
    (tmp_path / ".out.17.tmp").touch()  # as graphpatch 0.1 called them
    (tmp_path / ".other.0123456789ab.tmp").touch()
    (tmp_path / ".out.0123456789ab.tmp").symlink_to(tmp_path / "elsewhere")
    sweep([tmp_path / "out"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".other.0123456789ab.tmp", ".out.0123456789ab.tmp",
    ]  # fmt: skip


def test_saving_sweeps(tmp_path: Path, model_file: Path) -> None:
    (tmp_path / ".out.pb.0123456789ab.tmp").touch()
    load(model_file).save(tmp_path / "out.pb")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pb", "out.pb"]


def test_two_writers_of_one_process_number_do_not_meet(tmp_path: Path) -> None:
    with unfinished(tmp_path / "out") as one, unfinished(tmp_path / "out") as other:
        assert one != other
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x" * 253, "é" * 126, "x" * 255])
def test_long_names(tmp_path: Path, name: str) -> None:
    write_file(tmp_path / name, [b"new"])
    write_file(tmp_path / name, [b"newer"])
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with pytest.raises(OutputError, match="File name too long"):
        write_file(tmp_path / ("x" * 256), [b""])


@pytest.mark.parametrize("mode", [0o640, 0o444])
def test_a_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    (tmp_path / "out").touch()
    (tmp_path / "out").chmod(mode)
    write_file(tmp_path / "out", [b"new"])
    assert (tmp_path / "out").read_bytes() == b"new"
    assert (tmp_path / "out").stat().st_mode & 0o777 == mode


def test_a_folder_keeps_its_modes(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", {"message": [b"old"], "below/file": [b""]})
    (tmp_path / "out").chmod(0o750)
    (tmp_path / "out/message").chmod(0o640)
    write_folder(tmp_path / "out", {"message": [b"new"], "below/file": [b""], "more": [b""]})
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "out", tmp_path / "out/message")]
    assert modes == [0o750, 0o640]
    assert (tmp_path / "out/more").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_what_cannot_be_locked_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no descriptor to spare, even the module that locks cannot be imported."""

    def refused(*args: object) -> bool:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(output, "_is_locked", refused)
    with pytest.raises(OSError, match="Too many open files"), unfinished(tmp_path / "a"):
        pass
    assert not list(tmp_path.iterdir())


# A folder that takes the place of another: who is killed over it.


# A process that is killed over the first rename of a folder.
KILLED = """
import os, signal
from pathlib import Path
def killed(call):
    def counted(*args, **kwargs):
        result = call(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
        return result
    return counted
Path.rename = killed(Path.rename)
from graphpatch.cli import main; main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("fleet", [True, False], ids=["resumed", "again"])
def test_a_kill_in_the_middle_is_repaired(run_cli: Run, tmp_path: Path, fleet: bool) -> None:
    graphs.saved_model_folder(tmp_path / "reg/m", graphs.metagraph(graphs.sample(), "serve"))
    (tmp_path / "rules.json").write_text(rules_text(RULE))
    args = ["apply", "rules.json", "reg" if fleet else "reg/m", "-o", "out/m"]
    args = [*args[:4], "out", "-j", "1", "--resume"] if fleet else args
    (tmp_path / "out").mkdir()
    assert run_cli(*args, cwd=tmp_path).code == 0
    (tmp_path / "rules.json").write_text(rules_text(RULE | {"patch": {"stop_gradient": True}}))
    done = run_cli(*args, cwd=tmp_path, command=[sys.executable, "-c", KILLED])
    assert done.code == -signal.SIGKILL
    assert len(list((tmp_path / "out").glob(".m.*"))) == 2
    assert not (tmp_path / "out/m").exists()
    done = run_cli(*args, cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert not list((tmp_path / "out").glob(".m.*.old"))
    if fleet:
        assert not list((tmp_path / "out").glob(".m.*"))
        [line] = (tmp_path / "out/graphpatch-manifest.jsonl").read_text().splitlines()
        assert json.loads(line)["output"] == "m"
    alone = run_cli("apply", "rules.json", "reg/m", "-o", "alone", cwd=tmp_path)
    assert alone.code == 0
    assert everything(tmp_path / "out/m") == everything(tmp_path / "alone")
