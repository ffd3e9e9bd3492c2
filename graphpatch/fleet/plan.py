"""Which models the arguments of a command mean, where each goes, and what is refused first."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from graphpatch.errors import FleetError, OutputError, RulesError
from graphpatch.fleet import remote
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
from graphpatch.mapped import read_whole
from graphpatch.match.glob import QUOTED, refuse_long, whole
from graphpatch.shown import one_line

GLOB_TOKEN = re.compile(r"\[!?\]?[^\]]*\]|.", re.S)


def is_pattern(text: str) -> bool:
    """Return whether a path is a glob."""
    return any(sign in text for sign in "*?[")


def split_glob(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the folder that a glob starts from, and the parts of its path below that."""
    parts = text.split("/")
    first = next(place for place, part in enumerate(parts) if is_pattern(part))
    base = "/".join(parts[:first])
    return base or ("/" if text.startswith("/") else "."), tuple(p for p in parts[first:] if p)


def is_meant(pattern: Sequence[str], path: Sequence[str]) -> bool:
    """Return whether a path, or a folder that it lies in, is one that the pattern means."""
    return any(_fits_pattern(pattern, path[:end]) for end in range(1, len(path) + 1))


def may_hold_meant(pattern: Sequence[str], folder: Sequence[str]) -> bool:
    """Return whether what the pattern means may lie below this folder."""
    if "**" in pattern[: len(folder)] or is_meant(pattern, folder):
        return True
    return len(folder) < len(pattern) and _fits_pattern(pattern[: len(folder)], folder)


def _fits_pattern(pattern: Sequence[str], path: Sequence[str]) -> bool:
    """Whether the whole path fits: the parts of the pattern in turn, each place of it once."""
    places = {0}
    for part in pattern:
        if part == "**":
            places = set(range(min(places), len(path) + 1))
        else:
            fits = _part_matcher(part)
            places = {at + 1 for at in places if at < len(path) and fits(path[at])}
        if not places:
            return False
    return len(path) in places


@functools.cache
def _part_matcher(pattern: str) -> Callable[[str], bool]:
    try:
        refuse_long(pattern)
        return whole("(?s)" + "".join(map(_token_as_regex, GLOB_TOKEN.findall(pattern))))
    except RulesError as error:
        raise FleetError(f"the glob {pattern[:QUOTED]!r}: {error}") from None


def _token_as_regex(text: str) -> str:
    if len(text) > 1:
        inside = text[1:-1].replace("\\", "\\\\")
        return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return {"*": "[^/]*", "?": "[^/]"}.get(text, re.escape(text))


Descend = Callable[[tuple[str, ...]], bool]


class FoundModels(msgspec.Struct, frozen=True):
    """A model, and its path below the folder that is mirrored, which is `tree` where there is one.

    A tree is searched in depth: an output in it would be an input of the next run.
    """

    model: str
    relative: str
    searched: bool = False
    tree: str = ""


def is_search(argument: str) -> bool:
    """Return whether an argument means any number of models, and not one by its name."""
    if argument.startswith("@"):
        return True
    if argument == "-" or remote.is_remote(argument):
        return argument != "-" and (is_pattern(argument) or remote.is_plain_folder(argument))
    path = Path(argument)
    if path.exists():
        return is_plain_folder(path)
    return is_pattern(argument)


def is_plain_folder(path: Path) -> bool:
    """Return a folder that holds models; one with a SavedModel in it is a model itself."""
    return path.is_dir() and not any(path.glob("saved_model.*pb*"))


def search(arguments: Sequence[str], allow_chained: bool = False) -> list[FoundModels]:
    """Return the models that the arguments mean, in their order, and by name within each.

    `allow_chained` goes for the lines of lists.

    Raises FleetError where one means none.
    """
    return [model for argument in arguments for model in _models_of(argument, allow_chained)]


def _models_of(argument: str, allow_chained: bool = False) -> list[FoundModels]:
    if argument.startswith("@"):
        return _models_of_list(argument[1:], allow_chained)
    if not is_search(argument):
        return [FoundModels(argument, name_of(argument))]
    base: str = argument
    pattern: tuple[str, ...] = ("**",)
    if is_pattern(argument) and not _exists(argument):
        base, pattern = split_glob(argument)
    models = list(_models_below(base, pattern))
    if not models:
        what = f"no model matches {argument}"
        if pattern == ("**",):
            saved = " or ".join(SAVED_MODEL_FILES)
            what = f"{argument} is a folder without {saved}, and there is no model below it"
        raise FleetError(f"{what} (files that end in {', '.join(sorted(FILES))}, or SavedModels)")
    return models


def _exists(argument: str) -> bool:
    return not remote.is_remote(argument) and Path(argument).exists()


def _models_below(base: str, pattern: tuple[str, ...]) -> Iterator[FoundModels]:
    tree = base if "**" in pattern else ""
    files = remote.files if remote.is_remote(base) else local_files
    models = models_among(files(base, lambda folder: may_hold_meant(pattern, folder)))
    for relative, message in models:
        named = [relative] if message is None else [relative, f"{relative}/{message}"]
        if any(is_meant(pattern, name.split("/")) for name in named):
            yield FoundModels(path_below(base, relative), relative, True, tree)


def path_below(base: str, relative: str) -> str:
    """Return a path below a folder, spelled as the folder is."""
    if base == ".":
        return relative
    return f"{base.rstrip('/')}/{relative}" if remote.is_remote(base) else str(Path(base, relative))


