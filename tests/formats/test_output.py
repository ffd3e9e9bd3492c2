"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest
import xxhash

from graphpatch import load, mapped
from graphpatch.errors import ModelError, OutputError
from graphpatch.formats import before, output
from graphpatch.formats.before import checksum
from graphpatch.formats.output import (
    READ_AT_ONCE,
    regular_files,
    sweep,
    unfinished,
    write_file,
    writing_folder,
)
from graphpatch.graph import wire
from graphpatch.graph.wire import SMALL, Piece, Source, Span, map_file
from tests import graphs
from tests.conftest import Run
from tests.refusals import RULE, everything, rules_text

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="locks of open files")

DATA = os.urandom(2 * READ_AT_ONCE + 17)


def write_folder(path: Path, files: dict[str, Any]) -> None:
    with writing_folder(path, files):
        pass


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A file that is mapped, as large ones are."""
    monkeypatch.setattr(wire, "SMALL", 0)
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return map_file(path)


def pieces_of(source: Source) -> tuple[list[Piece], bytes]:
    """Pieces of every size: small and large, from memory and from the file."""
    large = Span(source, 7, READ_AT_ONCE + 9)
    many = b"x" * (READ_AT_ONCE + 1)
    pieces: list[Piece] = [b"<", Span(source, 1, 5), large, many, large, b"", b">"]
    middle = DATA[7 : READ_AT_ONCE + 9]
    return pieces, b"<" + DATA[1:5] + middle + many + middle + b">"


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_pieces_are_written_one_behind_the_other(tmp_path: Path, source: Source) -> None:
    pieces, expected = pieces_of(source)
    write_file(tmp_path / "out", pieces)
    assert (tmp_path / "out").read_bytes() == expected
    assert listed(tmp_path) == ["out", "source"]


def test_progress_is_told_to_the_end(tmp_path: Path, source: Source) -> None:
    pieces, expected = pieces_of(source)
    told: list[tuple[str, int, int]] = []
    write_file(tmp_path / "out", pieces, lambda *args: told.append(args))
    assert {(what, total) for what, _, total in told} == {("writing", len(expected))}
    done = [done for _, done, _ in told]
    assert done == sorted(done)
    assert done[-1] == len(expected)


def test_the_file_has_the_rights_that_new_files_have(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_file(tmp_path / "out", [b"new"])
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/out")
    for data in (b"first", b"second"):
        write_file(tmp_path / "link", [data])
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "folder" / "out").read_bytes() == data
    assert listed(tmp_path / "folder") == ["out"]


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    write_file(Path("/dev/null"), [b"gone"])
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OutputError, match="cannot write /dev/full: No space left on device"):
        write_file(Path("/dev/full"), [b"gone"])
    assert Path("/dev/full").is_char_device()
    assert not [name for name in listed(Path("/dev")) if name.startswith((".null", ".full"))]


def test_a_named_pipe_is_written_to_and_stays(tmp_path: Path, source: Source) -> None:
    pipe, found = tmp_path / "pipe", list[bytes]()
    pieces, expected = pieces_of(source)
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, pieces)
    reader.join()
    assert found == [expected]
    assert listed(tmp_path) == ["pipe", "source"]


def full(*args: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_is_full_leaves_the_old_file(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OutputError, match="No space left on device"):
            write_file(tmp_path / "out", pieces_of(source)[0])
    assert (tmp_path / "out").read_bytes() == b"old"
    assert listed(tmp_path) == ["out", "source"]


def test_whatever_goes_wrong_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"old")

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "out", [b"new"], interrupt)
    assert (tmp_path / "out").read_bytes() == b"old"
    assert listed(tmp_path) == ["out"]


# Folders


@pytest.fixture
def original(tmp_path: Path) -> Path:
    folder = tmp_path / "original"
    (folder / "below").mkdir(parents=True)
    (folder / "empty").mkdir()
    for name in ("message", "left", "kept", "below/message", "below/left"):
        (folder / name).write_text(name)
    (folder / "link").symlink_to(folder / "kept")
    return folder


def like(original: Path) -> dict[str, Any]:
    """What a folder like the original gets: another message, and all but what is left out."""
    copies = {str(path.relative_to(original)): path for path in regular_files(original)}
    return {name: path for name, path in copies.items() if name != "left"} | {"message": [b"new"]}


EXPECTED = {
    "message": b"new", "kept": b"kept", "link": b"kept",
    "below/message": b"below/message", "below/left": b"below/left",
}  # fmt: skip


def test_a_folder_like_another_in_the_place_of_an_old_one(tmp_path: Path, original: Path) -> None:
    before = everything(original)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    write_folder(tmp_path / "out", like(original))
    assert everything(tmp_path / "out") == EXPECTED
    assert not (tmp_path / "out" / "link").is_symlink()
    assert list((tmp_path / "out" / "empty").iterdir()) == []
    assert everything(original) == before
    assert listed(tmp_path) == ["original", "out"]


def test_a_folder_of_a_read_only_one_can_be_written_to(tmp_path: Path, original: Path) -> None:
    for path in (original / "below", original):
        path.chmod(0o555)
    write_folder(tmp_path / "out", like(original))
    assert everything(tmp_path / "out") == EXPECTED
    for path in (tmp_path / "out", tmp_path / "out" / "below"):
        assert path.stat().st_mode & 0o200
    for path in (original, original / "below"):
        path.chmod(0o755)


@pytest.mark.parametrize("broken", ["copyfile", "write", "rename"])
def test_a_folder_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def not_the_new_one(path: Path, target: Path) -> Path:
        return full() if path.suffix == ".tmp" else path.replace(target)

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    what = {"copyfile": shutil, "write": os, "rename": Path}[broken]
    with monkeypatch.context() as patch:
        patch.setattr(what, broken, not_the_new_one if broken == "rename" else full)
        with pytest.raises(OutputError, match="out: No space left on device"):
            write_folder(tmp_path / "out", like(original))
    assert listed(tmp_path / "out") == ["old"]
    assert listed(tmp_path) == ["original", "out"]


@pytest.mark.parametrize("at", [".old", ".tmp"])
def test_an_interrupt_between_two_names_gives_the_old_folder_its_name_back(
    tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def interrupted(path: Path, target: Path) -> None:
        if path.suffix != ".tmp":
            path.replace(target)
        if at in (path.suffix, Path(target).suffix):
            monkeypatch.undo()
            raise KeyboardInterrupt

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "out", like(original))
    assert listed(tmp_path / "out") == ["old"]
    assert listed(tmp_path) == ["original", "out"]


# The checksum of a model is one of its bytes, however they are read.


SIZE = SMALL + 3 * READ_AT_ONCE + 5  # neither pages nor reads end where it does


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some.bytes"
    path.write_bytes(os.urandom(SIZE))
    return path


def test_a_file_is_read_piece_by_piece(file: Path) -> None:
    source, data = map_file(file), file.read_bytes()
    assert checksum([Span(source, 0, SIZE)]) == "xxh3:" + xxhash.xxh3_64(data).hexdigest()
    parts = [data[:7], Span(source, 7, 5000), Span(source, 5000, SIZE)]
    assert checksum(parts) == checksum([Span(source, 0, SIZE)])


def test_blocks_are_counted_in_turn(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(before, "HASHED_BLOCK", SIZE // 3)
    source, data = map_file(file), file.read_bytes()
    blocks = [data[at : at + SIZE // 3] for at in range(0, SIZE, SIZE // 3)]
    expected = "xxh3:" + ".".join(xxhash.xxh3_64(block).hexdigest() for block in blocks)
    assert checksum([Span(source, 0, SIZE)]) == checksum([data]) == expected


def test_files_are_read_without_preadv(tmp_path: Path, file: Path, monkeypatch: Any) -> None:
    monkeypatch.delattr(os, "preadv")  # as on Windows
    write_file(tmp_path / "out", [Span(map_file(file), 5, SIZE)])
    assert (tmp_path / "out").read_bytes() == file.read_bytes()[5:]


def test_a_file_that_is_cut_short(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A test before this one may have run the command in this process.
    monkeypatch.setattr(mapped, "BEFORE_MAPPING", [])
    source = map_file(file)
    os.truncate(file, 4096)
    with pytest.raises(ModelError, match="changed"):
        checksum([Span(source, 0, SIZE)])
    os.truncate(file, SIZE)
    monkeypatch.setattr(mapped, "BEFORE_MAPPING", [lambda: os.truncate(file, 0)])
    with pytest.raises(ModelError, match="changed"):
        map_file(file)


# What is not whole yet: its name, who may take it away, the mode of what it replaces.

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
    (tmp_path / "other").touch()
    assert (tmp_path / "out/more").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_what_cannot_be_locked_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no descriptor to spare, even the module that locks cannot be imported."""

    def refused(*args: object) -> bool:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(output, "_is_locked", refused)
    with pytest.raises(OSError, match="Too many open files"), unfinished(tmp_path / "a"):
        pass
    assert not list(tmp_path.iterdir())


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
