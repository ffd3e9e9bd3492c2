"""What the user asked of one model or many, and who is to do it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from graphpatch.fleet import remote
from graphpatch.fleet.plan import is_plain_folder, is_search
from graphpatch.formats.destination import Export, reported
from graphpatch.gradients.tensors import Files, checked_name, in_folder
from graphpatch.recipes import is_recipe, recipe_rules
from graphpatch.rules_json import raw_rules, self_contained

if TYPE_CHECKING:
    from graphpatch.fleet.task import Job


class Workers(msgspec.Struct, frozen=True):
    """Who does it: so many processes, or a cluster; silent, the cores of this machine."""

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
    allow_chained: bool = False  # URLs of what lies inside of another file
    export: Export | None = None
    force: bool = False  # outputs may replace what graphpatch did not write
    in_process: bool = False  # what is asked for cannot be told to workers

    def __post_init__(self) -> None:
        paths = (self.rules, *(model.removeprefix("@") for model in self.models), self.out or "")
        remote.refuse_chained(paths, self.allow_chained)

    def is_of_many(self) -> bool:
        """Whether models are searched for, or shared out: then there may be any number of them."""
        asked = self.workers != Workers() or self.resume
        return asked or any(map(is_search, self.models))

    def is_for_workers(self) -> bool:
        """Return whether it is for others to do; one to a file, or in a pipe, is done at once."""
        if self.in_process:
            return False
        several = len(self.models) > 1 or self.is_into_folder()
        return (several and "-" not in self.models) or self.is_of_many()

    def is_into_folder(self) -> bool:
        """Return whether -o is a folder that models go into, and not the name of the only one."""
        if self.out is None or self.export is not None:  # an export is a folder itself
            return False
        if len(self.models) > 1 or is_search(self.models[0]) or self.out.endswith("/"):
            return True
        if remote.is_remote(self.out):
            return remote.is_plain_folder(self.out)
        with reported(self.out):  # it may lie where nobody may look
            return is_plain_folder(Path(self.out))

    def is_piped(self) -> bool:
        """Return whether a patched model goes to standard output."""
        return not self.dry_run and (self.out == "-" or (self.out is None and "-" in self.models))

    def is_remote(self) -> bool:
        """Return whether something of it lies elsewhere."""
        return any(map(remote.is_remote, (self.rules, *self.models, self.out or "")))

    def job(self) -> Job:
        """Return what the workers are told. Raises RulesError where the rules are not valid."""
        from graphpatch.fleet.task import Job

        root = "" if self.workers.scheduler is None else str(Path.cwd())
        raw = self_contained(_rules_text(self.rules), self.rules, _files(self.rules))
        converts = self.export is not None or bool(self.out and self.out.endswith(".meta"))
        job = Job(
            raw,
            self.rules,
            self.emit,
            self.allow_python,
            self.dry_run,
            root=root,
            force=self.force,
            export=self.export,
            allow_none=converts and not self.is_for_workers(),
        )
        job.rules()
        return job


def _files(rules: str) -> Files:
    """Return the .npy files that rules name: beside them, on this machine or in the store."""
    if not remote.is_remote(rules):
        return in_folder(Path() if rules == "-" or is_recipe(rules) else Path(rules).parent)
    first, chain, rest = rules.partition("::")
    folder = first.rpartition("/")[0] + "/"
    return lambda name: remote.read_small(
        f"{folder}{remote.inner_path(checked_name(name), rules)}{chain}{rest}"
    )


def _rules_text(rules: str) -> bytes:
    if remote.is_remote(rules):
        return remote.read_small(rules)
    if is_recipe(rules):
        return msgspec.json.encode(recipe_rules(rules))
    return raw_rules(rules)