def models_among(files: Iterator[str]) -> list[tuple[str, str | None]]:
    """Those of the files that are models by their names; for a SavedModel folder and message."""
    paths = [PurePosixPath(name) for name in files]
    saved = {path.parent: path.name for path in paths if path.name in SAVED_MODEL_FILES}
    whole = [(str(folder), name) for folder, name in saved.items() if not _lies_in(folder, saved)]
    single = [
        (str(path), None) for path in paths if path.suffix in FILES and not _lies_in(path, saved)
    ]
    return sorted([*whole, *single])


def _lies_in(path: PurePosixPath, folders: Container[PurePosixPath]) -> bool:
    return any(above in folders for above in path.parents)


def local_files(base: str, descend: Descend) -> Iterator[str]:
    """The files below a folder, without hidden ones, and without what lies in linked folders."""
    for folder, folders, names in os.walk(base):
        parts = Path(folder).relative_to(base).parts
        folders[:] = [name for name in folders if name[0] != "." and descend((*parts, name))]
        for name in names:  # a pipe or device has no end
            if name[0] != "." and Path(folder, name).is_file():
                yield "/".join((*parts, name))


def _models_of_list(path: str, allow_chained: bool) -> list[FoundModels]:
    """The models of a list, a line each. Names in it are mirrored from the folder they share."""
    try:
        text = (remote.read_small if remote.is_remote(path) else read_whole)(path).decode()
    except OSError as error:
        raise FleetError(f"cannot read the list {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise FleetError(f"the list {path} is not UTF-8 (byte {error.start})") from None
    lines = list(filter(None, map(str.strip, text.splitlines())))
    if not lines:
        raise FleetError(f"the list {path} names no models")
    for line in lines:
        _refuse_line(path, line)
    remote.refuse_chained(lines, allow_chained, f"the list {path}: ")
    names = [line for line in lines if not is_search(line)]
    shared = _shared_folders([_folder(name) for name in names])
    return [model for line in lines for model in _from_list(line, shared)]


def _refuse_line(path: str, line: str) -> None:
    """Raise FleetError for a line that is not a path, or names what a remote list may not."""
    if line.startswith("@") or line == "-" or "\0" in line:
        said = f"holds {one_line(line)}; a list holds paths, folders and globs"
        raise FleetError(f"the list {path} {said}")
    if line.startswith("~") and not _exists(line):
        said = f"holds {one_line(line)}, and only a shell knows what ~ is; write the whole path"
        raise FleetError(f"the list {path} {said}")
    if remote.is_remote(path) and not remote.is_remote(line):
        raise FleetError(
            f"the list {path} holds {line!r}, a path of this machine; a list that lies elsewhere "
            f"names what lies elsewhere"
        )
    if remote.is_own_disk(line) and remote.is_remote(path) and not remote.is_own_disk(path):
        raise FleetError(f"the list {path} holds {line!r}, a path of this machine")


def _from_list(line: str, shared: int) -> list[FoundModels]:
    if is_search(line):
        return _models_of(line)
    return [FoundModels(line, "/".join([*_folder(line)[shared:], name_of(line)]))]


def _folder(name: str) -> list[str]:
    """Return the folders that a model lies in."""
    path = name if remote.is_remote(name) else os.path.normpath(name)
    parts = path.rstrip("/").split("/")
    if parts[-1] in SAVED_MODEL_FILES:
        parts.pop()
    return [part for part in parts[:-1] if part != ".."]


def _shared_folders(folders: list[list[str]]) -> int:
    """Return how many folders the names start with alike."""
    alike = [len(set(parts)) == 1 for parts in zip(*folders, strict=False)]
    return [*alike, False].index(False)


def name_of(model: str) -> str:
    """Return what a model is called in a folder of them."""
    if remote.is_remote(model):
        parts = model.rstrip("/").split("/")
        return parts[-2] if parts[-1] in SAVED_MODEL_FILES else parts[-1]
    path = Path(model)
    if path.name in SAVED_MODEL_FILES:
        path = path.parent
    return path.name if path.name not in {"", ".."} else path.resolve().name


def plan(
    models: Sequence[FoundModels], out: str | None, rules: str, folder: bool = True
) -> list[Task]:
    """Return a task for each model; in the folder `out`, the tree is that of the models.

    Where it is no `folder`, it is the output of the one model.

    Raises OutputError where two models would be written to one place, or one over a model or the
    rules file, or where outputs would lie in a tree that is searched for models.
    """
    if out is None and any(model.searched for model in models):
        raise OutputError("say where the models that are found go when patched: -o DIR")
    if out is None:
        outputs = [_patched_beside(model.model) for model in models]
    elif not folder:
        outputs = [out]
    else:
        outputs = _mirrored(models, out)
    tasks = [
        Task(place, model.model, output, model.searched)
        for place, (model, output) in enumerate(zip(models, outputs, strict=True))
    ]
    _refuse_shared(tasks)
    to_files = [task for task in tasks if task.output != "-"]
    _refuse_rules(to_files, rules)
    if not folder and out is not None:
        refuse_suffix(out)
    _refuse_models(to_files)
    return tasks


def local_outputs(tasks: Sequence[Task]) -> list[str]:
    """Return where on this machine tasks would leave something half-written."""
    outputs = [task.output for task in tasks]
    return [
        output for output in outputs if output not in ("", "-") and not remote.is_remote(output)
    ]


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


def _mirrored(models: Sequence[FoundModels], out: str) -> list[str]:
    if not remote.is_remote(out):
        refuse_file(out)
    for tree in dict.fromkeys(model.tree for model in models if model.tree):
        _refuse_inside(out, tree)
    return [path_below(out, model.relative) for model in models]


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
    """Return the folder of a SavedModel on this machine; nothing for another model."""
    path = local_path(model)
    if path is None:
        return ""
    folder = path.parent if path.name in SAVED_MODEL_FILES else path
    return str(folder) if folder.is_dir() else ""
