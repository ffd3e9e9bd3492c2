"""Where each model of a command goes, and what is refused before any is touched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from graphpatch.errors import OutputError
from graphpatch.fleet.search import Task, model_path, path_below
from graphpatch.formats.destination import (
    FILES,
    identity,
    is_remote,
    local_path,
    patched_name,
    place,
    refuse_inputs,
)
from graphpatch.formats.foreign import refuse_suffix


def plan(models: Sequence[Task], out: str | None, rules: str, folder: bool = True) -> list[Task]:
    """Return the tasks with their outputs; in the folder `out`, the tree is that of the models.

    Where it is no `folder`, it is the output of the one model. Raises OutputError where two models
    would be written to one place, or one over a model or the rules file, or where outputs would lie
    in a tree that is searched for models.
    """
    if out is None:
        outputs = [_patched_beside(model) for model in models]
    elif folder:
        _refuse_folder(models, out)
        outputs = [path_below(out, model.relative) for model in models]
    else:
        outputs = [out]
    tasks = [replace(task, output=output) for task, output in zip(models, outputs, strict=True)]
    _refuse_shared(tasks)
    written = [task for task in tasks if task.output != "-"]
    for task in written:
        refuse_inputs(task.output, {"the rules file": rules})
    if out is not None and not folder:
        refuse_suffix(out)
    _refuse_models(written)
    return tasks


def local_outputs(tasks: Sequence[Task]) -> list[str]:
    """Return where on this machine tasks would leave something half-written."""
    outputs = [task.output for task in tasks]
    return [output for output in outputs if output not in ("", "-") and not is_remote(output)]


def _patched_beside(task: Task) -> str:
    if task.searched:
        raise OutputError("say where the models that are found go when patched: -o DIR")
    if task.model == "-":
        return "-"
    if is_remote(task.model):
        raise OutputError(f"{task.model}: say where the output of a remote model goes, by -o")
    path = Path(model_path(task.model))
    return patched_name(path, is_folder=path.is_dir())


def _refuse_folder(models: Sequence[Task], out: str) -> None:
    """Raise OutputError where models cannot go to a folder of this name."""
    path = Path(out)
    if not is_remote(out) and path.exists() and not path.is_dir():
        raise OutputError(f"{out} is a file, and models go to a folder")
    if not is_remote(out) and path.suffix in FILES and not path.exists() and out[-1] != "/":
        raise OutputError(
            f"{out} is the name of a file, and several models go to a folder; name one: "
            f"-o {path.with_suffix('')}/"
        )
    for tree in dict.fromkeys(model.tree for model in models if model.tree):
        if f"{place(out)}/".startswith(f"{place(tree).rstrip('/')}/"):
            raise OutputError(
                f"{out} lies in {tree}, which is searched for models: the next run would take the "
                f"outputs for models; name a folder elsewhere"
            )


def _refuse_shared(tasks: Sequence[Task]) -> None:
    """Raise OutputError where an output is another's, or lies in another's folder."""
    takers: dict[str, Task] = {}
    for task in tasks:
        first = takers.setdefault(task.output, task)
        if first is not task:
            raise OutputError(
                f"two models would be written to {task.output}: {first.model} and {task.model}; "
                "patch them into two folders"
            )
    for task in tasks:
        for above in map(str, PurePosixPath(task.output).parents):
            if above in takers:
                raise OutputError(
                    f"{task.model} would be written to {task.output}, which lies in the output of "
                    f"{takers[above].model}"
                )


def _refuse_models(tasks: Sequence[Task]) -> None:
    """Raise OutputError where an output is a model, holds one, or lies in one."""
    models = {identity(task.model): task for task in tasks}
    whole = {place(task.model).partition("::")[0] for task in tasks if "::" in task.model}
    for task in tasks:
        folder = local_path(model_path(task.model))
        if folder is not None and folder.is_dir():
            whole.add(place(folder))
    for task in tasks:
        first, target = models.get(identity(task.output)), place(task.output)
        if first is not None:
            which = "the model itself" if first is task else "another of the models"
            raise OutputError(f"{task.output} is {which}; a model is never written over")
        if target in whole:
            raise OutputError(f"{task.output} holds one of the models; it is never written over")
        if not whole.isdisjoint(map(str, PurePosixPath(target).parents)):
            raise OutputError(f"{task.output} lies in a model's folder, which is never changed")
