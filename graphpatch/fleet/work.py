"""What the user asks of models, and what a worker does with one.

Whatever is wrong with a model stays with the model.
"""

from __future__ import annotations

import gc
import hashlib
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

import graphpatch
from graphpatch.application import Result, apply_rules
from graphpatch.errors import FleetError, ForeignError, GraphpatchError, ModelError
from graphpatch.fleet import stores
from graphpatch.fleet.search import Task, is_search
from graphpatch.formats import load
from graphpatch.formats.destination import (
    Export,
    errors_as,
    is_remote,
    model_path,
    replaces,
    reported,
)
from graphpatch.formats.foreign import not_there
from graphpatch.formats.output import regular_files
from graphpatch.gradients.tensors import checked_name
from graphpatch.graph.graph import Progress
from graphpatch.rules import Rule, rules_at, rules_in


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

    A worker is told of it as `with_rules` gives it: with the rules that were `read`, and the folder
    that relative paths are seen from (`root`), where a worker's is another one.
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
    losses: tuple[str, ...] | None = None  # of a training graph, whose gradients are built anew
    force: bool = False  # outputs may replace what graphpatch did not write
    recorded: bool = False  # hashes are taken of what is read and written, for a manifest
    read: tuple[Rule, ...] = ()
    root: str = ""
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
            return stores.is_plain_folder(self.out)

    def is_piped(self) -> bool:
        """Return whether a patched model goes to standard output."""
        return not self.dry_run and (self.out == "-" or (self.out is None and "-" in self.models))

    def with_rules(self, recorded: bool = False) -> FleetOrder:
        """Return what the workers are told. Raises RulesError where the rules are not valid."""
        read = tuple(self._read_rules())
        root = "" if self.scheduler is None else str(Path.cwd())
        return structs.replace(self, models=(), recorded=recorded, read=read, root=root)

    def _read_rules(self) -> list[Rule]:
        """Return the rules of the file, which may lie in a store, with the .npy files beside it.

        Without a rule, one model may be converted. Raises FleetError where a store cannot be read.
        """
        converts = self.export is not None or bool(self.out and self.out.endswith(".meta"))
        options = self.emit, self.allow_python, converts and not self.is_of_many()
        if not is_remote(self.rules):
            return rules_at(self.rules, *options)
        first, chain, rest = self.rules.partition("::")
        folder = first.rpartition("/")[0] + "/"

        def beside(name: str) -> bytes:
            inside = stores.inner_path(checked_name(name), self.rules)
            return stores.read_small(f"{folder}{inside}{chain}{rest}")

        return rules_in(stores.read_small(self.rules), self.rules, *options, beside)

    def digest(self) -> str:
        """Return the rules by content: another layout of the same file has the same."""
        content = [(rule.written, self.emit or "auto") for rule in self.read]
        return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()

    def at(self, name: str) -> str:
        """Return a path or URL of the user's as this process finds it."""
        return name if is_remote(name) else str(Path(self.root, name))


Work = Callable[[FleetOrder, Task], TaskResult]


def run_task(work: Work, order: FleetOrder, task: Task) -> TaskResult:
    """Do the work on one of many models; every error is told in what is returned."""
    start = time.perf_counter()
    try:
        if (here := graphpatch.__version__) != order.version:
            raise FleetError(f"this worker has graphpatch {here}, and the command {order.version}")
        done = work(order, task)
    except Exception as error:
        done = failure_of(work, task, error)
    gc.collect()  # a model that holds itself would keep its file open and mapped
    return timed(done, start)


def timed(done: TaskResult, start: float) -> TaskResult:
    """Return the result with the seconds since `start`, a time of `perf_counter`."""
    return structs.replace(done, seconds=round(time.perf_counter() - start, 4))


def failure_of(work: Work, task: Task, error: Exception) -> TaskResult:
    """Return how a model failed, in the words of the error that is being handled, or as our bug."""
    if not isinstance(error, GraphpatchError | OSError | MemoryError):
        return TaskResult(task, error=f"{task.model}: {traceback.format_exc()}", bug=True)
    message = str(error) or type(error).__name__
    is_text = isinstance(error, ForeignError) and task.model.endswith(".pbtxt")
    is_output = work is patch_model and ".patched" in Path(task.model).suffixes
    if task.searched and (is_text or is_output):  # what nobody named may be no model to patch
        return TaskResult(task, passed_over=message.removeprefix(f"{task.model}: "))
    names_it = task.model in message or str(Path(task.model)) in message
    return TaskResult(task, error=message if names_it else f"{task.model}: {message}")


