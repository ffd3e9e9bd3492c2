"""What a worker does with one model. Whatever is wrong with the model stays with the model."""

from __future__ import annotations

import gc
import hashlib
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

import graphpatch
from graphpatch.application import Result, apply_rules
from graphpatch.errors import FleetError, ForeignError, GraphpatchError, ModelError
from graphpatch.fleet import stores
from graphpatch.fleet.order import FleetOrder, TaskResult
from graphpatch.fleet.search import Task
from graphpatch.formats import load
from graphpatch.formats.destination import is_remote, model_path, replaces
from graphpatch.formats.foreign import not_there
from graphpatch.formats.model import write_to_stdout
from graphpatch.formats.output import regular_files
from graphpatch.graph.graph import Progress

Work = Callable[[FleetOrder, Task], TaskResult]
Call = Callable[[Task], TaskResult]
Finish = Callable[[Result], Result]
Tell = Callable[[dict[str, Any]], None]


def run_task(work: Work, order: FleetOrder, task: Task) -> TaskResult:
    """Do the work on one model; every error is told in what is returned."""
    start = time.perf_counter()
    try:
        if order.version != graphpatch.__version__:
            here = graphpatch.__version__
            raise FleetError(f"this worker has graphpatch {here}, and the command {order.version}")
        done = work(order, task)
    except (GraphpatchError, OSError, MemoryError) as error:
        message = str(error) or type(error).__name__
        if isinstance(error, ForeignError) and task.searched and task.model.endswith(".pbtxt"):
            done = TaskResult(task, passed_over=message.removeprefix(f"{task.model}: "))
        else:
            names_it = task.model in message or str(Path(task.model)) in message
            done = TaskResult(task, error=message if names_it else f"{task.model}: {message}")
    except Exception:
        done = TaskResult(task, error=f"{task.model}: {traceback.format_exc()}", bug=True)
    gc.collect()  # a model that holds itself would keep its file open and mapped
    return structs.replace(done, seconds=round(time.perf_counter() - start, 4))


def died(task: Task) -> TaskResult:
    """Return the result of a task over which workers died as often as it was tried."""
    return TaskResult(task, error=f"{task.model}: worker processes died over it, again and again")


def check_model(order: FleetOrder, task: Task) -> TaskResult:
    """Return whether a model has the rules applied; it is an error where it has not."""
    from graphpatch.analysis.applied import check  # here, as `apply` does without

    with _at_hand(order, task.model) as path:
        checked = replace(check(order.read_rules(), path), model=task.model)
    return TaskResult(task, checked.document(), error=checked.error)


def patch_model(
    order: FleetOrder,
    task: Task,
    progress: Progress | None = None,
    finish: Finish | None = None,
    tell: Tell | None = None,
) -> TaskResult:
    """Patch one model, and write it; what is wrong with it is raised.

    `finish` may change the result before it is written. `tell` gets the report before an output
    takes its name: where it raises, there is none.
    """
    with _at_hand(order, task.model) as path:
        original = Path(model_path(str(path)))
        source = content(original) if order.recorded and task.model != "-" else ""
        if task.known is not None and _is_done(order, task, source):
            return TaskResult(task, passed_over="done before, and unchanged since")
        report: dict[str, Any] = {"output": None if order.dry_run else task.output}
        if order.dry_run:
            report["would_write"] = task.output
        target = task.output if is_remote(task.output) else str(order.path(task.output))
        if task.output and replaces(target, order.force, original, label=task.output):
            report["replaced"] = True
        result = apply_rules(order.read_rules(), load(path, progress), progress, order.export)
        result = finish(result) if finish else result
        report = result.to_json(task.model, task.output, report)
        confirm: Callable[[], Any] = partial(tell, report) if tell is not None else lambda: None
        if order.dry_run or task.output == "-":
            if not order.dry_run:
                write_to_stdout(result.model, progress)
            confirm()
            return TaskResult(task, report, hashes=(source, ""))
        if order.recorded and not is_remote(task.output):
            order.path(task.output).parent.mkdir(parents=True, exist_ok=True)
        with _at_hand(order, task.output, stores.delivered) as new:
            result.model.write(new, progress, confirm)
            written = content(new) if order.recorded else ""
    return TaskResult(task, report, hashes=(source, written))


def _is_done(order: FleetOrder, task: Task, source: str) -> bool:
    """Return whether the output is the one that these rules once made of this source."""
    known_source, known_output = task.known or ("", "")
    exists = stores.exists if is_remote(task.output) else lambda path: order.path(path).exists()
    if known_source != source or not exists(task.output):
        return False
    with _at_hand(order, task.output) as path:
        return content(path) == known_output


Local = Callable[[str], AbstractContextManager[Path]]


@contextmanager
def _at_hand(order: FleetOrder, name: str, local: Local = stores.fetched) -> Iterator[Path]:
    """Give a model or an output as a path of this machine; errors call it what the user did."""
    with local(name) if is_remote(name) else nullcontext(order.path(name)) as path:
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
    with path.open("rb") as opened:
        digest = hashlib.sha256()
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
