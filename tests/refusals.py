"""Sound files, and what a command says and leaves behind when it refuses something."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests import graphs
from tests.graphs import const, graphdef

SAMPLE = graphs.sample()
MODEL = SAMPLE.SerializeToString(deterministic=True)
META = graphs.metagraph(SAMPLE, "serve").SerializeToString(deterministic=True)
LARGE = graphdef(
    const("weights", 300_000), *SAMPLE.node, functions=SAMPLE.library.function
).SerializeToString(deterministic=True)
RULE = {
    "match": {"op": "Relu", "body": "main"},
    "patch": {"override_gradient": {"registered": "Mine"}},
}


def rules_text(*rules: Any) -> str:
    return json.dumps({"version": 1, "rules": rules})


def sound_files(folder: Path) -> Path:
    """A folder with models that are sound, a large one and a SavedModel among them, and rules."""
    (folder / "model.pb").write_bytes(MODEL)
    (folder / "large.pb").write_bytes(LARGE)
    (folder / "rules.json").write_text(rules_text(RULE))
    graphs.saved_model_folder(folder / "saved", graphs.metagraph(SAMPLE, "serve"))
    return folder


class Content(bytes):
    """What a file holds; where a comparison fails, pytest shows its start and its hash."""

    def __repr__(self) -> str:
        return f"{len(self):,} bytes, {self[:16].hex()}..., sha256 {sha256(self).hexdigest()[:16]}"


def everything(folder: Path) -> dict[str, Content]:
    """All files below a folder, hidden ones too."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): Content(path.read_bytes()) for path in paths}


def refused(done: Any, *said: str) -> None:
    """One message, that says these; exit 1; no traceback; nothing on standard output."""
    assert done.code == 1, done.stderr
    assert done.raw == b""
    assert done.stderr.startswith("graphpatch: ")
    assert done.stderr.count("graphpatch: ") == 1
    assert "Traceback" not in done.stderr
    for text in said:
        assert text in done.stderr


def summary(said: str) -> str:
    """What a command says of many models, behind the progress that a slow machine shows."""
    return next(line for line in said.splitlines() if not line.startswith("models: "))
