"""A folder that takes the place of another, and who is killed over it."""

from __future__ import annotations

import errno
import itertools
import json
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphpatch.formats import output as exchanging
from graphpatch.formats.output import exchange
from tests import graphs
from tests.refusals import RULE, everything, rules_text

Run = Callable[..., Any]


def folder_of(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


def listed(folder: Path) -> dict[str, str]:
    return {name: data.decode() for name, data in everything(folder).items()}


def by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanging, "_renameat2", lambda: None)


@pytest.mark.parametrize("how", [lambda patch: None, by_turns], ids=["swapped", "by turns"])
def test_the_new_one_is_there_and_the_old_one_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[pytest.MonkeyPatch], None]
) -> None:
    how(monkeypatch)
    path = tmp_path / "m[1]"
    for text in ("a", "b"):
        temporary = folder_of(tmp_path / "new", text)
        exchange(temporary, path)
        left = listed(tmp_path)
        # The name of the new one is its writer's to take away, whatever it holds.
        left.pop("new/file", None)
        assert left == {"m[1]/file": text}
        if temporary.exists():
            (temporary / "file").unlink()
            temporary.rmdir()


def test_there_is_no_moment_without_one(tmp_path: Path) -> None:
    if exchanging._renameat2() is None:
        pytest.skip("this system cannot swap two names")
    path = folder_of(tmp_path / "path", "0")
    missed, ended = [], threading.Event()

    def watch() -> None:
        while not ended.is_set():
            missed.append(not path.exists())

    watcher = threading.Thread(target=watch)
    watcher.start()
    temporary = folder_of(tmp_path / "new", "1")
    for count in itertools.count():
        if count > 300 and len(missed) > 100:  # on a busy machine the watcher is seldom there
            break
        exchange(temporary, path)
    ended.set()
    watcher.join()
    assert not any(missed)


def test_what_the_system_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = folder_of(tmp_path / "one", "1"), folder_of(tmp_path / "other", "2")
    monkeypatch.setattr(exchanging, "_renameat2", lambda: lambda *args: errno.EROFS)
    with pytest.raises(OSError, match="Read-only file system"):
        exchange(one, other)
    # A file system that cannot swap has them moved by turns.
    monkeypatch.setattr(exchanging, "_renameat2", lambda: lambda *args: errno.EINVAL)
    exchange(one, other)
    assert listed(tmp_path) == {"other/file": "1"}


def test_what_others_left_is_left(tmp_path: Path) -> None:
    for name in (".m.1.old", ".m.x.1.old", ".m.1.old.x", ".m.old"):
        folder_of(tmp_path / name, name)
    exchange(folder_of(tmp_path / "new", "1"), tmp_path / "m")
    assert sorted(listed(tmp_path)) == [
        ".m.1.old.x/file", ".m.old/file", ".m.x.1.old/file", "m/file",
    ]  # fmt: skip


# A process that is killed over the nth rename of a folder, with the swap of two names or without.
KILLED = """
import os, signal
from graphpatch.formats import output
def killed(call):
    def counted(*args, **kwargs):
        result = call(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
        return result
    return counted
if {swap}:
    swap = output._swapped
    output._swapped = killed(swap)
else:
    output._renameat2 = lambda: None
    from pathlib import Path
    Path.rename = killed(Path.rename)
from graphpatch.cli import main; main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("swap", [True, False], ids=["swapped", "by turns"])
@pytest.mark.parametrize("fleet", [True, False], ids=["resumed", "again"])
def test_a_kill_in_the_middle_is_repaired(
    run_cli: Run, tmp_path: Path, swap: bool, fleet: bool
) -> None:
    graphs.saved_model_folder(tmp_path / "reg/m", graphs.metagraph(graphs.sample(), "serve"))
    (tmp_path / "rules.json").write_text(rules_text(RULE))
    args = ["apply", "rules.json", "reg" if fleet else "reg/m", "-o", "out/m"]
    args = [*args[:4], "out", "-j", "1", "--resume"] if fleet else args
    (tmp_path / "out").mkdir()
    assert run_cli(*args, cwd=tmp_path).code == 0
    first = everything(tmp_path / "out/m")
    (tmp_path / "rules.json").write_text(rules_text(RULE | {"patch": {"stop_gradient": True}}))
    code = KILLED.format(swap=swap)
    done = run_cli(*args, cwd=tmp_path, command=[sys.executable, "-c", code])
    assert done.code == -signal.SIGKILL
    assert len(list((tmp_path / "out").glob(".m.*"))) == (1 if swap else 2)
    assert (tmp_path / "out/m").exists() is swap
    if swap:
        assert everything(tmp_path / "out/m") != first
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
