"""One input: files, the commands that are run on them, and what must hold of each."""

from __future__ import annotations

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
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from graphpatch import cli, load

SECONDS = 10  # of processor time, for one command
LONG = 5_000  # characters that one error may have: 4,000 of the message, and where it is
EXPORTED = "exported"  # a folder
OUTPUTS = ("out.pb", "back.pb", EXPORTED, "original.pb")
RAW = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")


class TooSlow(BaseException):
    """A command took more than its time; no `except Exception` may stop it."""


@dataclass(frozen=True)
class Case:
    """What is tried: files by name, and command lines; `varied` is the file that was mutated."""

    files: dict[str, bytes]
    commands: Sequence[Sequence[str]]
    varied: str
    original: str = ""  # the file that revert must give again

    def with_varied(self, content: bytes) -> Case:
        """The same with another content of the mutated file."""
        return Case({**self.files, self.varied: content}, self.commands, self.varied, self.original)


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
    """What goes wrong with a case, in an empty folder; and how many commands were run."""
    for name, content in case.files.items():
        (folder / name).write_bytes(content)
    before = Path.cwd()
    os.chdir(folder)
    finds: list[Find] = []
    try:
        for command in case.commands:
            if any(one in OUTPUTS and not Path(one).exists() for one in command[1:2]):
                continue  # what the command before it did not write
            finds += _judged(case, command, ran(command))
            if finds:
                break
    finally:
        os.chdir(before)
        for one in folder.iterdir():
            shutil.rmtree(one) if one.is_dir() else one.unlink()
    return finds, len(case.commands)


def ran(command: Sequence[str]) -> Ran:
    """Run a command in this process, as the entry point does."""
    out, err = io.BytesIO(), io.BytesIO()
    kept = sys.argv, sys.stdout, sys.stderr, sys.stdin
    sys.argv = ["graphpatch", *command]
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(one, "utf-8", "backslashreplace") for one in (out, err)
    )
    sys.stdin = io.TextIOWrapper(io.BytesIO())
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
            if not stream.closed:
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


def _judged(case: Case, command: Sequence[str], end: Ran) -> list[Find]:
    told = (end.out[-2000:] + b"\n" + end.err[-6000:]).decode(errors="replace")
    faults: list[tuple[str, str]] = []
    if end.code == -1:
        faults.append(("slow" if end.where.startswith("TooSlow") else "escaped", end.where))
    elif end.seconds > SECONDS:  # in one call, that Python could not stop
        faults.append(("slow", command[0]))
    if end.code == cli.BUG:
        faults.append(("crash", _frames(end.err)))
    raw = RAW.search(end.out) or RAW.search(end.err)
    if raw and "schema" not in command:
        faults.append(("raw control characters", command[0]))
    if end.code == 1 and len(end.err.decode(errors="replace")) > LONG:
        faults.append(("long message", re.sub(r"\W.*", "", end.err[:40].decode(errors="replace"))))
    faults += _files(case, command, end)
    return [Find(fault, where, command, told) for fault, where in faults]


def _frames(err: bytes) -> str:
    """The last frames of ours in a traceback, and the error's type."""
    text = err.decode(errors="replace")
    frames = re.findall(r'graphpatch/([\w/]+)\.py", line \d+, in (\w+)', text)
    kind = re.findall(r"^(\w+(?:\.\w+)*)(?::|$)", text, re.M)
    last = kind[-2] if len(kind) > 1 else ""
    return f"{last} {' '.join(f'{file}.{name}' for file, name in frames[-2:])}"


def _files(case: Case, command: Sequence[str], end: Ran) -> list[tuple[str, str]]:
    """What is wrong with what is in the folder now."""
    found = []
    there = {one.name for one in Path().iterdir()}
    left = there - case.files.keys() - set(OUTPUTS)
    left |= {one.name for one in Path().glob(f"{EXPORTED}/**/.*")}
    if left:
        found.append(("left over", command[0]))
    wrote = command[command.index("-o") + 1] if "-o" in command else ""
    if wrote and end.code in (1, 2) and wrote in there:
        found.append(("half written", command[0]))
    if wrote and end.code == 0:
        try:
            load(wrote)
        except Exception as error:
            found.append(("not whole", f"{command[0]} {type(error).__name__}"))
    if command[:2] == ["revert", "out.pb"] and case.original and end.code in (0, 1):
        original = case.files[case.original]
        # Where no rule matched anything, there is nothing to revert.
        given = wrote if wrote in there else "out.pb"
        if b"_graphpatch" not in original and Path(given).read_bytes() != original:
            found.append(("not reverted", _told(end) if end.code else "other bytes"))
    return found


def _told(end: Ran) -> str:
    return re.sub(r"'[^']*'|\d+", "...", end.err.decode(errors="replace"))[:80]
