from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from graphpatch.formats import output as unfinished


def test_what_cannot_be_locked_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no descriptor to spare, even the module that locks cannot be imported."""

    def refused(*given: Any) -> bool:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(unfinished, "_is_locked", refused)
    with pytest.raises(OSError, match="Too many open files"), unfinished.unfinished(tmp_path / "a"):
        pass
    assert not list(tmp_path.iterdir())
