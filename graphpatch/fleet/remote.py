"""Models, rules and outputs that lie elsewhere (`s3://`, `gs://`, `hdfs://`), through fsspec.

A model is fetched whole, as its nodes are read where they lie; what is written appears whole or not
at all, as far as the store allows.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

from graphpatch.errors import FleetError, ModelError, OutputError
from graphpatch.formats.destination import errors_as as errors_as
from graphpatch.formats.destination import is_remote as is_remote
from graphpatch.formats.destination import opened_store as opened_store
from graphpatch.formats.load import SAVED_MODEL_FILES
from graphpatch.formats.output import unfinished_name
from graphpatch.mapped import MOST_READ

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# Stores in which an object appears when its upload is complete; elsewhere a new name is renamed.
WHOLE_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss"}
PIECE = 1 << 20  # bytes that are copied at once
MOST_UNPACKED = 8 << 30  # bytes of a model that lies inside another file
OWN_MEMORY = "memory"  # each process has another one


def is_own_memory(path: str) -> bool:
    """Return whether only this process sees what lies there."""
    return path.startswith(f"{OWN_MEMORY}://")


def is_own_disk(path: str) -> bool:
    """Return whether a URL names a file of this machine."""
    return path.startswith(("file://", "local://"))


def is_chained(path: str) -> bool:
    """Return whether a path names a store in a store: `zip://in.pb::s3://bucket/all.zip`."""
    return is_remote(path) and "::" in path


def refuse_chained(paths: Iterable[str], allow: bool, where: str = "") -> None:
    """Raise FleetError for a chained path that nobody asked for."""
    chained = [] if allow else [path for path in paths if is_chained(path)]
    if chained:
        raise FleetError(
            f"{where}{chained[0]} names a file inside another one, by `::`; if you trust "
            f"that file, --allow-chained-urls opens it"
        )


def inner_path(name: str, of: str) -> str:
    """Return the name that a store or archive has for something in a folder, if it stays in there.

    Raises FleetError for a name that leads out of the folder, or that would name another store.
    """
    parts = name.split("/")
    odd = any(part in {"", ".", ".."} for part in parts) or "\\" in name or "\0" in name
    if odd or "::" in name or "://" in name or PureWindowsPath(name).drive:
        raise FleetError(f"{of} holds the name {name!r}, which does not stay in its folder")
    return name


def is_plain_folder(path: str) -> bool:
    """Return a folder that holds models; one with a SavedModel in it is a model itself."""
    store, inside = opened_store(path)
    with errors_as(f"cannot read {path}", ModelError):
        return bool(store.isdir(inside)) and not _holds_saved_model(store, inside)


def _holds_saved_model(store: AbstractFileSystem, inside: str) -> bool:
    return any(store.exists(f"{inside.rstrip('/')}/{name}") for name in SAVED_MODEL_FILES)


def files(base: str, descend: Callable[[tuple[str, ...]], bool]) -> Iterator[str]:
    """Yield the files below a folder, without hidden ones, by their paths in it."""
    store, inside = opened_store(base)
    root = inside.rstrip("/")
    with errors_as(f"cannot read {base}", ModelError):
        names = store.find(inside)
    for path in names:
        if path.endswith("/") or path == root:  # how some stores mark a folder
            continue
        parts = _relative_path(path, root, base).split("/")
        if not any(part.startswith(".") for part in parts) and all(
            descend(tuple(parts[:end])) for end in range(1, len(parts))
        ):
            yield "/".join(parts)


def read_small(path: str) -> bytes:
    """Return a small file, whole. Raises FleetError where it cannot be read, or is not small."""
    store, inside = opened_store(path)
    with errors_as(f"cannot read {path}", FleetError), store.open(inside, "rb") as source:
        data: bytes = source.read(MOST_READ + 1)
    if len(data) > MOST_READ:
        raise FleetError(
            f"{path} has more than {MOST_READ >> 20} MB, which is no file of this kind"
        )
    return data


def exists(path: str) -> bool:
    """Return whether there is a file or folder."""
    store, inside = opened_store(path)
    with errors_as(f"cannot read {path}", FleetError):
        return bool(store.exists(inside))


def local_folder() -> AbstractContextManager[str]:
    """Return a folder for copies of what lies elsewhere; gone at the end."""
    import tempfile  # here, as local files need none of it

    return tempfile.TemporaryDirectory(prefix="graphpatch-")


def fetch(path: str, folder: Path) -> Path:
    """Bring a model, a SavedModel with all that belongs to it, into a folder of this machine.

    Raises ModelError where it cannot be read, or unpacks from another file to more than
    MOST_UNPACKED bytes.
    """
    store, inside = opened_store(path)
    inside = inside.rstrip("/")
    if inside.rpartition("/")[2] in SAVED_MODEL_FILES:
        inside = inside.rpartition("/")[0]
    target = folder / inner_path(inside.rpartition("/")[2] or "model", path)
    copy = _Copying(store, path, MOST_UNPACKED if is_chained(path) else math.inf)
    with errors_as(f"cannot read {path}", ModelError):
        if not store.isdir(inside):
            copy.file(inside, target)
            return target
        for name in store.find(inside):
            if name.endswith("/"):
                continue
            local = target / _relative_path(name, inside, path)
            local.parent.mkdir(parents=True, exist_ok=True)
            copy.file(name, local)
    return target


@dataclass
class _Copying:
    """Files brought from a store, of which so many bytes are `left`."""

    store: Any
    path: str
    left: float

    def file(self, inside: str, local: Path) -> None:
        """Bring one. `get_file` of fsspec before 2024 makes a folder in the current one, too."""
        with self.store.open(inside, "rb") as source, local.open("wb") as target:
            while piece := source.read(PIECE):
                self.left -= len(piece)
                if self.left < 0:
                    raise ModelError(
                        f"{self.path} unpacks to more than {MOST_UNPACKED >> 30} GB; if you trust "
                        f"it, unpack it first and give the path of what is in it"
                    )
                target.write(piece)


def _relative_path(path: str, root: str, of: str) -> str:
    """Return what a store found below a folder of it, as a path from there."""
    if root and not path.startswith(f"{root}/"):
        raise FleetError(f"{of} holds the name {path!r}, which does not stay in its folder")
    return inner_path(path[len(root) :].lstrip("/"), of)


def deliver(local: Path, path: str) -> None:
    """Put a file, or a SavedModel's folder, to its place in the store, over what was there."""
    store, inside = opened_store(path)
    inside = inside.rstrip("/")
    with errors_as(f"cannot write {path}", OutputError):
        if local.is_dir():
            _deliver_folder(store, local, inside)
        else:
            _deliver_file(store, local, inside)


