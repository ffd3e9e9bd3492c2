"""A model that is cut short, or changed, while it is read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphpatch import apply, load
from graphpatch.errors import ModelError
from graphpatch.graph.wire import SMALL
from tests import graphs
from tests.graphs import node

RULES = [{"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}]

READ_AFTER = """
import os, sys
from graphpatch.cli import report_cut_short
report_cut_short()
from pathlib import Path
from graphpatch import load
from graphpatch.formats.output import unfinished
model = load(sys.argv[1])
with unfinished(Path(sys.argv[1] + ".out")):
    os.truncate(sys.argv[1], 4096)
    model.graphs[0].main.node("last").attrs()
"""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A model that is mapped, not read: a constant of more than SMALL bytes, and an op behind."""
    path = tmp_path / "large.pb"
    graph = graphs.graphdef(
        node("x", "Placeholder"), graphs.const("w", SMALL + 4), node("last", "Relu", "x")
    )
    path.write_bytes(graph.SerializeToString(deterministic=True))
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="SIGBUS")
def test_the_command_says_so(large: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", READ_AFTER, str(large)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip().startswith("graphpatch: the file of the model was changed while")
    assert [path.name for path in tmp_path.iterdir()] == ["large.pb"]


def _truncated(path: Path) -> None:
    os.truncate(path, 4096)


def _overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(SMALL // 2)
        file.write(b"other")


@pytest.mark.parametrize("change", [_truncated, _overwritten])
def test_nothing_is_written_of_a_file_that_was_changed(
    large: Path, tmp_path: Path, change: Callable[[Path], Any]
) -> None:
    patched = apply(RULES, large).model
    (tmp_path / "out.pb").write_bytes(b"the old one")
    change(large)
    with pytest.raises(ModelError, match="was changed while it was read"):
        patched.save(tmp_path / "out.pb")
    assert (tmp_path / "out.pb").read_bytes() == b"the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large.pb", "out.pb"]


def test_a_large_model_is_given_back_and_checked(large: Path, tmp_path: Path) -> None:
    apply(RULES, large).model.save(tmp_path / "out.pb")
    from graphpatch.analysis.revert import revert

    revert(load(tmp_path / "out.pb")).model.save(tmp_path / "back.pb")
    assert (tmp_path / "back.pb").read_bytes() == large.read_bytes()
    with (tmp_path / "out.pb").open("r+b") as file:
        file.seek(SMALL // 2)
        file.write(b"\x03")
    with pytest.raises(ModelError, match="its checksum differs"):
        revert(load(tmp_path / "out.pb"))
