"""What the server of commands imports: commands, and where their TensorFlow processes come from."""

from __future__ import annotations

import importlib
import sys

from graphpatch.runtime.verify import process
from tests import forked

SOON = ("apply", "check", "diff", "doctor", "match", "ops", "patterns", "revert")
NOT_AT_THE_START = {"numpy", "networkx", "tensorflow"}

for _name in SOON:
    importlib.import_module(f"graphpatch.cli.{_name}")
assert not NOT_AT_THE_START & set(sys.modules)


def from_tensorflow() -> list[str]:
    """The command line of a process that runs a model, with TensorFlow imported."""
    return [*forked.client("tensorflow"), "-c", process.WORKER_PROGRAM]


forked.sockets()  # while the environment is that of the server
process.command = from_tensorflow