def check_model(order: FleetOrder, task: Task) -> TaskResult:
    """Return whether a model has the rules applied; it is an error where it has not."""
    from graphpatch.analysis.applied import check  # here, as `apply` does without

    with _at_hand(order, task.model) as path:
        checked = replace(check(order.read, path), model=task.model)
    return TaskResult(task, checked.document(), error=checked.error)


def patch_model(order: FleetOrder, task: Task) -> TaskResult:
    """Patch one model, and write it; what is wrong with it is raised."""
    with patching(order, task) as done:
        return done


@contextmanager
def patching(
    order: FleetOrder, task: Task, progress: Progress | None = None
) -> Iterator[TaskResult]:
    """Patch one model, and give the report on it; the output takes its name at the end.

    An output that cannot be reported is not written.
    """
    with _at_hand(order, task.model) as path:
        original = Path(model_path(str(path)))
        source = content(original) if order.recorded and task.model != "-" else ""
        if task.known is not None and _is_done(order, task, source):
            yield TaskResult(task, passed_over="done before, and unchanged since")
            return
        output = None if order.dry_run else task.output
        report: dict[str, Any] = {"output": output}
        if order.dry_run:
            report["would_write"] = task.output
        target = order.at(task.output)
        if task.output and replaces(target, order.force, original, label=task.output):
            report["replaced"] = True
        result = apply_rules(order.read, load(path, progress), progress, order.export)
        if order.losses is not None:
            result = _with_rebuilt_gradients(result, order.losses)
        report = result.to_json(task.model, task.output, report)
        if order.recorded and not is_remote(task.output):
            Path(target).parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            new: Path | str | None = output
            if output not in (None, "-"):
                new = stack.enter_context(_at_hand(order, task.output, stores.delivered))
            written = stack.enter_context(result.model.writing(new, progress))
            hashes = source, content(written) if written and order.recorded else ""
            yield TaskResult(task, report, hashes=hashes)


def _with_rebuilt_gradients(result: Result, losses: Sequence[str]) -> Result:
    """Return the result with its training graph's gradients built anew, by TensorFlow."""
    from graphpatch.analysis.training import gradient_sections
    from graphpatch.runtime.rebuild import rebuild_gradients

    graphs = [graph.main for graph in result.model.graphs]
    sections = [section for graph in graphs for section in gradient_sections(graph, losses)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model = rebuild_gradients(result.model, losses)
    stale = tuple(f"{section.scope}/** (" for section in sections)
    notes = [text for text in result.report["notes"] if not text.startswith(stale)]
    notes += [str(section) for section in sections]
    notes += [str(warning.message) for warning in caught if warning.category is UserWarning]
    nodes = {**result.report["nodes"], "after": model.node_count}
    return Result(model, {**result.report, "nodes": nodes, "notes": notes})


def _is_done(order: FleetOrder, task: Task, source: str) -> bool:
    """Return whether the output is the one that these rules once made of this source."""
    known_source, known_output = task.known or ("", "")
    if known_source != source or not stores.exists(order.at(task.output)):
        return False
    with _at_hand(order, task.output) as path:
        return content(path) == known_output


Local = Callable[[str], AbstractContextManager[Path]]


@contextmanager
def _at_hand(order: FleetOrder, name: str, local: Local = stores.fetched) -> Iterator[Path]:
    """Give a model or an output as a path of this machine; errors call it what the user did."""
    with local(order.at(name)) as path:
        try:
            yield path
        except GraphpatchError as error:
            if str(path) in (name, "-", str(Path(name))):
                raise
            raise type(error)(str(error).replace(str(path), name)) from error


def content(path: Path) -> str:
    """Return the SHA-256 of a file; of a folder, that of its files' names and contents.

    Raises ModelError for what is not there, has no end, as a device, or may never begin, as a pipe.
    """
    if path.is_dir():
        whole = hashlib.sha256()
        for file in filter(Path.is_file, sorted(regular_files(path))):
            whole.update(f"{content(file)} {file.relative_to(path).as_posix()}\n".encode())
        return whole.hexdigest()
    if not path.exists():
        raise ModelError(not_there(path))
    if not path.is_file():
        raise ModelError(f"{path} is neither a file nor a folder")
    with errors_as(f"cannot read {path}", ModelError), path.open("rb") as opened:
        digest = hashlib.sha256()
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
