"""What travels to a worker and back: paths, rules as text, and reports. Models never do."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import msgspec

import graphpatch
from graphpatch.formats.destination import Export
from graphpatch.rules import Rule, rules_in

_rules_once = functools.lru_cache(maxsize=4)(rules_in)


class Job(msgspec.Struct, frozen=True):
    """What is done to every model.

    `root` is the folder that relative paths are seen from, where the worker's is another one.
    """

    raw: bytes
    label: str
    emit: str | None = None
    allow_python: bool = False
    dry_run: bool = False
    recorded: bool = False  # hashes are taken, for the manifest
    root: str = ""
    export: Export | None = None
    force: bool = False
    allow_none: bool = False  # without a rule, a model is only converted
    version: str = msgspec.field(default_factory=lambda: graphpatch.__version__)

    def rules(self) -> list[Rule]:
        """Return the rules, read once in a process. Raises RulesError where they are not valid."""
        arguments = (self.raw, self.label, self.emit, self.allow_python, None, self.allow_none)
        return _rules_once(*arguments)

    def digest(self) -> str:
        """Return the rules by content: another layout of the same file has the same."""
        content = [(rule.written, self.emit or "auto") for rule in self.rules()]
        return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()


class RecordedOutput(msgspec.Struct, frozen=True):
    """What a manifest says of an output: the content of its source, and its own."""

    source: str
    output: str


class Task(msgspec.Struct, frozen=True):
    """One model, and where it goes; nowhere said is beside itself.

    A model that was `searched` for, and not named, may turn out to be none.
    """

    place: int
    model: str
    output: str = ""
    searched: bool = False
    known: RecordedOutput | None = None


class TaskResult(msgspec.Struct, frozen=True):
    """What became of a task: a report, or why there is none.

    `passed_over` says why nothing had to be done; `error` why nothing could be; `bug` that the
    fault is ours.
    """

    task: Task
    report: dict[str, Any] = msgspec.field(default_factory=dict)
    error: str = ""
    passed_over: str = ""
    bug: bool = False
    seconds: float = 0.0
    source: str = ""  # the content of what was read and written, where it is recorded
    output: str = ""
