"""Parts that `graphpatch split` wrote, run one after the other, as another program would."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphpatch.graph.wire import piece_bytes
from scripts import run_part
from tests.tf import tensorflow1


def write(split: Any, folder: Path) -> dict[str, Any]:
    """Write the parts to a folder, as the command does; returns what parts.json says."""
    document: dict[str, Any] = split.document()
    folder.mkdir(exist_ok=True)
    for name, pieces in split.files().items():
        (folder / name).write_bytes(b"".join(map(piece_bytes, pieces)))
    (folder / "parts.json").write_text(json.dumps(document))
    return document


def run(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """All values after the last step, each run in a Session of its own."""
    values = dict(given)
    document = json.loads((folder / "parts.json").read_text())
    for number in range(1, len(document["steps"]) + 1):
        values.update(run_part.run(str(folder), number, values))
    return values


def run_in_processes(folder: Path, given: Mapping[str, Any], python: str = "") -> dict[str, Any]:
    """The same, each step in a fresh process that has nothing of graphpatch."""
    path = folder / "values.npz"
    np.savez(path, **given)
    document = json.loads((folder / "parts.json").read_text())
    for number in range(1, len(document["steps"]) + 1):
        words = (run_part.__file__, str(folder), str(number), str(path))
        tensorflow1.ran(*words, cwd=folder, executable=python or sys.executable)
    return dict(np.load(path))
