"""Names for what is not whole yet, and the end of what a process that was killed left under them.

`.NAME.TOKEN.tmp` lies beside NAME and is locked by its writer. A process that dies lets its locks
go, whatever killed it: what can be locked belongs to nobody. A process number would not tell: that
of a dead one is given to another, and containers that share a folder count from 1 each.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

LOCKS = os.name == "posix"  # elsewhere nothing is swept
LONGEST_NAME = 200  # bytes of a name that are kept; file systems take 255 with what is added
LEFT = re.compile(r"\.(.+)\.([0-9a-f]{12}|\d+)\.(tmp|old)", re.S)
MINE: set[Path] = set()
"""What this process has not finished."""


def unfinished_name(path: Path, ending: str) -> Path:
    """A new name beside `path`, that no other process takes."""
    return path.with_name(f".{_stem(path.name)}.{os.urandom(6).hex()}.{ending}")


def _stem(name: str) -> str:
    """The name, or of a long one the start and a hash of it."""
    raw = os.fsencode(name)
    if len(raw) <= LONGEST_NAME:
        return name
    import hashlib

    return os.fsdecode(raw[:LONGEST_NAME]) + "~" + hashlib.sha256(raw).hexdigest()[:12]


@contextlib.contextmanager
def unfinished(path: Path, is_folder: bool = False) -> Iterator[Path]:
    """A new empty file or folder beside `path`, locked; it is gone when this ends."""
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
        stems[target.parent][_stem(target.name)] = target
    for folder, known in stems.items() if LOCKS else ():
        with contextlib.suppress(OSError):  # no folder, or none that can be listed
            for entry in os.scandir(folder):
                found = LEFT.fullmatch(entry.name) if entry.name.startswith(".") else None
                if found is not None and found[1] in known and not entry.is_symlink():
                    _end_unfinished(Path(entry.path), known[found[1]], found[3])


def _end_unfinished(left: Path, path: Path, kind: str) -> None:
    import fcntl

    with contextlib.suppress(OSError):  # in use, or not ours to take away: it is in nobody's way
        descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if kind == "old" and not path.exists():
                left.rename(path)
            else:
                remove(left)
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
