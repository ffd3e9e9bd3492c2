"""Docs that need TensorFlow: examples of docstrings, and the errors in docs/reference/errors.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from tests.documented import WITH_TENSORFLOW, failures, write_files
from tests.examples import ROOT
from tests.graphs import graphdef, node
from tests.tf import consumer

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1
PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Errors of TensorFlow")[2]
X = node("x", "Placeholder", dtype="float32")


def as_tensorflow(graph: Any) -> Any:
    return tf1.GraphDef.FromString(graph.SerializeToString())


def differentiated(op: Any) -> Any:
    with tf1.Graph().as_default() as graph:
        tf1.import_graph_def(as_tensorflow(graphdef(X, op)), name="")
        return tf1.gradients(graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0"))


def keyed(key: str) -> Any:
    return differentiated(node("y", "Relu", "x", T="float32", _gradient_op_type=key))


def on_a_tape() -> Any:
    """Of a gradient that no other test of this process has registered."""
    formula = {"formula": "dy * sigmoid(0.8765 * x)"}
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": formula}}
    model = graphdef(X, node("y", "Relu", "x", T="float32"))
    patched = graphpatch.apply([{**rule, "emit": "function"}], model).model.graph_def()
    call = tf1.wrap_function(lambda: tf1.import_graph_def(patched, name=""), []).prune("x:0", "y:0")
    return consumer.taped(call, [1.0, -1.0])[1]


# What raises, and a word of what the row of each error that is printed, the last one first, says.
RAISED: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "a key of ours": (
        lambda: keyed('graphpatch:{"scale":{"factor":0.8765}}'),
        ["--emit attr", "register_gradients"],
    ),
    "a key of tf.custom_gradient": (
        lambda: keyed("CustomGradient-993"),
        ["tf.custom_gradient", "only the process that built it"],
    ),
    "an op type": (
        lambda: differentiated(node("y", "Bucketize", "x", T="float32", boundaries=[0.0])),
        ["op type", "doctor --fix"],
    ),
    "a tape": (on_a_tape, ["register_gradients"]),
}


def rows(printed: str) -> list[str]:
    """The rows whose message is printed; `...` in one stands for anything."""
    found = []
    for row in TABLE.splitlines():
        messages = re.findall(r"`(.*?)`", row.split("|")[1]) if row.startswith("| `") else []
        parts = (".*".join(map(re.escape, one.split("..."))) for one in messages)
        if any(re.search(part, printed, re.DOTALL) for part in parts):
            found.append(row)
    return found


def printed(error: BaseException | None) -> Iterator[str]:
    """The last line of a traceback, and those above it that name errors."""
    while error is not None:
        yield f"{type(error).__name__}: {error}"
        error = error.__context__


@pytest.mark.parametrize("name", RAISED)
def test_each_error_that_is_printed_has_its_row(name: str) -> None:
    raises, words = RAISED[name]
    with pytest.raises(Exception) as raised:  # noqa: PT011  (which one the page says)
        raises()
    for text, word in zip(printed(raised.value), words, strict=False):
        (row,) = rows(text)
        assert word in row, text


# Examples of docstrings.


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
