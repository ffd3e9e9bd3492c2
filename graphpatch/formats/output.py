"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from graphpatch.errors import OutputError
from graphpatch.graph.heads import Progress
from graphpatch.graph.wire import Piece, Span, size

KERNEL = 1 << 16  # bytes from which on a span is copied inside the kernel
BUFFER = 1 << 20
NOT_IN_KERNEL = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF}
CHUNK = 1 << 26  # bytes a copy in the kernel moves at once, between two reports of progress


def write_file(path: Path, pieces: Sequence[Piece], progress: Progress | None = None) -> None:
    """Write the pieces to `path`; until they are all there, what was there before stays.

    Raises OutputError where the folder is not there or not writable, or the disk is full.
    """
    with _errors(path), _temporary(path) as temporary:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(temporary, flags, 0o666)
        try:
            write_pieces(descriptor, pieces, progress)
        finally:
            os.close(descriptor)
        temporary.replace(path)


def write_folder(
    path: Path, original: Path, name: str, pieces: Sequence[Piece], left_out: Sequence[str]
) -> None:
    """Write a folder like `original`, with the file `name` made of the pieces.

    Files of the original's top that `left_out` names are not copied.
    """
    skipped = {original / name, *(original / other for other in left_out)}

    def ignore(folder: str, found: list[str]) -> list[str]:
        return [one for one in found if Path(folder, one) in skipped]

    with _errors(path), _temporary(path) as temporary:
        shutil.copytree(original, temporary, ignore=ignore, copy_function=shutil.copyfile)
        write_file(temporary / name, pieces)
        _exchange(temporary, path)


def write_pieces(
    descriptor: int, pieces: Sequence[Piece], progress: Progress | None = None
) -> None:
    """Write the pieces to an open file; large spans go from file to file inside the kernel."""
    buffer, done, total = bytearray(), 0, size(pieces)
    for piece in pieces:
        if isinstance(piece, Span) and piece.end - piece.start >= KERNEL:
            _write_all(descriptor, buffer)
            buffer.clear()
            for part in _chunks(piece):
                _copy_span(descriptor, part)
        else:
            buffer += piece_bytes(piece)
        done += size((piece,))
        if len(buffer) >= BUFFER:
            _write_all(descriptor, buffer)
            buffer.clear()
        if progress is not None:
            progress("writing", done, total)
    _write_all(descriptor, buffer)


def piece_bytes(piece: Piece) -> bytes:
    """The bytes that a piece stands for."""
    return piece if isinstance(piece, bytes) else piece.source.data[piece.start : piece.end]


def _chunks(span: Span) -> Iterator[Span]:
    for start in range(span.start, span.end, CHUNK):
        yield Span(span.source, start, min(start + CHUNK, span.end))


def _write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _copy_span(descriptor: int, span: Span) -> None:
    start = span.start
    if span.source.descriptor >= 0 and hasattr(os, "copy_file_range"):
        start = _copy_in_kernel(descriptor, span)
    while start < span.end:
        end = min(start + BUFFER, span.end)
        _write_all(descriptor, span.source.data[start:end])
        start = end


def _copy_in_kernel(descriptor: int, span: Span) -> int:
    """Copy as far as the kernel does it, and return where it stopped."""
    at = span.start
    while at < span.end:
        try:
            copied = os.copy_file_range(span.source.descriptor, descriptor, span.end - at, at)
        except OSError as error:
            if error.errno in NOT_IN_KERNEL:
                return at
            raise
        if copied == 0:
            return at
        at += copied
    return at


def _exchange(temporary: Path, path: Path) -> None:
    """Put the new folder in its place; one that was there goes once the new one stands."""
    if not path.exists():
        temporary.rename(path)
        return
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    path.rename(old)
    temporary.rename(path)
    shutil.rmtree(old)


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """A name beside `path` that is gone when this ends."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write {path}: {reason}; nothing was written") from error
