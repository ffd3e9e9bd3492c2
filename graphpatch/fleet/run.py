"""The models that one command patches, from first to last, and the manifest of their folder."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from graphpatch.decoding import convert
from graphpatch.errors import OutputError
from graphpatch.fleet import stores
from graphpatch.fleet.search import Task, local_outputs, plan, search
from graphpatch.fleet.work import FleetOrder, TaskResult, patch_model
from graphpatch.fleet.workers import Results, results_of
from graphpatch.formats.destination import errors_as, is_remote, reported
from graphpatch.formats.output import sweep, write_file

MANIFEST_NAME = "graphpatch-manifest.jsonl"
EVERY = 100  # models, after which a manifest in a store is written


class Batch(msgspec.Struct):
    """The models of a run, in the order of the command, with its rules read, and its manifest."""

    order: FleetOrder
    tasks: Sequence[Task]
    manifest: Manifest | None = None

    def results(self) -> Results:
        """Let workers patch the models, and yield what became of each, as each ends."""
        with contextlib.closing(results_of(self.order, patch_model, self.tasks)) as results:
            for done in results:
                self.add(done)
                yield done

    def add(self, done: TaskResult) -> None:
        """Write down what became of a model, where there is a manifest."""
        if self.manifest is not None:
            self.manifest.add(done)


@contextlib.contextmanager
def planned(order: FleetOrder) -> Iterator[Batch]:
    """Give the models that are to be patched, and the folder and manifest that they go to.

    Raises FleetError, RulesError or OutputError where no model is touched.
    """
    is_folder = order.is_into_folder()
    into = order.out if is_folder and not order.dry_run else None
    order_with_rules = order.with_rules(recorded=into is not None and order.losses is None)
    tasks = search(order.models, order.allow_chained)
    # A model that was searched for, or lies elsewhere, has no output unless -o names one.
    nowhere = any(task.searched or is_remote(task.model) for task in tasks)
    if not (order.dry_run and order.out is None and nowhere):
        tasks = plan(tasks, order.out, order.rules, is_folder)
    batch = Batch(order_with_rules, tasks)
    with contextlib.ExitStack() as stack:
        if into is not None:
            stack.enter_context(_made(into))
        if not order.dry_run:  # what an earlier run left half-written
            manifests = [] if into is None or is_remote(into) else [f"{into}/{MANIFEST_NAME}"]
            sweep([*local_outputs(tasks), *manifests])
        if into is not None and batch.order.recorded:
            batch.manifest = Manifest(into, batch.order)
            stack.callback(batch.manifest.write)
            if order.resume:
                batch.tasks = [replace(task, known=batch.manifest.known(task)) for task in tasks]
        yield batch


@contextlib.contextmanager
def _made(folder: str) -> Iterator[None]:
    """Make a folder; what is made goes again where it stays empty, as a run that failed left it."""
    path = Path(folder)
    missing = [] if is_remote(folder) else [at for at in (path, *path.parents) if not at.exists()]
    with reported(folder):
        path.mkdir(parents=True, exist_ok=True) if missing else None
    try:
        yield
    finally:
        for above in missing:
            with contextlib.suppress(OSError):  # there is something in it
                above.rmdir()


class ManifestEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A line of `graphpatch-manifest.jsonl`: what was made of one model.

    Anybody may have written it: one that is not so counts as none.
    """

    source: str
    output: str
    version: str
    seconds: float
    error: str = ""
    sha256: str = ""
    output_sha256: str = ""
    rules: dict[str, str] = {}
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
        self.version, self.rules = order.version, {"file": order.rules, "sha256": order.digest()}
        self.path = f"{self.folder}/{MANIFEST_NAME}"
        self.entries = self._read()
        self.added = 0

    def known(self, task: Task) -> tuple[str, str] | None:
        """Return the hashes of source and output that are written of a task, by the same rules."""
        entry = self.entries.get(self._relative(task.output))
        made_by = self.version, self.rules["sha256"]
        if entry is None or (entry.version, entry.rules.get("sha256")) != made_by:
            return None
        return entry.sha256, entry.output_sha256

    def add(self, done: TaskResult) -> None:
        """Write down what became of a model; what was done before is written down already."""
        if done.passed_over:
            return
        output = self._relative(done.task.output)
        entry = ManifestEntry(done.task.model, output, self.version, done.seconds, done.error)
        if not done.error:
            entry.sha256, entry.output_sha256 = done.hashes
            entry.rules, entry.consumer = self.rules, done.report["consumer"]
            entry.matches = {
                rule["name"]: dict(Counter(match["type"] for match in rule["matches"]))
                for rule in done.report["rules"]
            }
        self.entries[output] = entry
        self.added += 1
        if not is_remote(self.path):
            # Where there is no room now, the end says so: all lines are written again then.
            with contextlib.suppress(OSError), open(self.path, "ab", opener=_opened) as file:
                file.write(entry.line())
        elif self.added % EVERY == 0:
            self.write()

    def write(self) -> None:
        """Write the whole, if a line was added. Raises OutputError where that cannot be done."""
        if not self.added:
            return
        self._refuse_other()
        lines = [entry.line() for entry in self.entries.values()]
        with stores.delivered(self.path) as path:
            write_file(path, lines)

    def _relative(self, output: str) -> str:
        return output.removeprefix(f"{self.folder}/")

    def _read(self) -> dict[str, ManifestEntry]:
        """Return the lines by their outputs. One that was cut short by a dying process is none."""
        data, entries = b"", dict[str, ManifestEntry]()
        self._refuse_other()
        if is_remote(self.path):
            data = stores.read_small(self.path) if stores.exists(self.path) else b""
        elif Path(self.path).exists():
            with errors_as(f"cannot read {self.path}", OutputError):
                data = Path(self.path).read_bytes()
            if data and not data.endswith(b"\n"):
                write_file(Path(self.path), [data, b"\n"])
        for text in data.split(b"\n"):
            # ValueError: not UTF-8. RecursionError: nested so deeply that nobody of us wrote it.
            with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
                entry = convert(json.loads(text), ManifestEntry)
                entries[entry.output] = entry
        return entries

    def _refuse_other(self) -> None:
        """Raise OutputError for what is there and no manifest."""
        is_there = not is_remote(self.path) and os.path.lexists(self.path)
        if is_there and (Path(self.path).is_symlink() or not Path(self.path).is_file()):
            raise OutputError(f"{self.path} is a link, a pipe or a folder; a manifest is a file")


def _opened(path: str, flags: int) -> int:
    """Open a file, and not what a link in its place leads to."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
