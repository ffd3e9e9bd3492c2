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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import xxhash

from graphpatch.errors import FleetError, GraphpatchError, OutputError
from graphpatch.graph.node import PROVENANCE
from graphpatch.table import short

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
    return "-" if path == "-" else patched_name(Path(path), is_folder)


def patched_name(path: Path, is_folder: bool) -> str:
    """Return the name beside a model that its patched one has."""
    if is_folder:
        named = path if path.name not in {"", ".."} else path.resolve()
        return str(named.with_name(f"{named.name}.patched"))
    return str(path.with_name(f"{path.stem}.patched{path.suffix}"))


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


def is_same(a: str | Path, b: str | Path) -> bool:
    """Return whether two paths or URLs lead to one file, or one to a file inside the other."""
    places = sorted((place(a), place(b)), key=len)
    return identity(a) == identity(b) or places[1].startswith(f"{places[0]}::")


def refuse_inputs(output: str | Path, inputs: Mapping[str, str | Path | None]) -> None:
    """Raise OutputError where an output would be written over a file that is read.

    `inputs` has the path of each, by what it is ("the rules file"). `-` is not a file.
    """
    for what, read in inputs.items():
        if read is not None and "-" not in (str(output), str(read)) and is_same(output, read):
            raise OutputError(f"{output} is {what}; it is never written over")


@dataclass(frozen=True)
class Destination:
    """An output, and what it may replace.

    `force` allows to replace anything. `is_marked` is for outputs that are not models; `parts` are
    the names that a folder written by graphpatch may have at its top. `label` is what messages call
    the output, where `path` is another spelling of it.
    """

    path: str
    force: bool = False
    is_marked: bool = False
    parts: Callable[[str], bool] = SAVED_MODEL_PARTS.__contains__
    label: str = ""

    def replaces(self, original: str | Path | None = None) -> bool:
        """Return whether something is there that the output replaces.

        A copy of the `original` is nothing to lose. Raises OutputError where something is there
        that graphpatch did not write, and nothing allows to replace it.
        """
        if self.path == "-":
            return False
        with reported(self.label or self.path):
            opened, message, names = _present(self.path)
            if not message and not names:
                return False
            if not self.force:
                self._refuse(opened, message, names, original)
            return True

    def _refuse(
        self, opened: Opener, message: str, names: list[str], original: str | Path | None
    ) -> None:
        """Raise OutputError for what graphpatch did not write."""
        is_folder = original is not None and Path(original).is_dir()
        tops = {entry.name for entry in Path(original or "").iterdir()} if is_folder else set()
        strange = [name for name in names if name not in tops and not self.parts(name)]
        if strange or not message:
            what = f"holds what graphpatch did not write: {short(strange or names)}"
        elif _is_copy(self.path, original) or _is_ours(opened, message, self.is_marked):
            return
        elif self.is_marked:
            what = "exists, and graphpatch did not write it, or it was edited since"
        else:
            what = "exists, and is not a model that graphpatch patched"
        raise OutputError(
            f"{self.label or self.path} {what}; name another output, or replace it with --force"
        )


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
