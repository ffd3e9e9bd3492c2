"""The files of a SavedModel's folder: what lies in it, and not what a link in it leads to."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from graphpatch.errors import ModelError


def regular_files(folder: Path) -> Iterator[Path]:
    """The files below a folder, by name.

    A link counts as the file or folder that it leads to within the folder. Raises ModelError for
    one that leads out of it, and for pipes and devices, which have no end.
    """
    yield from _files_below(folder, Path(os.path.realpath(folder)), ())


def refuse_odd_files(folder: Path) -> None:
    """Raise ModelError for what `regular_files` does not follow, before others read the folder."""
    for _ in regular_files(folder):
        pass


def _files_below(folder: Path, root: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    real = Path(os.path.realpath(folder))
    if real in above:
        raise ModelError(f"{folder} is a link to a folder that holds it")
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            _refuse_outside(path, root)
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            yield from _files_below(path, root, (*above, real))
        elif stat.S_ISREG(mode):
            yield path
        else:
            raise ModelError(f"{path} is a pipe, a socket or a device; a model has files alone")


def _refuse_outside(link: Path, root: Path) -> None:
    target = Path(os.path.realpath(link))
    if root == target:
        raise ModelError(f"{link} is a link to a folder that holds it")
    if root not in target.parents:
        raise ModelError(
            f"{link} is a link that leads out of the model's folder, to {target}; it is not "
            f"followed. If you trust it, copy the folder with the files themselves (cp -rL)"
        )
    if not target.exists():
        raise ModelError(f"{link} is a link to {target}, which is not there")