def write_small(path: str, data: bytes) -> None:
    """Write a small file, whole."""
    store, inside = opened_store(path)
    with errors_as(f"cannot write {path}", OutputError):
        if _writes_whole_objects(store):
            store.pipe_file(inside, data)
        else:
            with _written_then_renamed(store, inside) as new:
                store.pipe_file(new, data)


def _writes_whole_objects(store: Any) -> bool:
    protocols = (store.protocol,) if isinstance(store.protocol, str) else store.protocol
    return not WHOLE_OBJECT_STORES.isdisjoint(protocols)


def _deliver_file(store: AbstractFileSystem, local: Path, inside: str) -> None:
    if _writes_whole_objects(store):
        store.put_file(str(local), inside)
        return
    with _written_then_renamed(store, inside) as new:
        store.put_file(str(local), new)


def _deliver_folder(store: AbstractFileSystem, local: Path, inside: str) -> None:
    """The message comes last and goes first: without it a folder is not a model."""
    paths = [path for path in sorted(local.rglob("*")) if path.is_file()]
    paths.sort(key=lambda path: path.parent == local and path.name in SAVED_MODEL_FILES)
    if store.exists(inside):
        for name in SAVED_MODEL_FILES:
            if store.exists(f"{inside}/{name}"):
                store.rm_file(f"{inside}/{name}")
        store.rm(inside, recursive=True)
    for path in paths:
        _deliver_file(store, path, f"{inside}/{path.relative_to(local).as_posix()}")


@contextlib.contextmanager
def _written_then_renamed(store: AbstractFileSystem, inside: str) -> Iterator[str]:
    """Return a name that is written to, and becomes the true one when all is there."""
    folder, _, name = inside.rpartition("/")
    store.makedirs(folder, exist_ok=True)
    new = f"{folder}/{unfinished_name(Path(name), 'tmp').name}"
    try:
        yield new
        store.mv(new, inside)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to tell
            store.rm_file(new)
        raise
