"""A model taken from TensorFlow: a live graph, as the message that TensorFlow exports of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import DecodeError, EncodeError

from graphpatch.errors import ModelError
from graphpatch.formats import model as formats_model
from graphpatch.formats.load import model_of as asked_model_of
from graphpatch.formats.model import TOO_LARGE, Model, as_bytes, is_too_large, opened


def model_of(graph: Any, label: str = "<tf.Graph>") -> Model:
    """The model that a live `tf.Graph` or FuncGraph is: a copy, which later ops are not part of.

    It is a MetaGraphDef with the graph's collections, the contexts of v1 loops and branches among
    them; a GraphDef where the graph has none. Values of variables are not in a graph, so they are
    not in the model. Raises ModelError where the graph is larger than protobuf's 2 GB.
    """
    meta = _exported_meta(graph, label)
    return opened(as_bytes(meta if meta.collection_def else meta.graph_def), label)


def graph_def_of(graph: Any) -> bytes:
    """The serialized GraphDef of a live graph. Raises ModelError where it is larger than 2 GB."""
    with _limited("<tf.Graph>"):
        return bytes(graph.as_graph_def().SerializeToString())


def _exported_meta(graph: Any, label: str) -> Any:
    """The MetaGraphDef of a graph. Shapes are noted: they tell which constructions are right."""
    import tensorflow as tf

    with _limited(label), graph.as_default():  # an eager program has no other way to export
        return tf.compat.v1.train.export_meta_graph()


@contextmanager
def _limited(label: str) -> Iterator[None]:
    """Tell protobuf's limit where it is met."""
    import tensorflow as tf

    try:
        yield
    except (ValueError, tf.errors.InvalidArgumentError, EncodeError, DecodeError) as error:
        # TensorFlow 2.21 cannot parse the message that it made itself.
        if is_too_large(error) or isinstance(error, DecodeError):
            raise ModelError(f"{label}: TensorFlow cannot export it: {TOO_LARGE}") from error
        raise


def tensorflow_class(name: str) -> Any:
    """TensorFlow's class of this message, the only one that it takes."""
    import tensorflow as tf

    return getattr(tf.compat.v1, name)


asked_model_of.is_for(model_of)
formats_model.tensorflow_class.is_for(tensorflow_class)
