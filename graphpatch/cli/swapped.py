"""Rules and models that were given in the wrong order."""

from __future__ import annotations

import codecs
from pathlib import Path

from graphpatch.errors import RulesError

HEAD_BYTES = 4096


def refuse_swapped(command: str, rules: str, models: tuple[str, ...]) -> None:
    """Raise RulesError where the first argument is a model, and the last one a rules file."""
    if models and _is_json(models[-1]) and _looks_like_model(rules):
        right = " ".join((models[-1], rules, *models[:-1]))
        raise RulesError(
            f"the arguments look swapped: {rules} is a model, and {models[-1]} a rules file; "
            f"write: graphpatch {command} {right}"
        )


def _looks_like_model(path: str) -> bool:
    if Path(path).is_dir():
        return any(Path(path).glob("saved_model.pb*"))
    head = _head(path)
    return bool(head) and (any(byte < 9 for byte in head) or Path(path).suffix == ".pbtxt")


def _is_json(path: str) -> bool:
    return _head(path).removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"{", b"[")


def _head(path: str) -> bytes:
    """The first bytes of a file; nothing where it is none: a pipe cannot be read twice."""
    try:
        if not Path(path).is_file():
            return b""
        with Path(path).open("rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:  # whoever reads the whole file says why that cannot be done
        return b""
