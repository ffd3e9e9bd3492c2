"""What the user asks of models, of which workers are told, and what became of a model."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import msgspec

import graphpatch
from graphpatch.fleet import stores
from graphpatch.fleet.search import Task, is_plain_folder, is_search
from graphpatch.formats.destination import Export, is_remote, reported
from graphpatch.gradients.tensors import checked_name
from graphpatch.rules import Rule, raw_rules, rules_in, self_contained

_rules_once = functools.lru_cache(maxsize=4)(rules_in)


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


class FleetOrder(msgspec.Struct, frozen=True):
    """What the user asked for: `rules` and `models` as typed.

    A worker is told of it as `with_rules` gives it: with what the rules file holds (`raw`), and the
    folder that relative paths are seen from (`root`), where a worker's is another one.
    """

    rules: str
    models: tuple[str, ...] = ()
    out: str | None = None
    emit: str | None = None
    allow_python: bool = False
    dry_run: bool = False
    resume: bool = False
    jobs: int | None = None  # processes; default: the cores of this machine
    scheduler: str | None = None  # of a cluster, whose workers do it
    allow_chained: bool = False  # URLs of what lies inside another file
    export: Export | None = None
    force: bool = False  # outputs may replace what graphpatch did not write
    recorded: bool = True  # hashes are taken of what is written into a folder, for its manifest
    raw: bytes = b""
    root: str = ""
    allow_none: bool = False  # without a rule, a model is only converted
    version: str = msgspec.field(default_factory=lambda: graphpatch.__version__)

    def __post_init__(self) -> None:
        paths = (self.rules, *(model.removeprefix("@") for model in self.models), self.out or "")
        stores.refuse_chained(paths, self.allow_chained)

    def is_of_many(self) -> bool:
        """Return whether there may be any number of models: they are searched for, or shared.

        Then workers do it; models that are named one by one are done in this process, in turn.
        """
        shared = self.jobs is not None or self.scheduler is not None
        return shared or self.resume or any(map(is_search, self.models))

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

    def with_rules(self, recorded: bool = False) -> FleetOrder:
        """Return what the workers are told. Raises RulesError where the rules are not valid."""
        converts = self.export is not None or bool(self.out and self.out.endswith(".meta"))
        order = msgspec.structs.replace(
            self,
            models=(),
            recorded=recorded,
            raw=self._raw_rules(),
            root="" if self.scheduler is None else str(Path.cwd()),
            allow_none=converts and not self.is_of_many(),
        )
        order.read_rules()
        return order

    def _raw_rules(self) -> bytes:
        """Return what the rules file holds, with the .npy files beside it; it may lie in a store.

        Raises FleetError where it cannot be read.
        """
        if not is_remote(self.rules):
            return raw_rules(self.rules)
        first, chain, rest = self.rules.partition("::")
        folder = first.rpartition("/")[0] + "/"

        def beside(name: str) -> bytes:
            inside = stores.inner_path(checked_name(name), self.rules)
            return stores.read_small(f"{folder}{inside}{chain}{rest}")

        return self_contained(stores.read_small(self.rules), self.rules, beside)

    def read_rules(self) -> list[Rule]:
        """Return the rules, read once in a process. Raises RulesError where they are not valid."""
        return _rules_once(self.raw, self.rules, self.emit, self.allow_python, self.allow_none)

    def digest(self) -> str:
        """Return the rules by content: another layout of the same file has the same."""
        content = [(rule.written, self.emit or "auto") for rule in self.read_rules()]
        return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()

    def path(self, name: str) -> Path:
        """Return a path of the user's as this process finds it."""
        return Path(self.root, name)
