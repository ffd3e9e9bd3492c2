"""Models, rules and outputs that lie elsewhere (`s3://`, `gs://`, `hdfs://`), through fsspec.

A model is fetched whole, as its nodes are read where they lie; what is written appears whole or not
at all, as far as the store allows.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

from graphpatch.errors import FleetError, ModelError, OutputError
from graphpatch.formats.destination import SAVED_MODEL_FILES, errors_as, is_remote, opened_store
from graphpatch.formats.output import unfinished_name
from graphpatch.mapped import MOST_READ

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# Stores in which an object appears when its upload is complete; elsewhere a new name is renamed.
WHOLE_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss"}
PIECE = 1 << 20  # bytes that are copied at once
MOST_UNPACKED = 8 << 30  # bytes of a model that lies inside another file


def refuse_chained(paths: Iterable[str], allow: bool, where: str = "") -> None:
    """Raise FleetError for a store in a store (`zip://in.pb::s3://all.zip`) nobody asked for."""
    for path in () if allow else paths:
        if is_remote(path) and "::" in path:
            raise FleetError(
                f"{where}{path} names a file inside another one, by `::`; if you trust "
                f"that file, --allow-chained-urls opens it"
            )


def inner_path(name: str, of: str) -> str:
    """Return the name that a store or archive has for something in a folder, if it stays in there.

    Raises FleetError for a name that leads out of the folder, or that would name another store.
    """
    odd = any(part in {"", ".", ".."} for part in name.split("/"))
    odd |= any(sign in name for sign in ("\\", "\0", "::", "://"))
    if odd or PureWindowsPath(name).drive:
        raise FleetError(f"{of} holds the name {name!r}, which does not stay in its folder")
    return name


def is_plain_folder(path: str) -> bool:
    """Return whether this is a folder that models lie in; a SavedModel's is a model itself."""
    if not is_remote(path):
        return Path(path).is_dir() and not any(Path(path).glob("saved_model.*pb*"))
    store, inside = opened_store(path)
    with errors_as(f"cannot read {path}", ModelError):
        return bool(store.isdir(inside)) and not any(
            store.exists(f"{inside.rstrip('/')}/{name}") for name in SAVED_MODEL_FILES
        )


def files(base: str) -> Iterator[str]:
    """Yield the files below a folder, without hidden ones, by their paths in it."""
    store, inside = opened_store(base)
    with errors_as(f"cannot read {base}", ModelError):
        names = store.find(inside)
    for name in names:
        if not name.endswith("/") and name != inside.rstrip("/"):  # how stores mark a folder
            relative = _relative_path(name, inside.rstrip("/"), base)
            if not any(part.startswith(".") for part in relative.split("/")):
                yield relative


def _relative_path(path: str, root: str, of: str) -> str:
    """Return the path from a folder of a store to what the store has below it."""
    if root and not path.startswith(f"{root}/"):
        raise FleetError(f"{of} holds the name {path!r}, which does not stay in its folder")
    return inner_path(path[len(root) :].lstrip("/"), of)


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
    if not is_remote(path):
        return Path(path).exists()
    store, inside = opened_store(path)
    with errors_as(f"cannot read {path}", FleetError):
        return bool(store.exists(inside))


@contextlib.contextmanager
def fetched(path: str) -> Iterator[Path]:
    """Give a model on this machine: itself, or a copy of it with all that belongs to it.

    Raises ModelError where it cannot be read, or unpacks from another file to more than
    MOST_UNPACKED bytes.
    """
    if not is_remote(path):
        yield Path(path)
        return
    from tempfile import TemporaryDirectory  # here, as a file at a path needs none

    store, inside = opened_store(path)
    inside = inside.rstrip("/")
    if inside.rpartition("/")[2] in SAVED_MODEL_FILES:
        inside = inside.rpartition("/")[0]
    room = MOST_UNPACKED if "::" in path else math.inf
    with TemporaryDirectory(prefix="graphpatch-") as folder:
        target = Path(folder, inner_path(inside.rpartition("/")[2] or "model", path))
        with errors_as(f"cannot read {path}", ModelError):
            copies = {inside: target}
            if store.isdir(inside):
                names = [name for name in store.find(inside) if not name.endswith("/")]
                copies = {name: target / _relative_path(name, inside, path) for name in names}
            for name, local in copies.items():
                local.parent.mkdir(parents=True, exist_ok=True)
                room -= _copy(store, name, local, room)
                if room < 0:
                    raise ModelError(
                        f"{path} unpacks to more than {MOST_UNPACKED >> 30} GB; if you trust "
                        f"it, unpack it first and give the path of what is in it"
                    )
        yield target


def _copy(store: AbstractFileSystem, name: str, local: Path, room: float) -> int:
    """Copy a file here, and return its bytes: all, or a piece more than there is room for."""
    count = 0  # `get_file` of fsspec before 2024 makes a folder in the current one, too
    with store.open(name, "rb") as source, local.open("wb") as target:
        while count <= room and (piece := source.read(PIECE)):
            count += target.write(piece)
    return count


@contextlib.contextmanager
def delivered(path: str) -> Iterator[Path]:
    """Give a path to write to; what is for a store is put to its place there at the end."""
    if not is_remote(path):
        yield Path(path)
        return
    from tempfile import TemporaryDirectory  # here, as a file at a path needs none

    store, inside = opened_store(path)
    inside = inside.rstrip("/")
    with TemporaryDirectory(prefix="graphpatch-") as folder:
        local = Path(folder, path.rstrip("/").rpartition("/")[2])
        yield local
        with errors_as(f"cannot write {path}", OutputError):
            (_put_folder if local.is_dir() else _put)(store, local, inside)


def _put(store: AbstractFileSystem, local: Path, inside: str) -> None:
    """Put a file to its place, where it appears whole."""
    protocols: Any = store.protocol
    protocols = (protocols,) if isinstance(protocols, str) else protocols
    if not WHOLE_OBJECT_STORES.isdisjoint(protocols):
        store.put_file(str(local), inside)
        return
    folder, _, name = inside.rpartition("/")
    store.makedirs(folder, exist_ok=True)
    temporary = f"{folder}/{unfinished_name(Path(name), 'tmp').name}"
    try:
        store.put_file(str(local), temporary)
        store.mv(temporary, inside)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to tell
            store.rm_file(temporary)
        raise


def _put_folder(store: AbstractFileSystem, local: Path, inside: str) -> None:
    """Put a folder; its message comes last and goes first: without it, it is not a model."""
    paths = [path for path in sorted(local.rglob("*")) if path.is_file()]
    paths.sort(key=lambda path: path.parent == local and path.name in SAVED_MODEL_FILES)
    if store.exists(inside):
        for name in SAVED_MODEL_FILES:
            if store.exists(f"{inside}/{name}"):
                store.rm_file(f"{inside}/{name}")
        store.rm(inside, recursive=True)
    for path in paths:
        _put(store, path, f"{inside}/{path.relative_to(local).as_posix()}")
