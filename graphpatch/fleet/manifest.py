"""`graphpatch-manifest.jsonl`: for each model of a folder of outputs, what was made of what."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from graphpatch.decoding import convert
from graphpatch.errors import OutputError
from graphpatch.fleet import remote
from graphpatch.fleet.task import Job, RecordedOutput, Task, TaskResult
from graphpatch.formats.destination import reported
from graphpatch.formats.output import write_file

MANIFEST_NAME = "graphpatch-manifest.jsonl"


class ManifestRules(msgspec.Struct, forbid_unknown_fields=True):
    """The rules that a line is of."""

    file: str
    sha256: str


class ManifestEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A line. Anybody may have written it: one that is not so counts as none."""

    source: str
    output: str
    version: str
    seconds: float
    error: str = ""
    sha256: str = ""
    output_sha256: str = ""
    rules: ManifestRules | None = None
    matches: dict[str, dict[str, int]] = {}
    consumer: dict[str, list[str]] = {}


class Manifest:
    """The manifest of a folder: a line is added as each model ends, so that none is lost.

    At the end it is written anew, whole, with one line a model: the last. In a store, where
    nothing can be added to a file, that alone is done, and now and then before.
    """

    def __init__(self, folder: str, job: Job) -> None:
        self.folder = folder.rstrip("/") if remote.is_remote(folder) else str(Path(folder))
        self.job = job
        self.path = f"{self.folder}/{MANIFEST_NAME}"
        self.digest = job.digest()
        self.lines = self._read()
        self.added = 0

    def known(self, task: Task) -> RecordedOutput | None:
        """Return what is written of a task's output, where the same rules made it."""
        name = self._relative(task.output)
        if name not in self.lines:
            return None
        line = convert(self.lines[name], ManifestEntry)
        same = line.rules is not None and line.rules.sha256 == self.digest
        if not same or line.version != self.job.version or not line.sha256:
            return None
        return RecordedOutput(line.sha256, line.output_sha256)

    def add(self, done: TaskResult) -> None:
        """Write down what became of a model; what was done before is written down already."""
        if done.passed_over:
            return
        name = self._relative(done.task.output)
        self.lines[name] = self._line(done, name)
        self.added += 1
        if not remote.is_remote(self.path):
            # Where there is no room now, the end says so: all lines are written again then.
            with contextlib.suppress(OSError):
                _append_line(Path(self.path), self.lines[name])
        elif self.added % EVERY == 0:
            self.close()

    def close(self) -> None:
        """Write the whole, if a line was added. Raises OutputError where that cannot be done."""
        if not self.added:
            return
        data = "".join(map(_json_line, self.lines.values())).encode()
        if remote.is_remote(self.path):
            remote.write_small(self.path, data)
        else:
            with reported(self.path):
                write_file(Path(self.path), [data])

    def _relative(self, output: str) -> str:
        return output.removeprefix(f"{self.folder}/")

    def _line(self, done: TaskResult, name: str) -> dict[str, Any]:
        line = {"source": done.task.model, "output": name, "version": self.job.version}
        if done.error:
            return {**line, "error": done.error, "seconds": done.seconds}
        return {
            "source": done.task.model,
            "sha256": done.source,
            "rules": {"file": self.job.label, "sha256": self.digest},
            "matches": {
                rule["name"]: dict(Counter(match["type"] for match in rule["matches"]))
                for rule in done.report["rules"]
            },
            "output": name,
            "output_sha256": done.output,
            "consumer": done.report["consumer"],
            "seconds": done.seconds,
            "version": self.job.version,
        }

    def _read(self) -> dict[str, dict[str, Any]]:
        """The lines by their outputs. One that was cut short, by an end in the middle, is none."""
        if remote.is_remote(self.path):
            data = remote.read_small(self.path) if remote.exists(self.path) else b""
        else:
            data = _bytes(Path(self.path))
        if data and not data.endswith(b"\n") and not remote.is_remote(self.path):
            with reported(self.path), Path(self.path).open("ab") as file:
                file.write(b"\n")
        lines = {}
        for text in data.split(b"\n"):
            # ValueError: not UTF-8. RecursionError: nested so deeply that nobody of us wrote it.
            with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
                line = json.loads(text)  # msgspec refuses names that are not UTF-8
                lines[convert(line, ManifestEntry).output] = line
        return lines


EVERY = 100  # models, after which a manifest in a store is written


def _bytes(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise OutputError(f"{path} is a link, a pipe or a folder; a manifest is a file")
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror or error}") from error


def _json_line(line: dict[str, Any]) -> str:
    return json.dumps(line) + "\n"


def _append_line(path: Path, line: dict[str, Any]) -> None:
    """Add a line in one go; one that found no room is taken away again."""
    follow = getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | follow, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        data = _json_line(line).encode()
        if os.write(descriptor, data) < len(data):
            os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)
