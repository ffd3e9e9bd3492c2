"""One input: files, the commands that are run on them, and what must hold of each."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from fuzzing.outputs import (
    EXPORTED,
    OUTPUTS,
    PAGE,
    check_page,
    check_printed,
    check_whole,
    output_of,
)
from graphpatch import cli

SECONDS = 10  # of processor time, for one command
LONG = 5_000  # characters that one error may have: 4,000 of the message, and where it is
# What the command line says of a RecursionError. Our own limits have messages that say where.
TOO_DEEP = b"nested more deeply than graphpatch follows"
RAW = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")


class TooSlow(BaseException):
    """A command took more than its time; no `except Exception` may stop it."""


@dataclass(frozen=True)
class Case:
    """What is tried: files by name, and command lines; `varied` is the file that was mutated.

    `odd` has what is not a file, by name: a "pipe", a "folder", or what a link leads to. `stdout`
    is where the commands print: "memory", "full" (a disk without room) or "closed". FOLDER in a
    command is the folder that it runs in.
    """

    files: dict[str, bytes]
    commands: Sequence[Sequence[str]]
    varied: str
    original: str = ""  # the file that revert must give again
    odd: tuple[tuple[str, str], ...] = ()
    stdout: str = "memory"

    def with_varied(self, content: bytes) -> Case:
        """Return the same with another content of the mutated file."""
        return replace(self, files={**self.files, self.varied: content})

    def make(self, folder: Path) -> None:
        """Put all of it into an empty folder."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        for name, kind in self.odd:
            if kind == "pipe":
                os.mkfifo(folder / name)
            elif kind == "folder":
                (folder / name).mkdir()
            else:
                (folder / name).symlink_to(kind)


class _Full(io.RawIOBase):
    """A file on a disk without room."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Find(NamedTuple):
    """What went wrong: what kind of fault, where, by which command, and all that was printed."""

    fault: str
    where: str
    command: Sequence[str]
    told: str

    @property
    def key(self) -> tuple[str, str]:
        """What makes two finds one."""
        return self.fault, self.where


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: bytes
    err: bytes
    where: str
    seconds: float


def tried(case: Case, folder: Path) -> tuple[list[Find], int]:
    """Return what goes wrong with a case, in an empty folder; and how many commands were run."""
    case.make(folder)
    before = Path.cwd()
    os.chdir(folder)
    finds: list[Find] = []
    count = 0
    try:
        for words in case.commands:
            command = [word.replace("FOLDER", str(folder)) for word in words]
            if any(one in OUTPUTS and not Path(one).exists() for one in command[1:3]):
                continue  # what the command before it did not write
            count += 1
            there = _state(output_of(command))
            finds += _judged(case, command, ran(command, case.stdout), there)
            if finds:
                break
    finally:
        os.chdir(before)
        for one in folder.iterdir():
            shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
    return finds, count


def ran(command: Sequence[str], stdout: str = "memory") -> Ran:
    """Run a command in this process, as the entry point does."""
    out, err = io.BytesIO(), io.BytesIO()
    kept = sys.argv, sys.stdout, sys.stderr, sys.stdin
    sys.argv = ["graphpatch", *command]
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(one, "utf-8", "backslashreplace") for one in (out, err)
    )
    sys.stdin = io.TextIOWrapper(io.BytesIO())
    if stdout == "full":
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Full()), "utf-8")
    elif stdout == "closed":
        sys.stdout = None  # as Python has it
    signal.signal(signal.SIGPROF, _slow)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    started, code, where = time.process_time(), 0, ""
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:
        code = -1
        where = _where(error)
        traceback.print_exc(limit=-8)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        seconds = time.process_time() - started
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # of a full disk: the command has told of it
                if stream is not None and not stream.closed:
                    stream.flush()
        sys.argv, sys.stdout, sys.stderr, sys.stdin = kept
        gc.enable()
    return Ran(code, _value(out), _value(err), where, seconds)


def _value(stream: io.BytesIO) -> bytes:
    return b"" if stream.closed else stream.getvalue()


def _slow(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "graphpatch/" in one.filename and "cli" not in one.filename]
    told = " ".join(f"{Path(one.filename).stem}.{one.name}" for one in ours[-2:])
    return f"{type(error).__name__} {told}"


def _state(path: str) -> tuple[int, int] | None:
    """Return what tells whether a file was written."""
    if not path or not Path(path).exists() or _is_device(path):
        return None
    found = Path(path).stat()
    return found.st_ino, found.st_mtime_ns


def _judged(
    case: Case, command: Sequence[str], end: Ran, before: tuple[int, int] | None
) -> list[Find]:
    told = (end.out[-2000:] + b"\n" + end.err[-6000:]).decode(errors="replace")
    faults: list[tuple[str, str]] = []
    if end.code == -1:
        faults.append(("slow" if end.where.startswith("TooSlow") else "escaped", end.where))
    elif end.seconds > SECONDS:  # in one call, that Python could not stop
        faults.append(("slow", command[0]))
    if end.code == cli.BUG:
        faults.append(("crash", _frames(end.err)))
    if TOO_DEEP in end.err:
        faults.append(("recursion", command[0]))
    raw = RAW.search(end.out) or RAW.search(end.err)
    if raw and "schema" not in command:
        faults.append(("raw control characters", command[0]))
    if end.code == 1 and len(end.err.decode(errors="replace")) > LONG:
        faults.append(("long message", re.sub(r"\W.*", "", end.err[:40].decode(errors="replace"))))
    faults += _files(case, command, end, before)
    return [Find(fault, where, command, told) for fault, where in faults]


def _frames(err: bytes) -> str:
    """Return the last frames of ours in a traceback, and the error's type."""
    text = err.decode(errors="replace")
    frames = re.findall(r'graphpatch/([\w/]+)\.py", line \d+, in (\w+)', text)
    kind = re.findall(r"^(\w+(?:\.\w+)*)(?::|$)", text, re.M)
    last = kind[-2] if len(kind) > 1 else ""
    return f"{last} {' '.join(f'{file}.{name}' for file, name in frames[-2:])}"


