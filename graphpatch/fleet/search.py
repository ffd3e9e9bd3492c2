"""Which models the arguments of a command mean, and where each goes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import msgspec
from msgspec.structs import replace

from graphpatch.errors import FleetError, OutputError
from graphpatch.fleet import stores
from graphpatch.formats.destination import (
    FILES,
    OWN_DISK,
    SAVED_MODEL_FILES,
    Inputs,
    default_output,
    is_remote,
    model_path,
    never_written,
    place,
)
from graphpatch.formats.foreign import refuse_suffix
from graphpatch.mapped import read_whole
from graphpatch.recipes import RECIPES, SEVERAL
from graphpatch.shown import one_line

GLOB_SIGNS = frozenset("*?[")
LONGEST_NAME = 10_000  # characters of an argument or a line


class Task(msgspec.Struct, frozen=True):
    """One model, and where it goes; without an output nothing is written.

    `relative` is its path below the folder that is mirrored. A model that was `searched` for, and
    not named, may turn out to be none; `tree` is where it was, for what `pattern` means below that.
    `known` has the hashes of source and output that a manifest has of an earlier run.
    """

    model: str
    output: str = ""
    relative: str = ""
    searched: bool = False
    tree: str = ""
    pattern: tuple[str, ...] = ()
    known: tuple[str, str] | None = None


def is_glob(text: str) -> bool:
    """Return whether a path is a glob, and not the name of a file."""
    is_there = not is_remote(text) and Path(text).exists()
    return not GLOB_SIGNS.isdisjoint(text) and not is_there


def is_search(argument: str) -> bool:
    """Return whether an argument means any number of models, and not one by its name."""
    if argument.startswith("@") or argument == "-":
        return argument != "-"
    return is_glob(argument) or stores.is_plain_folder(argument)


def search(arguments: Iterable[str], allow_chained: bool = False) -> list[Task]:
    """Return the models that the arguments mean, in their order, and by name within each.

    `allow_chained` goes for the lines of lists. Raises FleetError where an argument means none.
    """
    models: list[Task] = []
    for argument in arguments:
        if len(argument) > LONGEST_NAME:
            raise FleetError(f"{argument[:100]!r}... is longer than {LONGEST_NAME:,} characters")
        if argument.startswith("@"):
            models += _models_of_list(argument[1:], allow_chained)
        elif is_search(argument):
            models += _models_below(argument)
        else:
            models.append(Task(argument, relative=name_of(argument)))
    return models


def _models_below(argument: str) -> list[Task]:
    """Return the models that a folder or glob means."""
    base, pattern = split_glob(argument) if is_glob(argument) else (argument, ("**",))
    files = stores.files(base) if is_remote(base) else _local_files(base, pattern)
    models = [
        Task(path_below(base, relative), "", relative, True, base, pattern)
        for relative, names in models_among(files)
        if any(is_meant(pattern, name.split("/")) for name in names)
    ]
    if not models:
        says = f"no model matches {argument}"
        if pattern == ("**",):
            saved = " or ".join(SAVED_MODEL_FILES)
            says = f"{argument} is a folder without {saved}, and there is no model below it"
        raise FleetError(f"{says} (files that end in {', '.join(sorted(FILES))}, or SavedModels)")
    return models


def split_glob(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the folder that a glob starts from, and the parts of its path below that."""
    parts = text.split("/")
    first = next(place for place, part in enumerate(parts) if not GLOB_SIGNS.isdisjoint(part))
    base = "/".join(parts[:first])
    return base or ("/" if text.startswith("/") else "."), tuple(p for p in parts[first:] if p)


def is_meant(pattern: Sequence[str], path: Sequence[str]) -> bool:
    """Return whether a path, or a folder that it lies in, is one that the pattern means."""
    ends = {0}  # after how many parts of the path the pattern so far may end
    for part in pattern:
        if part == "**":
            ends = set(range(min(ends), len(path) + 1))
        else:
            ends = {end + 1 for end in ends if end < len(path) and fnmatchcase(path[end], part)}
        if not ends:
            return False
    return max(ends) > 0


def may_hold_meant(pattern: Sequence[str], folder: Sequence[str]) -> bool:
    """Return whether what the pattern means may lie below this folder."""
    fixed = pattern[: pattern.index("**")] if "**" in pattern else pattern
    return all(map(fnmatchcase, folder, fixed))


def _local_files(base: str, pattern: Sequence[str]) -> Iterator[str]:
    """Yield the files below a folder, without hidden ones, and without those in linked folders."""
    for folder, folders, names in os.walk(base):
        parts = Path(folder).relative_to(base).parts
        folders[:] = [
            name for name in folders if name[0] != "." and may_hold_meant(pattern, (*parts, name))
        ]
        for name in names:  # a pipe or device has no end
            if name[0] != "." and Path(folder, name).is_file():
                yield "/".join((*parts, name))


def path_below(base: str, relative: str) -> str:
    """Return a path below a folder, spelled as the folder is."""
    if base == ".":
        return relative
    return f"{base.rstrip('/')}/{relative}" if is_remote(base) else str(Path(base, relative))


