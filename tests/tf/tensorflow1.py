"""TensorFlow 1.15 in a process of its own, with nothing of graphpatch in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import forked
from tests.pinned import PINNED
from tests.tf import run_graph

VARIABLE = "GRAPHPATCH_TF1_PYTHON"


def fetch(
    graph: bytes, feeds: Mapping[str, Any], fetches: Sequence[str], folder: Path, python: str = ""
) -> Any:
    """What a Session of TensorFlow 1.15, or of another `python`'s, gives for these tensors.

    The test is skipped where the environment variable names no Python that has it.
    """
    source, given, fetched = folder / "graph.pb", folder / "feeds.npz", folder / "fetched.npz"
    source.write_bytes(graph)
    np.savez(given, **feeds)
    script = Path(run_graph.__file__)
    ran(str(script), str(source), str(given), str(fetched), *fetches, cwd=folder, executable=python)
    return np.load(fetched)


def ran(*words: str, cwd: Path | None = None, executable: str = "") -> str:
    """What a command line of TensorFlow 1.15's Python prints, or of another executable's."""
    done = subprocess.run(
        [*(forked.python("tensorflow", executable) if executable else python()), *words],
        capture_output=True,
        text=True,
        env=PINNED,
        cwd=cwd,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def python() -> list[str]:
    """What runs a command line with TensorFlow 1.15; the test is skipped where there is none."""
    executable = os.environ.get(VARIABLE, "")
    if not executable:
        pytest.skip(f"{VARIABLE} names no python3.7 that has tensorflow 1.15")
    return forked.python("tensorflow", executable)