def _files(
    case: Case, command: Sequence[str], end: Ran, before: tuple[int, int] | None
) -> list[tuple[str, str]]:
    """Return what is wrong with what is in the folder now."""
    found = []
    there = {one.name for one in Path().iterdir()}
    left = there - case.files.keys() - set(OUTPUTS) - {name for name, _ in case.odd}
    left -= {Path(os.path.realpath(name)).name for name, _ in case.odd}  # where a link leads
    left |= {one.name for one in Path().glob(f"{EXPORTED}/**/.*")}
    if left:
        found.append(("left over", command[0]))
    for name, content in case.files.items():
        if "--force" not in command and Path(name).read_bytes() != content:
            found.append(("an input is overwritten", command[0]))
    wrote = output_of(command)
    is_new = _state(wrote) != before
    if is_new and end.code in (1, 2) and not _may_stay(wrote):
        found.append(("half written", command[0]))
    if wrote and end.code == 0 and _must_be(command, wrote):
        try:
            check_whole(wrote)
        except Exception as error:
            found.append(("not whole", f"{command[0]} {type(error).__name__}"))
    if "--json" in command and end.out:
        try:
            check_printed(end.out)
        except ValueError as error:
            found.append(("not JSON", f"{command[0]} {type(error).__name__}"))
    reverted = command[:2] == ["revert", "out.pb"] and "--rule" not in command
    if reverted and case.original and end.code in (0, 1):
        original = case.files[case.original]
        # Where no rule matched anything, there is nothing to revert.
        given = wrote if wrote in there else "out.pb"
        if b"_graphpatch" not in original and Path(given).read_bytes() != original:
            found.append(("not reverted", _told(end) if end.code else "other bytes"))
    return found


def _may_stay(wrote: str) -> bool:
    """Whether a command that says that something is wrong may have written: `view`, whole pages."""
    if wrote != PAGE:
        return False
    try:
        check_page(Path(wrote).read_text(encoding="utf-8"))
    except (AssertionError, ValueError):
        return False
    return True


def _must_be(command: Sequence[str], wrote: str) -> bool:
    """Whether a command that ended well wrote: `doctor` and `match` do where there are rules."""
    if _is_device(wrote):
        return False  # it did, and nothing of it can be read again
    return command[0] not in ("doctor", "match") or Path(wrote).exists()


def _is_device(path: str) -> bool:
    return Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir()


def _told(end: Ran) -> str:
    return re.sub(r"'[^']*'|\d+", "...", end.err.decode(errors="replace"))[:80]
