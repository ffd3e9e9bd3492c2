"""What the user asks of models, what a worker is told, and what became of a model."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import msgspec

import graphpatch
from graphpatch.fleet import stores
from graphpatch.fleet.search import is_plain_folder, is_search
from graphpatch.formats.destination import Export, is_remote, reported
from graphpatch.gradients.tensors import Files, checked_name, in_folder
from graphpatch.recipes import is_recipe, recipe_rules
from graphpatch.rules import Rule, rules_in
from graphpatch.rules_json import raw_rules, self_contained

_rules_once = functools.lru_cache(maxsize=4)(rules_in)


class Job(msgspec.Struct, frozen=True):
    """What is done to every model; with the tasks, all that travels to a worker.

    `root` is the folder that relative paths are seen from, where a worker's is another one.
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

    def path(self, name: str) -> Path:
        """Return a path of the user's as this process finds it."""
        return Path(self.root, name)


class Task(msgspec.Struct, frozen=True):
    """One model, and where it goes; without an output nothing is written.

    A model that was `searched` for, and not named, may turn out to be none. `known` has the hashes
    of source and output that a manifest has of an earlier run.
    """

    place: int
    model: str
    output: str = ""
    searched: bool = False
    known: tuple[str, str] | None = None


class TaskResult(msgspec.Struct, frozen=True):
    """What became of a task: a report, or why there is none.

    `passed_over` says why nothing had to be done; `error` why nothing could be; `bug` that the
    fault is ours. `hashes` are those of what was read and written, where they are recorded.
    """

    task: Task
    report: dict[str, Any] = msgspec.field(default_factory=dict)
    error: str = ""
    passed_over: str = ""
    bug: bool = False
    seconds: float = 0.0
    hashes: tuple[str, str] = ("", "")


class Workers(msgspec.Struct, frozen=True):
    """Who does the work: so many processes, or a cluster. Default: the cores of this machine."""

    jobs: int | None = None
    scheduler: str | None = None


class FleetOrder(msgspec.Struct, frozen=True):
    """What the user asked for: `rules` and `models` as typed."""

    rules: str
    models: tuple[str, ...]
    out: str | None = None
    emit: str | None = None
    allow_python: bool = False
    dry_run: bool = False
    resume: bool = False
    workers: Workers = Workers()
    allow_chained: bool = False  # URLs of what lies inside another file
    export: Export | None = None
    force: bool = False  # outputs may replace what graphpatch did not write
    recorded: bool = True  # what is written into a folder, in its manifest

    def __post_init__(self) -> None:
        paths = (self.rules, *(model.removeprefix("@") for model in self.models), self.out or "")
        stores.refuse_chained(paths, self.allow_chained)

    def is_of_many(self) -> bool:
        """Return whether there may be any number of models: they are searched for, or shared.

        Then workers do it; models that are named one by one are done in this process, in turn.
        """
        asked = self.workers != Workers() or self.resume
        return asked or any(map(is_search, self.models))

    def is_into_folder(self) -> bool:
        """Return whether -o is a folder that models go into, and not the name of the only one."""
        if self.out is None or self.export is not None:  # an export is a folder itself
            return False
        if len(self.models) > 1 or is_search(self.models[0]) or self.out.endswith("/"):
            return True
        with reported(self.out):  # it may lie where nobody may look
            return is_plain_folder(self.out)

    def is_piped(self) -> bool:
        """Return whether a patched model goes to standard output."""
        return not self.dry_run and (self.out == "-" or (self.out is None and "-" in self.models))

    def is_remote(self) -> bool:
        """Return whether something of it lies elsewhere."""
        return any(map(is_remote, (self.rules, *self.models, self.out or "")))

    def job(self) -> Job:
        """Return what the workers are told. Raises RulesError where the rules are not valid."""
        if is_remote(self.rules):
            text = stores.read_small(self.rules)
        elif is_recipe(self.rules):
            text = msgspec.json.encode(recipe_rules(self.rules))
        else:
            text = raw_rules(self.rules)
        converts = self.export is not None or bool(self.out and self.out.endswith(".meta"))
        job = Job(
            self_contained(text, self.rules, _arrays_beside(self.rules)),
            self.rules,
            self.emit,
            self.allow_python,
            self.dry_run,
            root="" if self.workers.scheduler is None else str(Path.cwd()),
            force=self.force,
            export=self.export,
            allow_none=converts and not self.is_of_many(),
        )
        job.rules()
        return job


def _arrays_beside(rules: str) -> Files:
    """Return a reader of the .npy files that rules name: beside them, here or in the store."""
    if not is_remote(rules):
        return in_folder(Path() if rules == "-" or is_recipe(rules) else Path(rules).parent)
    first, chain, rest = rules.partition("::")
    folder = first.rpartition("/")[0] + "/"
    return lambda name: stores.read_small(
        f"{folder}{stores.inner_path(checked_name(name), rules)}{chain}{rest}"
    )
