"""The examples of docstrings that need TensorFlow give what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.documented import WITH_TENSORFLOW, failures, write_files

tf = pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the files are that examples read."""
    found = tmp_path_factory.mktemp("examples")
    write_files(found)
    with tf.Graph().as_default() as graph:
        w = tf.compat.v1.get_variable("w", [2])
        loss = tf.reduce_sum(tf.nn.relu(w), name="loss")
        tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        tf.compat.v1.train.export_meta_graph(str(found / "training.meta"), graph=graph)
    return found


@pytest.mark.parametrize("name", sorted(WITH_TENSORFLOW))
def test_an_example_gives_what_it_says(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    there: dict[str, Any] = {"tf": tf}
    if name.startswith("keras."):
        pytest.importorskip("keras")
        import graphpatch.keras  # noqa: F401
    assert failures(name, **there) == ""
