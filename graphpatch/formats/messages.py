"""A model as a message of TensorFlow."""

from __future__ import annotations

import sys
from typing import Any

from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef

from graphpatch.above import FromAbove
from graphpatch.errors import ModelError
from graphpatch.formats.from_bytes import opened
from graphpatch.formats.model import Model
from graphpatch.formats.size_limit import as_message
from graphpatch.graph.emit import graph_pieces
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.graph.wire import piece_bytes

tensorflow_class: FromAbove[[str], Any] = FromAbove("tensorflow_class")


def graph_def(model: Model, tags: str = "") -> Any:
    """The GraphDef of a model's graph."""
    try:
        return as_message(_class("GraphDef"), graph_pieces(_graph_to_write(model, tags)[1]))
    except ModelError as error:
        raise ModelError(f"{model.path}: {error}") from error


def meta_graph_def(model: Model, tags: str = "") -> Any:
    """The MetaGraphDef of a model's graph, with the contexts of v1 loops and branches."""
    try:
        whole, graph = _graph_to_write(model, tags)
        return as_message(_class("MetaGraphDef"), whole.meta_graph(graph))
    except ModelError as error:
        raise ModelError(f"{model.path}: {error}") from error


def graph_with_tags(model: Model, tags: str) -> ModelGraph:
    """The graph of a model that has these tags, or the only one that it has."""
    found = [graph for graph in model.graphs if not tags or graph.around.tags == tags]
    if len(found) == 1:
        return found[0]
    there = ", ".join(repr(graph.around.tags) for graph in model.graphs)
    raise ModelError(f"`tags` must choose one of its MetaGraphDefs: {there}")


def _graph_to_write(model: Model, tags: str) -> tuple[Model, ModelGraph]:
    """The graph as it would be written: one that is exported becomes another when it is."""
    if model.export is not None:
        model = opened(b"".join(map(piece_bytes, model.pieces())), model.path)
    return model, graph_with_tags(model, tags)


def _class(name: str) -> Any:
    """TensorFlow's class of a message where TensorFlow is imported, else tensorboard's.

    TensorFlow takes its own class alone; without it nobody needs that.
    """
    if sys.modules.get("tensorflow") is not None:
        return tensorflow_class(name)
    return {"GraphDef": GraphDef, "MetaGraphDef": MetaGraphDef}[name]
