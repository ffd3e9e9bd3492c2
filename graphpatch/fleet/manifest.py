"""`graphpatch-manifest.jsonl`: for each model of a folder of outputs, what was made of what."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from pathlib import Path

import msgspec

from graphpatch.decoding import convert
from graphpatch.errors import OutputError
from graphpatch.fleet import stores
from graphpatch.fleet.order import FleetOrder, TaskResult
from graphpatch.fleet.search import Task
from graphpatch.formats.destination import errors_as, is_remote
from graphpatch.formats.output import write_file

MANIFEST_NAME = "graphpatch-manifest.jsonl"
EVERY = 100  # models, after which a manifest in a store is written


class ManifestRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules that a line is of."""

    file: str
    sha256: str


class ManifestEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
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

    def line(self) -> bytes:
        """Return the entry as JSON; msgspec refuses names that are not UTF-8."""
        return json.dumps(msgspec.to_builtins(self)).encode() + b"\n"


class Manifest:
    """The manifest of a folder: a line is added as each model ends, so that none is lost.

    At the end it is written anew, whole, with one line a model: the last. In a store, where
    nothing can be added to a file, that alone is done, and now and then before.
    """

    def __init__(self, folder: str, order: FleetOrder) -> None:
        self.folder = folder.rstrip("/") if is_remote(folder) else str(Path(folder))
        self.version, self.rules = order.version, ManifestRules(order.rules, order.digest())
        self.path = f"{self.folder}/{MANIFEST_NAME}"
        self.entries = self._read()
        self.added = 0

    def known(self, task: Task) -> tuple[str, str] | None:
        """Return the hashes of source and output that are written of a task, by the same rules."""
        entry = self.entries.get(self._relative(task.output))
        if entry is None or entry.rules is None:
            return None
        made_by = entry.version, entry.rules.sha256
        is_same = made_by == (self.version, self.rules.sha256)
        return (entry.sha256, entry.output_sha256) if is_same else None

    def add(self, done: TaskResult) -> None:
        """Write down what became of a model; what was done before is written down already."""
        if done.passed_over:
            return
        output = self._relative(done.task.output)
        entry = ManifestEntry(done.task.model, output, self.version, done.seconds, done.error)
        if not done.error:
            entry.sha256, entry.output_sha256 = done.hashes
            entry.rules = self.rules
            entry.matches = {
                rule["name"]: dict(Counter(match["type"] for match in rule["matches"]))
                for rule in done.report["rules"]
            }
            entry.consumer = done.report["consumer"]
        self.entries[output] = entry
        self.added += 1
        if not is_remote(self.path):
            # Where there is no room now, the end says so: all lines are written again then.
            with contextlib.suppress(OSError), Path(self.path).open("ab") as file:
                file.write(entry.line())
        elif self.added % EVERY == 0:
            self.close()

    def close(self) -> None:
        """Write the whole, if a line was added. Raises OutputError where that cannot be done."""
        if not self.added:
            return
        data = b"".join(entry.line() for entry in self.entries.values())
        if is_remote(self.path):
            with stores.delivered(self.path) as local:
                local.write_bytes(data)
        else:
            write_file(Path(self.path), [data])

    def _relative(self, output: str) -> str:
        return output.removeprefix(f"{self.folder}/")

    def _read(self) -> dict[str, ManifestEntry]:
        """Return the lines by their outputs. One that was cut short by a dying process is none."""
        data, entries = _content(self.path), {}
        if data and not data.endswith(b"\n") and not is_remote(self.path):
            write_file(Path(self.path), [data, b"\n"])
        for text in data.split(b"\n"):
            # ValueError: not UTF-8. RecursionError: nested so deeply that nobody of us wrote it.
            with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
                entry = convert(json.loads(text), ManifestEntry)
                entries[entry.output] = entry
        return entries


def _content(path: str) -> bytes:
    """Return the manifest that is there, or nothing. Raises OutputError for what is no file."""
    if is_remote(path):
        return stores.read_small(path) if stores.exists(path) else b""
    if not os.path.lexists(path):
        return b""
    if Path(path).is_symlink() or not Path(path).is_file():
        raise OutputError(f"{path} is a link, a pipe or a folder; a manifest is a file")
    with errors_as(f"cannot read {path}", OutputError):
        return Path(path).read_bytes()
