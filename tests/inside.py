"""A command line of graphpatch, run in this process: it takes hundredths of a fork's time."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any
from unittest import mock

from graphpatch import cli
from tests import forked

# Options that start processes that share the work.
FLEET = {"-j", "--jobs", "--scheduler"}


def can_run(arguments: Sequence[str], cwd: Path | None) -> bool:
    """Whether a command line may share this process: it starts none, and writes to files alone."""
    if os.environ.get(forked.FRESH) or FLEET & set(arguments):
        return False
    if any(word.startswith("/dev/") for word in arguments):
        return False
    here = cwd or Path.cwd()
    paths = [here / word for word in arguments if len(word) < 200 and "\0" not in word]
    models = [path for path in paths if path.suffix in {".pb", ".pbtxt", ".meta"}]
    fleet = arguments[0] in {"apply", "check"} and len(models) > 2
    return not fleet and not any(path.is_dir() for path in paths)


def run(
    arguments: Sequence[str], stdin: bytes, cwd: Path | None, env: Mapping[str, str]
) -> tuple[int, bytes, bytes]:
    """The exit code, standard output and standard error, as a process of its own has them."""
    before = Path.cwd()
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        tempfile.TemporaryFile() as fed,
        mock.patch.dict(os.environ, {"COLUMNS": "100", **env}),
        warnings.catch_warnings(),
        _streams(fed, out, err),
        mock.patch.object(sys, "argv", ["graphpatch", *arguments]),
    ):
        fed.write(stdin)
        fed.seek(0)
        os.chdir(cwd or before)
        code: object = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
        finally:
            os.chdir(before)
            gc.unfreeze()
            gc.enable()
            for stream in (sys.stdout, sys.stderr):
                if not stream.closed:
                    stream.flush()
        out.seek(0)
        err.seek(0)
        return code if isinstance(code, int) else 0, out.read(), err.read()


@contextmanager
def _streams(fed: IO[bytes], out: IO[bytes], err: IO[bytes]) -> Iterator[None]:
    """Let the standard streams be these files."""
    texts = [TextIOWrapper(file, "utf-8", "backslashreplace") for file in (fed, out, err)]
    streams: dict[str, Any] = dict(zip(("stdin", "stdout", "stderr"), texts, strict=True))
    with mock.patch.multiple(sys, **streams):
        try:
            yield
        finally:
            for text in texts:
                if not text.closed:
                    text.detach()
