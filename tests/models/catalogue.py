"""The real models, and what TensorFlow makes of each.

They are found without TensorFlow; it is imported where one is read as a TensorFlow message.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parent.parent.parent
SAVED_MODEL = "saved_model.pb"

# Every tenth of the zoo and the models beside it, without the largest: what a default run takes.
SAMPLE_STEP = 10
LARGE = 1 << 19  # bytes
HEAVY = "224x224"  # small files of nets that take long to run


def folder() -> Path:
    """Where the real models are, whether or not they are there."""
    named = os.environ.get("GRAPHPATCH_MODELS")
    return Path(named) if named else CHECKOUT.parent / "shared" / "models"


@functools.cache
def models() -> dict[str, Path]:
    """Every model by a short name: files of the zoo and beside it, and SavedModel folders."""
    beside = [path for path in folder().rglob("*") if path.suffix in {".pb", ".pbtxt", ".meta"}]
    found = [path.parent if path.name == SAVED_MODEL else path for path in beside]
    return {str(path.relative_to(folder())): path for path in sorted(found)}


def sample() -> set[str]:
    """The names of some models of every kind that are quickly run."""
    small = [n for n, path in models().items() if size(path) < LARGE and HEAVY not in n]
    return set(small[::SAMPLE_STEP])


def every_model() -> list[Any]:
    """One parameter a model."""
    if not models():
        return [pytest.param("", marks=pytest.mark.skip(reason=f"no real models in {folder()}"))]
    return list(models())


def drawn(choices: Iterable[str], name: str, most: int) -> list[str]:
    """So many of some choices, other ones for each model; all where GRAPHPATCH_ALL_KINDS is set."""
    found = sorted(choices, key=lambda choice: zlib.crc32(f"{name} {choice}".encode()))
    return found if os.environ.get("GRAPHPATCH_ALL_KINDS") else found[:most]


def size(path: Path) -> int:
    """The bytes of a model's file."""
    return (path / SAVED_MODEL if path.is_dir() else path).stat().st_size


def read(path: Path) -> Any:
    """The message that a model file holds, parsed by TensorFlow: its container as a whole."""
    from google.protobuf import text_format

    raw = (path / SAVED_MODEL if path.is_dir() else path).read_bytes()
    message = _message(path)
    if any(byte < 32 and byte not in b"\t\n\r" for byte in raw[:1024]):
        message.ParseFromString(raw)
    else:
        text_format.Parse(raw.decode(), message)
    return message


def graph_defs(path: Path) -> list[Any]:
    """The GraphDefs that a model file holds, parsed by TensorFlow."""
    message = read(path)
    if hasattr(message, "meta_graphs"):
        return [meta.graph_def for meta in message.meta_graphs]
    return [message.graph_def if hasattr(message, "graph_def") else message]


def _message(path: Path) -> Any:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    if path.is_dir():
        return SavedModel()
    return MetaGraphDef() if path.suffix == ".meta" else GraphDef()


def imported(graph_def: Any, overrides: dict[str, str] | None = None) -> Any:
    """The tf.Graph that TensorFlow makes of a GraphDef, inside a gradient_override_map."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph, graph.gradient_override_map(overrides or {}):
        tf.compat.v1.import_graph_def(graph_def, name="")
    return graph


@functools.cache
def refusal(path: Path) -> str:
    """Why TensorFlow refuses to import a model, in its own words; nothing where it does not."""
    import tensorflow as tf

    for graph_def in graph_defs(path):
        try:
            imported(graph_def)
        except (ValueError, TypeError, tf.errors.OpError) as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def existing(name: str) -> Path:
    """The model whose name begins so; the test is skipped where there is none."""
    found = [path for own, path in models().items() if own.startswith(name)]
    if not found:
        pytest.skip(f"no {name} in {folder()}")
    return found[0]


def importable(name: str) -> Path:
    """The model of this name; the test is skipped where TensorFlow refuses to import it."""
    path = models()[name]
    reason = refusal(path)
    if reason:
        pytest.skip(f"TensorFlow refuses it: {reason}")
    return path
