"""Files and folders that appear whole or not at all, also in the place of others.

`.NAME.TOKEN.tmp` lies beside NAME while it is written, and is locked by its writer. A process that
dies lets its locks go, whatever killed it: what can be locked belongs to nobody, and is swept. A
process number would not tell: that of a dead one is given to another.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from graphpatch.errors import CHANGED, ModelError
from graphpatch.formats.destination import reported
from graphpatch.graph.graph import Progress
from graphpatch.graph.wire import Piece, Span, piece_bytes, refuse_changed, size

LOCKS = os.name == "posix"  # elsewhere nothing is swept
LONGEST_NAME = 200  # bytes of a name that are kept; file systems take 255 with what is added
LEFT = re.compile(r"\.(.+)\.([0-9a-f]{12}|\d+)\.(tmp|old)", re.S)
MINE: set[Path] = set()
"""What this process has not finished."""


def unfinished_name(path: Path, ending: str) -> Path:
    """Return a new name beside `path`, that no other process takes."""
    return path.with_name(f".{_stem(path)}.{os.urandom(6).hex()}.{ending}")


def _stem(path: Path) -> str:
    return os.fsdecode(os.fsencode(path.name)[:LONGEST_NAME])


@contextlib.contextmanager
def unfinished(path: Path, is_folder: bool = False) -> Iterator[Path]:
    """Return a new empty file or folder beside `path`, locked; it is gone when this ends."""
    new, lock = _locked(path, is_folder)
    MINE.add(new)
    try:
        yield new
    finally:
        remove(new)
        MINE.discard(new)
        os.close(lock)


def _locked(path: Path, is_folder: bool) -> tuple[Path, int]:
    while True:
        new = unfinished_name(path, "tmp")
        if is_folder:
            new.mkdir()
        else:
            os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        try:
            lock = os.open(new if LOCKS else os.devnull, os.O_RDONLY)
            if not LOCKS or _is_locked(new, lock):
                return new, lock
        except BaseException:  # no more files can be opened, say: then this one is nobody's
            remove(new)
            raise
        os.close(lock)


def _is_locked(path: Path, descriptor: int) -> bool:
    """Lock it; whether it is still there then, and another process has not taken it away."""
    import fcntl

    with contextlib.suppress(OSError):  # a file system without locks: nothing is swept there
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor))


def sweep(targets: Iterable[str | Path]) -> None:
    """Take away what processes that are dead left beside these; an old folder goes back."""
    stems = defaultdict[Path, dict[str, Path]](dict)
    for target in map(Path, targets):
        stems[target.parent][_stem(target)] = target
    for folder, known in stems.items() if LOCKS else ():
        with contextlib.suppress(OSError):  # no folder, or none that can be listed
            for entry in os.scandir(folder):
                unfinished = LEFT.fullmatch(entry.name) if entry.name.startswith(".") else None
                if unfinished is not None and unfinished[1] in known and not entry.is_symlink():
                    _end_unfinished(Path(entry.path), known[unfinished[1]], unfinished[3])


def _end_unfinished(unfinished: Path, path: Path, kind: str) -> None:
    import fcntl

    with contextlib.suppress(OSError):  # in use, or not ours to take away: it is in nobody's way
        descriptor = os.open(unfinished, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if kind == "old" and not path.exists():
                unfinished.rename(path)
            else:
                remove(unfinished)
        finally:
            os.close(descriptor)


def remove_mine() -> None:
    """Take away what this process has not finished."""
    for path in list(MINE):
        remove(path)


def remove(path: Path) -> None:
    """Take a file or folder away, where there is one."""
    if path.is_dir() and not path.is_symlink():
        import shutil  # here, as single files need none of it

        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def regular_files(folder: str | Path) -> Iterator[Path]:
    """Yield the files below a folder, by name, and the folders in which there is nothing.

    A link counts as the file or folder that it leads to within the folder. Raises ModelError for
    one that leads out of it, and for pipes and devices, which have no end.
    """
    yield from _files_below(Path(folder), Path(os.path.realpath(folder)), ())


def _files_below(folder: Path, root: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    real = Path(os.path.realpath(folder))
    if real in above:
        raise ModelError(f"{folder} is a link to a folder that holds it")
    paths = sorted(folder.iterdir())
    yield from () if paths else (folder,)
    for path in paths:
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


def exchange(temporary: Path, path: Path) -> None:
    """Put the new folder in its place; one that was there goes once the new one stands.

    Who is killed in the middle leaves the old one or the new one there, whole, or the old one as
    `.NAME.TOKEN.old`, which the next write to this place puts back or takes away.
    """
    if path.exists():
        old = unfinished_name(path, "old")
        try:
            path.rename(old)
            temporary.rename(path)
        except BaseException:  # an interrupt, too
            if old.exists() and not path.exists():
                old.rename(path)
            raise
    else:
        temporary.rename(path)
    sweep([path])


@contextlib.contextmanager
def writing_file(
    path: Path, pieces: Sequence[Piece], progress: Progress | None = None
) -> Iterator[Path]:
    """Write the pieces, and give the file that has them, which is renamed to `path` at the end.

    A command prints there what it wrote: where it cannot, nothing is written, and what was there
    before stays. A link is followed; a pipe or device is written to as it is. Raises OutputError
    where the folder is not there or not writable, or the disk is full.
    """
    with reported(path):
        if path.exists() and not (path.is_file() or path.is_dir()):
            with path.open("wb", buffering=0) as device:
                write_pieces(device.fileno(), pieces, progress)
            with reported("standard output"):
                yield path
            return
        target = _followed(path)
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with unfinished(target) as temporary:
            _write(temporary, pieces, progress)
            _keep_mode(target, temporary)
            with reported("standard output"):
                yield temporary
            temporary.replace(target)


@contextlib.contextmanager
def writing_folder(path: Path, files: Mapping[str, Sequence[Piece] | Path]) -> Iterator[Path]:
    """Write a folder of files by their paths in it, and give it; it goes to `path` at the end.

    A path is copied: what the file holds, and not its mode, as one may be read-only.
    """
    target = _followed(path)
    with reported(path), unfinished(target, is_folder=True) as temporary:
        for name, content in files.items():
            new = temporary / name
            new.parent.mkdir(parents=True, exist_ok=True)
            if not isinstance(content, Path):
                _write(new, content)
            elif content.is_dir():
                new.mkdir()
            else:
                import shutil  # here, as single files need none of it

                shutil.copyfile(content, new)
        _keep_modes(target, temporary)
        with reported("standard output"):
            yield temporary
        exchange(temporary, target)


def write_file(path: Path, pieces: Sequence[Piece], progress: Progress | None = None) -> None:
    """Write the pieces to `path`; until they are all there, what was there before stays."""
    with writing_file(path, pieces, progress):
        pass


def _followed(path: Path) -> Path:
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _keep_mode(old: Path, new: Path) -> None:
    """Give a file that takes the place of another its mode, and its owner where that is allowed."""
    if not old.exists():
        return
    status = old.stat()
    if hasattr(os, "chown"):
        with contextlib.suppress(PermissionError):
            os.chown(new, status.st_uid, status.st_gid)
    new.chmod(status.st_mode & 0o777)


def _keep_modes(old: Path, new: Path) -> None:
    """Keep the modes of a folder and what is in it; what is new has the mode of new files."""
    if old.is_dir():
        for path in [*new.rglob("*"), new]:
            _keep_mode(old / path.relative_to(new), path)


def _write(path: Path, pieces: Sequence[Piece], progress: Progress | None = None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        write_pieces(descriptor, pieces, progress)
    finally:
        os.close(descriptor)


def write_pieces(
    descriptor: int, pieces: Sequence[Piece], progress: Progress | None = None
) -> None:
    """Write the pieces to an open file."""
    done, total = 0, size(pieces)
    for chunk in memory_chunks(pieces):
        while chunk:
            count = os.write(descriptor, chunk)
            chunk, done = chunk[count:], done + count
        if progress is not None:
            progress("writing", done, total)
    refuse_changed({piece.source for piece in pieces if isinstance(piece, Span)})


READ_AT_ONCE = 1 << 20


def memory_chunks(pieces: Sequence[Piece]) -> Iterator[memoryview]:
    """Yield the bytes, some at a time: those of a file are read, so that no page of it is kept.

    Raises ModelError where the file is cut short.
    """
    buffer = memoryview(bytearray(READ_AT_ONCE))
    for piece in pieces:
        if isinstance(piece, bytes) or piece.source.descriptor < 0 or not hasattr(os, "preadv"):
            yield memoryview(piece_bytes(piece))
            continue
        at = piece.start
        while at < piece.end:
            room = buffer[: min(READ_AT_ONCE, piece.end - at)]
            if not (count := os.preadv(piece.source.descriptor, [room], at)):
                raise ModelError(CHANGED)
            yield room[:count]
            at += count
