"""The content of a model as a hash: of a file, or of a SavedModel with all that belongs to it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from graphpatch.formats.folder import regular_files

CHUNK = 1 << 20


def content(path: Path) -> str:
    """SHA-256 of a file; of a folder, that of its files' names and contents."""
    if not path.is_dir():
        return _file(path)
    whole = hashlib.sha256()
    for one in sorted(regular_files(path)):
        whole.update(f"{_file(one)} {one.relative_to(path).as_posix()}\n".encode())
    return whole.hexdigest()


def _file(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(CHUNK))
        while size := file.readinto(buffer):
            found.update(buffer[:size])
    return found.hexdigest()
