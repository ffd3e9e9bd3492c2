"""Where an output goes: what its path or URL leads to, and whether it may be replaced.

An output that graphpatch wrote is replaced: a patched model carries a record on the nodes that
rules changed, and other files carry a mark with a checksum, which no longer fits once they are
edited. Anything else that holds something is replaced only by `--force`.
"""

from __future__ import annotations

import errno
import filecmp
import io
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import xxhash

from graphpatch.errors import FleetError, GraphpatchError, OutputError
from graphpatch.graph.node import PROVENANCE
from graphpatch.shown import short

# What a name ends in that is that of a file, and not of a SavedModel's folder.
FILES = frozenset({".pb", ".pbtxt", ".meta"})

# What there is to say of a .pb, and not of the .meta that it may be written as.
NO_CONTEXTS = (
    "v1 loops or branches: tf.gradients needs their contexts, which a .pb cannot hold; write "
    "a .meta (-o NAME.meta), or load it with graphpatch.import_model"
)


@dataclass(frozen=True, slots=True)
class Export:
    """The tensors that a SavedModel takes and gives, as `x`, `x:0` or `split:1`.

    In the SavedModel they have the dtypes and shapes that they have in the graph.

    Example:
        >>> export = graphpatch.Export(("x",), ("features",))
        >>> graphpatch.apply("rules.json", "model.pb", export=export).save("exported")
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def default_output(path: str, is_folder: bool) -> str:
    """Return where a patched model goes when nobody says: `MODEL.patched.pb` beside the model."""
    if path == "-":
        return "-"
    model = Path(path)
    if is_folder:
        named = model if model.name not in {"", ".."} else model.resolve()
        return str(named.with_name(f"{named.name}.patched"))
    return str(model.with_name(f"{model.stem}.patched{model.suffix}"))


SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")
# What TensorFlow puts at the top of a SavedModel's folder.
SAVED_MODEL_PARTS = frozenset(
    (
        *SAVED_MODEL_FILES,
        "fingerprint.pb",
        "keras_metadata.pb",
        "variables",
        "assets",
        "assets.extra",
    )
)
OWN_DISK = ("file", "local")  # schemes of URLs that lead to files of this machine
# The attr that holds the record, as a key of the map of attrs: in a message, and in text.
RECORDS = (b"\n" + bytes([len(PROVENANCE)]) + PROVENANCE, b'key: "%b"' % PROVENANCE)
BLOCK = 1 << 20  # bytes of a file that are searched at once
Opener = Callable[[str], IO[bytes]]

MARK = "by graphpatch; checksum "
_MARK = re.compile(re.escape(MARK).encode() + rb"([0-9a-f]{16})")
NO_CHECKSUM = "0" * 16
JSON_MARK = {"written": MARK + NO_CHECKSUM}
"""The mark as a key of a JSON object, the last one."""
PAGE_MARK = f"<!-- written {MARK}{NO_CHECKSUM} -->"
"""The mark at the end of a page."""


def is_remote(path: str) -> bool:
    """Return whether a path is a URL, and not a file's name on this machine."""
    return "://" in path


def opened_store(path: str) -> tuple[Any, str]:
    """Return the store that a URL names, and the path in it. Raises FleetError for no store."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise FleetError(f"{path}: remote paths need fsspec: pip install fsspec") from None
    with errors_as(f"cannot reach {path}", FleetError):
        store, inside = url_to_fs(path)
    return store, inside


@contextmanager
def errors_as(what: str, kind: type[GraphpatchError]) -> Iterator[None]:
    """Raise this kind of error for what a store refuses, whatever its library raises."""
    try:
        yield
    except GraphpatchError:
        raise
    except Exception as error:  # each store's library has errors of its own
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise kind(f"{what}: {said}") from error


@contextmanager
def reported(path: Path | str) -> Iterator[None]:
    """Raise OutputError for what the system refuses; that a reader went away is not an error."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        missing = error.errno == errno.ENOENT and not Path(path).parent.exists()
        more = f"; there is no folder {Path(path).parent}" if missing else ""
        raise OutputError(f"cannot write {path}: {error.strerror or error}{more}") from error


