"""Where each model goes, and what is refused before any is touched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from graphpatch.errors import OutputError
from graphpatch.fleet import remote
from graphpatch.fleet.find_models import FoundModels, path_below
from graphpatch.fleet.task import Task
from graphpatch.formats.destination import (
    FILES,
    identity,
    local_path,
    patched_name,
    place,
    refuse_inputs,
)
from graphpatch.formats.foreign import refuse_suffix
from graphpatch.formats.load import SAVED_MODEL_FILES


def plan(
    found: Sequence[FoundModels], out: str | None, rules: str, folder: bool = True
) -> list[Task]:
    """A task for each model; in the folder `out`, the tree is that of the models.

    Where it is no `folder`, it is the output of the one model.

    Raises OutputError where two models would be written to one place, or one over a model or the
    rules file, or where outputs would lie in a tree that is searched for models.
    """
    if out is None and any(one.searched for one in found):
        raise OutputError("say where the models that are found go when patched: -o DIR")
    if out is None:
        outputs = [_patched_beside(one.model) for one in found]
    elif not folder:
        outputs = [out]
    else:
        outputs = _mirrored(found, out)
    tasks = [
        Task(place, one.model, output, one.searched)
        for place, (one, output) in enumerate(zip(found, outputs, strict=True))
    ]
    _refuse_shared(tasks)
    to_files = [task for task in tasks if task.output != "-"]
    _refuse_rules(to_files, rules)
    if not folder and out is not None:
        refuse_suffix(out)
    _refuse_models(to_files)
    return tasks


def local_outputs(tasks: Sequence[Task]) -> list[str]:
    """Where on this machine tasks would leave something half-written."""
    outputs = [task.output for task in tasks]
    return [one for one in outputs if one not in ("", "-") and not remote.is_remote(one)]


def refuse_file(out: str) -> None:
    """Raise OutputError where several models are to go to what is a file, or is named like one."""
    path = Path(out)
    if path.exists() and not path.is_dir():
        raise OutputError(f"{out} is a file, and models go to a folder")
    if path.suffix in FILES and not path.exists() and not out.endswith("/"):
        raise OutputError(
            f"{out} is the name of a file, and several models go to a folder; name one: "
            f"-o {path.with_suffix('')}/"
        )


def _patched_beside(model: str) -> str:
    if model == "-":
        return "-"
    if remote.is_remote(model):
        raise OutputError(f"{model}: say where the output of a remote model goes, by -o")
    path = Path(model)
    if path.name in SAVED_MODEL_FILES:
        return patched_name(path.parent, is_folder=True)
    return patched_name(path, is_folder=path.is_dir())


def _mirrored(found: Sequence[FoundModels], out: str) -> list[str]:
    if not remote.is_remote(out):
        refuse_file(out)
    for tree in dict.fromkeys(one.tree for one in found if one.tree):
        _refuse_inside(out, tree)
    return [path_below(out, one.relative) for one in found]


def _refuse_inside(out: str, tree: str) -> None:
    inner, outer = place(out), place(tree)
    if inner == outer or inner.startswith(outer.rstrip("/") + "/"):
        raise OutputError(
            f"{out} lies in {tree}, which is searched for models: the next run would take the "
            f"outputs for models; name a folder elsewhere"
        )


def _refuse_shared(tasks: Sequence[Task]) -> None:
    """No output is another's, and none lies in another's folder."""
    takers: dict[str, Task] = {}
    for task in tasks:
        first = takers.setdefault(task.output, task)
        if first is not task:
            raise OutputError(
                f"two models would be written to {task.output}: {first.model} and {task.model}; "
                "patch them into two folders"
            )
    for task in tasks:
        for above in PurePosixPath(task.output).parents:
            if str(above) in takers:
                raise OutputError(
                    f"{task.model} would be written to {task.output}, which lies in the output of "
                    f"{takers[str(above)].model}"
                )


def _refuse_rules(tasks: Sequence[Task], rules: str) -> None:
    """No output is the rules file."""
    for task in tasks:
        refuse_inputs(task.output, {"the rules file": rules})


def _refuse_models(tasks: Sequence[Task]) -> None:
    """No output is a model, or lies in one."""
    models = {identity(task.model): task for task in tasks}
    for task in tasks:
        first = models.get(identity(task.output))
        if first is not None:
            which = "the model itself" if first is task else "another of the models"
            raise OutputError(f"{task.output} is {which}; a model is never written over")
    whole = {place(task.model).partition("::")[0] for task in tasks if "::" in task.model}
    whole |= {place(folder) for task in tasks if (folder := _saved_model_folder(task.model))}
    for task in tasks:
        target = place(task.output)
        if target in whole:
            raise OutputError(f"{task.output} holds one of the models; it is never written over")
        if not whole.isdisjoint(map(str, PurePosixPath(target).parents)):
            raise OutputError(f"{task.output} lies in a model's folder, which is never changed")


def _saved_model_folder(model: str) -> str:
    """The folder of a SavedModel on this machine; nothing for another model."""
    path = local_path(model)
    if path is None:
        return ""
    folder = path.parent if path.name in SAVED_MODEL_FILES else path
    return str(folder) if folder.is_dir() else ""
