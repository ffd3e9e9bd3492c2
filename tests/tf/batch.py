"""Many models, patched, and differentiated in one process start for each TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import GraphpatchError
from tests.draws import selected
from tests.forked import python
from tests.pinned import PINNED
from tests.tf import run_batch
from tests.tf.tensorflow1 import VARIABLE

# TensorFlow 1.15 is asked where all tests run.
RUNTIMES = ("tensorflow2", pytest.param("tensorflow1", marks=pytest.mark.slow))
X = [-0.7, 0.2, 0.5]


@dataclass
class Batch:
    """Models in a folder, each as it was built and as it was patched.

    With `onednn` TensorFlow uses oneDNN where the processor has it. `refused` has the message where
    `apply` refused, `emitted` how the rules travel elsewhere.
    """

    folder: Path
    onednn: bool = False
    jobs: dict[str, tuple[str, list[float], bool]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    emitted: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, name: str, model: Any, rules: Sequence[Mapping[str, Any]]) -> None:
        """Patch a GraphDef or MetaGraphDef; TensorFlow gets it before (forward) and after."""
        suffix = ".meta" if hasattr(model, "graph_def") else ".pb"
        before, after = f"{name}.before{suffix}", f"{name}{suffix}"
        (self.folder / before).write_bytes(model.SerializeToString(deterministic=True))
        self.jobs[f"{name}.before"] = before, X, False
        try:
            result = graphpatch.apply(rules, self.folder / before)
        except GraphpatchError as error:
            self.refused[name] = str(error)
            return
        result.model.save(self.folder / after)
        self.emitted[name] = "+".join(rule["emit"] for rule in result.report["rules"])
        self.jobs[name] = after, X, True

    def run(self, request: pytest.FixtureRequest) -> Batch:
        """Run all models under the TensorFlows that tests ask for, side by side."""
        asked = selected(request, "runtime")
        (self.folder / "jobs.json").write_text(json.dumps(self.jobs))
        pythons = {"tensorflow2": sys.executable, "tensorflow1": os.environ.get(VARIABLE, "")}
        started = {
            tag: self._start(path, tag) for tag, path in pythons.items() if path and tag in asked
        }
        for tag, process in started.items():
            _, stderr = process.communicate()
            assert process.returncode == 0, stderr[-2000:]
            self.values[tag] = dict(np.load(self.folder / f"{tag}.npz"))
            self.errors[tag] = json.loads((self.folder / f"{tag}.json").read_text())
        return self

    def _start(self, path: str, tag: str) -> subprocess.Popen[str]:
        command = [
            *python("tensorflow", path),
            str(Path(run_batch.__file__)),
            str(self.folder),
            tag,
        ]
        pipe = subprocess.PIPE
        env = {**PINNED, "TF_ENABLE_ONEDNN_OPTS": str(int(self.onednn))}  # and nothing else
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env)

    def error(self, name: str, runtime: str) -> str:
        """What TensorFlow raised, or nothing. Skips the test where there is no such TensorFlow."""
        if runtime not in self.errors:
            pytest.skip(f"{VARIABLE} names no python3.7 that has tensorflow 1.15")
        return self.errors[runtime].get(name, "")

    def gradient(self, name: str, runtime: str) -> Any:
        """The gradient of the patched model, None included, once its forward bits are compared."""
        assert self.error(name, runtime) == self.error(f"{name}.before", runtime) == ""
        values = self.values[runtime]
        assert values[f"{name}/y"].tobytes() == values[f"{name}.before/y"].tobytes()
        return values.get(f"{name}/dx")


def graph(build: Callable[[Any], Any], v1: bool = False) -> Any:
    """A GraphDef whose `y` is what `build` makes of the placeholder `x`, of shape [3].

    With `v1`, a MetaGraphDef with v1 loops and branches, whose contexts are in its collections.
    """
    import tensorflow as tf

    tf1 = tf.compat.v1
    (tf1.disable_control_flow_v2 if v1 else tf1.enable_control_flow_v2)()
    try:
        with tf1.Graph().as_default():
            tf.identity(build(tf1.placeholder(tf.float32, [3], name="x")), name="y")
            # Default attrs that TensorFlow 1.15 does not know are left out.
            meta = tf1.train.export_meta_graph(strip_default_attrs=True)
    finally:
        tf1.enable_control_flow_v2()
    for node in meta.graph_def.node:
        node.attr.pop("debug_name", None)
    return meta if v1 else meta.graph_def