def place(path: str | Path) -> str:
    """Return what a path or URL leads to: a real path, or a store and a path in it.

    Of a file inside another file (`zip://m.pb::file:///all.zip`) that other file comes first.
    """
    *inner, outer = str(path).split("::") if is_remote(str(path)) else [str(path)]
    location = _place(outer)
    for link in reversed(inner):
        scheme, sign, name = link.partition("://")
        if sign and scheme == "dir":
            location = posixpath.join(location, name)
        elif sign:  # a cache has no path of its own
            location += f"::{name}"
    return location


def _place(path: str) -> str:
    scheme, sign, rest = path.partition("://")
    if not sign:
        return os.path.realpath(path)
    if scheme in OWN_DISK:
        return os.path.realpath(os.path.expanduser(rest or "/"))  # noqa: PTH111  (as fsspec does)
    try:
        from fsspec import get_filesystem_class

        kind = get_filesystem_class(scheme)
        names = (kind.protocol,) if isinstance(kind.protocol, str) else kind.protocol
        scheme, rest = names[0], kind._strip_protocol(path)
    except (ImportError, ValueError):  # whoever opens it says so
        pass
    return f"{scheme}://{posixpath.normpath(rest.strip('/'))}"


def local_path(path: str | Path) -> Path | None:
    """Return the path on this machine that a path or URL leads to, or None for another place."""
    location = str(path) if not is_remote(str(path)) else place(path)
    return None if is_remote(location) or "::" in location else Path(location)


def identity(path: str | Path) -> str | tuple[int, int]:
    """Return a key that is equal for two names of one file, links of both kinds included."""
    local = local_path(path)
    try:
        status = None if local is None else local.stat()
    except (OSError, ValueError):
        status = None
    return place(path) if status is None else (status.st_dev, status.st_ino)


def model_path(model: str) -> str:
    """Return the path of a model: the folder, where a SavedModel is named by its message."""
    head, _, name = model.rstrip("/").rpartition("/")
    return (head or ".") if name in SAVED_MODEL_FILES else model


