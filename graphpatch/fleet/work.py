"""What a worker does with one model. Whatever is wrong with the model stays with the model."""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

import graphpatch
from graphpatch.application import Result, apply_rules
from graphpatch.errors import FleetError, ForeignError, GraphpatchError, ModelError
from graphpatch.fleet import remote
from graphpatch.fleet.task import Job, Task, TaskResult
from graphpatch.formats import load
from graphpatch.formats.destination import Destination
from graphpatch.formats.foreign import not_there
from graphpatch.formats.load import SAVED_MODEL_FILES
from graphpatch.formats.model import Model, write_to_stdout
from graphpatch.formats.output import Confirm, regular_files
from graphpatch.graph.graph import Progress

Work = Callable[[Job, Task], TaskResult]
Finish = Callable[[Result], Result]
Tell = Callable[[dict[str, Any]], None]


def patch_model(job: Job, task: Task) -> TaskResult:
    """Patch one model, and write it; every error is told in what is returned."""
    return _timed(_patch_model, job, task)


def in_process(progress: Progress, finish: Finish | None = None, tell: Tell | None = None) -> Work:
    """Return the same in the process of the command: it shows progress, and finishes each result.

    What is wrong with a model is told in what is returned; any other error is raised. `tell` gets
    the report before an output takes its name: where it raises, there is none.
    """

    def work(job: Job, task: Task) -> TaskResult:
        try:
            return _patch_model(job, task, progress, finish, tell)
        except GraphpatchError as error:
            return TaskResult(task, error=str(error))

    return work


def check_model(job: Job, task: Task) -> TaskResult:
    """Return whether a model has the rules applied; it is an error where it has not."""
    return _timed(_check_task, job, task)


def _timed(work: Work, job: Job, task: Task) -> TaskResult:
    start = time.perf_counter()
    with _collected():
        done = _tried(work, job, task)
    return structs.replace(done, seconds=round(time.perf_counter() - start, 4))


@contextmanager
def _collected() -> Iterator[None]:
    """What is made here is all collected at the end, and what was there before is not looked at.

    A model that holds itself would keep its file open and mapped. What is made while collection is
    off stays young, and young objects are quickly gone over, however many a worker has besides.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if enabled:
            gc.enable()


def _tried(work: Work, job: Job, task: Task) -> TaskResult:
    try:
        if job.version != graphpatch.__version__:
            here = graphpatch.__version__
            raise FleetError(f"this worker has graphpatch {here}, and the command {job.version}")
        return work(job, task)
    except (GraphpatchError, OSError, MemoryError) as error:
        message = str(error) or type(error).__name__
        foreign = isinstance(error, ForeignError) and task.searched
        if foreign and task.model.endswith(".pbtxt"):
            return TaskResult(task, passed_over=message.removeprefix(f"{task.model}: "))
        known = task.model in message or str(Path(task.model)) in message
        return TaskResult(task, error=message if known else f"{task.model}: {message}")
    except Exception:
        import traceback

        return TaskResult(task, error=f"{task.model}: {traceback.format_exc()}", bug=True)


def _patch_model(
    job: Job,
    task: Task,
    progress: Progress | None = None,
    finish: Finish | None = None,
    tell: Tell | None = None,
) -> TaskResult:
    with _at_hand(job, task.model) as path:
        source = content(_path_of_model(path)) if job.recorded else ""
        if task.known is not None and _is_done(job, task, source):
            return TaskResult(task, passed_over="done before, and unchanged since")
        target = _target(job, task.output)
        replaces = bool(task.output) and Destination(target, job.force, label=task.output).replaces(
            _path_of_model(path)
        )
        result = apply_rules(job.rules(), load(path, progress), progress, job.export)
        result = finish(result) if finish else result
        where: dict[str, Any] = {"output": None if job.dry_run else task.output}
        where |= {"would_write": task.output} if job.dry_run else {}
        where |= {"replaced": True} if replaces else {}
        report = result.told(task.model, task.output, where)
        confirm = partial(tell, report) if tell is not None else None
        written = ""
        if not job.dry_run:
            written = _write_model(job, result.model, task.output, progress, confirm)
        elif confirm is not None:
            confirm()
    return TaskResult(task, report, source=source, output=written)


def _target(job: Job, output: str) -> str:
    """Return the output as this process finds it."""
    is_here = job.root and not remote.is_remote(output)
    return str(Path(job.root, output)) if is_here else output


def _check_task(job: Job, task: Task) -> TaskResult:
    from graphpatch.analysis.applied import check  # here, as `apply` does without

    with _at_hand(job, task.model) as path:
        checked = replace(check(job.rules(), path), model=task.model)
    return TaskResult(task, checked.document(), error=checked.error)


@contextmanager
def _at_hand(job: Job, model: str) -> Iterator[Path]:
    """Return the model as a file of this machine; errors call it what the user did."""
    if not remote.is_remote(model):
        path = Path(job.root, model)
        with _errors_name(str(path), model) if job.root else nullcontext():
            yield path
        return
    with remote.local_folder() as folder:
        local = remote.fetch(model, Path(folder))
        with _errors_name(str(local), model):
            yield local


@contextmanager
def _errors_name(path: str, label: str) -> Iterator[None]:
    try:
        yield
    except GraphpatchError as error:
        if path == label:
            raise
        raise type(error)(str(error).replace(path, label)) from error


def _path_of_model(path: Path) -> Path:
    return path.parent if path.name in SAVED_MODEL_FILES else path


def _is_done(job: Job, task: Task, source: str) -> bool:
    """Return whether the output is the one that these rules once made of this source."""
    known = task.known
    if known is None or known.source != source:
        return False
    if remote.is_remote(task.output):
        if not remote.exists(task.output):
            return False
    elif not Path(job.root, task.output).exists():
        return False
    with _at_hand(job, task.output) as path:
        return content(path) == known.output


def _write_model(
    job: Job, model: Model, output: str, progress: Progress | None, confirm: Confirm | None
) -> str:
    """Write the model, and return the content of what was written where that is recorded."""
    if output == "-":
        write_to_stdout(model, progress)
        if confirm is not None:
            confirm()
        return ""
    if remote.is_remote(output):
        with remote.local_folder() as folder:
            local = Path(folder, output.rstrip("/").rpartition("/")[2])
            model.write(local, confirm=confirm)
            remote.deliver(local, output)
            return content(local) if job.recorded else ""
    path = Path(job.root, output)
    with _errors_name(str(path), output) if job.root else nullcontext():
        if job.recorded:
            path.parent.mkdir(parents=True, exist_ok=True)
        model.write(path, progress, confirm)
    return content(path) if job.recorded else ""


HASHED_CHUNK = 1 << 20


def content(path: Path) -> str:
    """SHA-256 of a file; of a folder, that of its files' names and contents.

    Raises ModelError for what is not there, has no end, as a device, or may never begin, as a pipe.
    """
    if not path.is_dir():
        if not path.exists():
            raise ModelError(not_there(path))
        if not path.is_file():
            raise ModelError(f"{path} is neither a file nor a folder")
        return _file_hash(path)
    whole = hashlib.sha256()
    for file in sorted(regular_files(path)):
        whole.update(f"{_file_hash(file)} {file.relative_to(path).as_posix()}\n".encode())
    return whole.hexdigest()


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(HASHED_CHUNK))
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
    return digest.hexdigest()
