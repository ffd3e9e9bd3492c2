"""The messages of models: their descriptors, and the pool that they are in."""

from __future__ import annotations

import subprocess
import sys

import pytest

from graphpatch import protos
from tests.examples import ROOT


def test_the_descriptors_are_those_of_the_script() -> None:
    pytest.importorskip("tensorflow")
    from make_protos import OUTPUT, descriptors

    stored = protos.FileDescriptorSet.FromString(OUTPUT.read_bytes())
    fresh = descriptors()
    assert {file.name for file in stored.file} == {file.name for file in fresh.file}
    # A later TensorFlow adds fields; none that we know may be gone.
    graph = protos.message_class("tensorflow.GraphDef").DESCRIPTOR
    assert {field.name for field in graph.fields} >= {"node", "versions", "library"}


def test_the_pool_is_not_that_of_tensorflow() -> None:
    """Both classes live in one process, and each reads what the other wrote."""
    tf = pytest.importorskip("tensorflow")
    message = protos.GraphDef(node=[protos.NodeDef(name="x", op="Placeholder")])
    theirs = tf.compat.v1.GraphDef.FromString(message.SerializeToString())
    assert theirs.node[0].name == "x"
    assert type(theirs) is not protos.GraphDef
    assert protos.GraphDef.FromString(theirs.SerializeToString()) == message


def test_nothing_of_tensorboard_is_imported_or_required() -> None:
    program = "import sys, graphpatch.protos, graphpatch.page.events; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert not {"tensorboard", "tensorflow", "grpc"} & set(done.stdout.split())
    assert "tensorboard" not in (ROOT / "setup.cfg").read_text()
    sources = [
        path
        for folder in ("graphpatch", "scripts", "tests")
        for path in (ROOT / folder).rglob("*.py")
    ]
    marker = "tensorboard." + "compat"
    assert [path.name for path in sources if marker in path.read_text()] == []  # see protos.py