class Inputs:
    """Files and folders that are read: no output may be one, hold one, or lie in one."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.by_identity = dict[str | tuple[int, int], str]()
        self.below, self.above = dict[str, str](), dict[str, str]()  # by the start of a place
        for path in paths:
            whole, location = model_path(path), place(path)
            local = local_path(whole)
            self.by_identity.setdefault(identity(path), path)
            self.below[f"{location}::"] = path
            if local is None or local.is_dir():
                self.below[f"{place(whole).rstrip('/')}/"] = path
            self.above.update(dict.fromkeys(_starts(location), path))

    def met_by(self, output: str | Path) -> tuple[str, str] | None:
        """Return how an output meets an input ("is", "holds" or "lies in"), and which."""
        location = place(output)
        met = [
            ("is", self.by_identity.get(identity(output))),
            *(("holds", self.above.get(f"{location.rstrip('/')}{sign}")) for sign in ("/", "::")),
            *(("lies in", self.below.get(start)) for start in _starts(location)),
        ]
        return next(((how, path) for how, path in met if path is not None), None)


def _starts(location: str) -> list[str]:
    """Return the folders that a place lies in, and the files that it is inside of."""
    return [location[: sign.end()] for sign in re.finditer("::|/", location)]


def refuse_inputs(output: str | Path, inputs: Mapping[str, str | Path | None]) -> None:
    """Raise OutputError where an output is a file or folder that is read, holds it or lies in it.

    `inputs` has the path of each, by what it is ("the rules file"). `-` is not a file.
    """
    named = {str(read): what for what, read in inputs.items() if read is not None}
    named.pop("-", None)
    if str(output) != "-" and (met := Inputs(named).met_by(output)) is not None:
        raise never_written(output, met[0], named[met[1]])


def never_written(output: str | Path, how: str, what: str) -> OutputError:
    """Return the error that an output meets an input, as `Inputs` tells how."""
    if how == "lies in":
        return OutputError(f"{output} lies in a model's folder, which is never changed")
    which = "a model" if "model" in what else "it"
    return OutputError(f"{output} {how} {what}; {which} is never written over")


def replaces(
    path: str,
    force: bool = False,
    original: Path | None = None,
    is_marked: bool = False,
    parts: Callable[[str], bool] = SAVED_MODEL_PARTS.__contains__,
    label: str = "",
) -> bool:
    """Return whether something is there that an output at `path` replaces.

    A copy of the `original` is nothing to lose. `is_marked` is for outputs that are not models;
    `parts` are the names that a folder written by graphpatch may have at its top. `label` is what
    messages call the output. Raises OutputError where something is there that graphpatch did not
    write, unless `force` allows to replace anything.
    """
    if path == "-":
        return False
    with reported(label or path):
        opened, message, names = _present(path)
        if force or not (message or names):
            return bool(message or names)
        is_folder = original is not None and original.is_dir()
        tops = {entry.name for entry in original.iterdir()} if original and is_folder else set()
        strange = [name for name in names if name not in tops and not parts(name)]
        if strange or not message:
            what = f"holds what graphpatch did not write: {short(strange or names)}"
        elif _is_copy(path, original) or _is_ours(opened, message, is_marked):
            return True
        elif is_marked:
            what = "exists, and graphpatch did not write it, or it was edited since"
        else:
            what = "exists, and is not a model that graphpatch patched"
    raise OutputError(f"{label or path} {what}; name another output, or replace it with --force")


def _present(path: str) -> tuple[Opener, str, list[str]]:
    """Return what is there: how files are opened, a file or a folder's message, a folder's names.

    There is neither of nothing, of an empty file or folder, and of a device.
    """
    local = local_path(path)
    opened: Opener = io.FileIO
    if local is not None:
        inside, names = str(local), [e.name for e in local.iterdir()] if local.is_dir() else []
        has_bytes = local.is_file() and local.stat().st_size > 0
    else:
        store, inside = opened_store(path)
        opened, inside = store.open, inside.rstrip("/")
        with errors_as(f"cannot read {path}", OutputError):
            is_folder = store.isdir(inside)
            paths = store.ls(inside, detail=False) if is_folder else []
            # The size is None where a store does not tell it.
            has_bytes = not is_folder and store.exists(inside) and store.size(inside) != 0
        names = [entry.rstrip("/").rpartition("/")[2] for entry in paths]
    messages = [name for name in (*SAVED_MODEL_FILES, "parts.json") if name in names]
    message = f"{inside}/{messages[0]}" if messages else inside if has_bytes else ""
    return opened, message, sorted(names)


def _is_ours(opened: Opener, path: str, is_marked: bool) -> bool:
    """Return whether a file carries graphpatch's mark, or the record of a patched model."""
    with opened(path) as file:
        if is_marked:
            return is_unedited(file.read())
        before = b""
        while block := file.read(BLOCK):
            if any(record in before + block for record in RECORDS):
                return True
            before = block[-max(map(len, RECORDS)) :]
    return False


def _is_copy(path: str, original: str | Path | None) -> bool:
    local = local_path(path)
    if local is None or original is None or not (local.is_file() and Path(original).is_file()):
        return False
    return filecmp.cmp(local, original, shallow=False)


def marked(data: bytes) -> bytes:
    """Return data with its checksum in its mark, where NO_CHECKSUM stands."""
    checksum = xxhash.xxh3_64(data).hexdigest()
    before, mark, after = data.rpartition(f"{MARK}{NO_CHECKSUM}".encode())
    return before + mark.replace(NO_CHECKSUM.encode(), checksum.encode()) + after


def is_unedited(data: bytes) -> bool:
    """Return whether data carries the mark, and is as it was when it got it."""
    marks = list(_MARK.finditer(data))
    if not marks:
        return False
    mark = marks[-1]
    plain = data[: mark.start(1)] + NO_CHECKSUM.encode() + data[mark.end(1) :]
    return xxhash.xxh3_64(plain).hexdigest().encode() == mark[1]
