"""TensorFlow 1.15 in a process of its own, with nothing of graphpatch in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pinned import PINNED
from tests.tf import run_graph

VARIABLE = "GRAPHPATCH_TF1_PYTHON"


def fetch(
    graph: bytes, feeds: Mapping[str, Any], fetches: Sequence[str], folder: Path, python: str = ""
) -> Any:
    """What a Session of TensorFlow 1.15, or of another `python`'s, gives for these tensors.

    The test is skipped where the environment variable names no Python that has it.
    """
    python = python or os.environ.get(VARIABLE, "")
    if not python:
        pytest.skip(f"{VARIABLE} names no python3.7 that has tensorflow 1.15")
    source, given, fetched = folder / "graph.pb", folder / "feeds.npz", folder / "fetched.npz"
    source.write_bytes(graph)
    np.savez(given, **feeds)
    script = Path(run_graph.__file__)
    command = [python, str(script), str(source), str(given), str(fetched), *fetches]
    done = subprocess.run(
        command, capture_output=True, text=True, env=PINNED, cwd=folder, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return np.load(fetched)