def models_among(files: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return those of the files that are models: each with the names that a glob may mean it by."""
    paths = [PurePosixPath(name) for name in files]
    saved = {path.parent: path for path in paths if path.name in SAVED_MODEL_FILES}
    models = {str(folder): [str(folder), str(file)] for folder, file in saved.items()}
    models |= {str(path): [str(path)] for path in paths if path.suffix in FILES}
    return sorted(
        (name, names)
        for name, names in models.items()
        if saved.keys().isdisjoint(PurePosixPath(name).parents)
    )


def _models_of_list(path: str, allow_chained: bool) -> list[Task]:
    """Return the models of a list, a line each; names are mirrored from the folder they share."""
    try:
        text = (stores.read_small if is_remote(path) else read_whole)(path).decode()
    except OSError as error:
        is_recipe = path.partition("(")[0] in RECIPES and isinstance(error, FileNotFoundError)
        more = f"; {SEVERAL}" if is_recipe else ""
        raise FleetError(f"cannot read the list {path}: {error.strerror or error}{more}") from error
    except UnicodeDecodeError as error:
        raise FleetError(f"the list {path} is not UTF-8 (byte {error.start})") from None
    lines = list(filter(None, map(str.strip, text.splitlines())))
    if not lines:
        raise FleetError(f"the list {path} names no models")
    for line in lines:
        if len(line) > LONGEST_NAME:
            raise FleetError(f"the list {path} holds a line of more than {LONGEST_NAME:,} letters")
        if reason := _why_not_listed(path, line):
            raise FleetError(f"the list {path} holds {one_line(line)}{reason}")
    stores.refuse_chained(lines, allow_chained, f"the list {path}: ")
    folders = [_folder(line) for line in lines if not is_search(line)]
    alike = [len(set(parts)) == 1 for parts in zip(*folders, strict=False)]
    shared = [*alike, False].index(False)
    models: list[Task] = []
    for line in lines:
        if is_search(line):
            models += _models_below(line)
        else:
            relative = "/".join([*_folder(line)[shared:], name_of(line)])
            models.append(Task(line, relative=relative))
    return models


def _why_not_listed(path: str, line: str) -> str:
    """Return why a line is not a path that this list may name; nothing where it is one."""
    if line.startswith("@") or line == "-" or "\0" in line:
        return "; a list holds paths, folders and globs"
    if line.startswith("~") and not Path(line).exists():
        return ", and only a shell knows what ~ is; write the whole path"
    own_disk = tuple(f"{scheme}://" for scheme in OWN_DISK)
    is_here = not is_remote(line) or (line.startswith(own_disk) and not path.startswith(own_disk))
    if is_remote(path) and is_here:
        return ", a path of this machine; a list that lies elsewhere names what lies elsewhere"
    return ""


def _folder(name: str) -> list[str]:
    """Return the folders that a model lies in."""
    path = name if is_remote(name) else os.path.normpath(name)
    parts = path.rstrip("/").split("/")
    if parts[-1] in SAVED_MODEL_FILES:
        parts.pop()
    return [part for part in parts[:-1] if part != ".."]


def name_of(model: str) -> str:
    """Return what a model is called in a folder of them."""
    path = model_path(model)
    name = path.rstrip("/").rpartition("/")[2]
    return name if is_remote(model) or name not in {"", ".", ".."} else Path(path).resolve().name


# Where each goes, and what is refused before any is touched.


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
    _refuse_inputs(written, rules)
    if out is not None and not folder:
        refuse_suffix(out)
    return tasks


def local_outputs(tasks: Sequence[Task]) -> list[str]:
    """Return where on this machine tasks would leave something half-written."""
    outputs = [task.output for task in tasks]
    return [output for output in outputs if output not in ("", "-") and not is_remote(output)]


def _patched_beside(task: Task) -> str:
    if task.searched:
        raise OutputError("say where the models that are found go when patched: -o DIR")
    if is_remote(task.model):
        raise OutputError(f"{task.model}: say where the output of a remote model goes, by -o")
    path = model_path(task.model)
    return default_output(path, Path(path).is_dir())


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
    trees = {task.tree for task in models if task.tree}
    places = {tree: f"{place(tree).rstrip('/')}/" for tree in trees}
    at = f"{place(out)}/"
    for task in models:
        tree = places.get(task.tree)
        if tree is None or not at.startswith(tree) or (at == tree and "**" not in task.pattern):
            continue
        output = [*at[len(tree) :].split("/")[:-1], *task.relative.split("/")]
        if is_meant(task.pattern, output):
            raise OutputError(
                f"{out} lies in {task.tree}, which is searched for models: the next run would take "
                f"the outputs for models; name a folder elsewhere"
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


def _refuse_inputs(tasks: Sequence[Task], rules: str) -> None:
    """Raise OutputError where an output is a model or the rules file, holds one, or lies in one."""
    inputs = Inputs(path for path in (rules, *(task.model for task in tasks)) if path != "-")
    for task in tasks:
        if (met := inputs.met_by(task.output)) is not None:
            named = {task.model: "the model itself", rules: "the rules file"}
            raise never_written(task.output, met[0], named.get(met[1], "another of the models"))
