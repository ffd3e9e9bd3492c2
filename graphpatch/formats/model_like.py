"""A model as Python programs have it: a path, bytes, a message, a live graph, a function."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, TypeAlias

from google.protobuf.message import Message

from graphpatch.above import FromAbove
from graphpatch.formats.from_bytes import opened
from graphpatch.formats.live import ConcreteFunction, LiveGraph
from graphpatch.formats.model import Model
from graphpatch.formats.size_limit import as_bytes
from graphpatch.graph.heads import Progress


class HasModel:
    """A result with a `model`, which it gives out as the model does."""

    __slots__ = ()

    model: Model

    def graph_def(self, tags: str = "") -> Any:
        """The GraphDef of the model; see `Model.graph_def`."""
        return self.model.graph_def(tags)

    def meta_graph_def(self, tags: str = "") -> Any:
        """The MetaGraphDef of the model; see `Model.meta_graph_def`."""
        return self.model.meta_graph_def(tags)

    def import_into(self, graph: LiveGraph, name: str = "", tags: str = "") -> Any:
        """Import the model into a live graph; see `Model.import_into`."""
        return self.model.import_into(graph, name, tags)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to `path`, whole or not at all; see `Model.save`."""
        self.model.save(path)


MODEL_TAKEN = (
    "a path, bytes, a graphpatch.Model, a GraphDef, MetaGraphDef or SavedModel message, "
    "a tf.Graph, or a concrete function"
)

# The same messages have other names in TensorFlow, in tensorboard, and here.
PACKAGES = ("tensorflow", "tensorboard", "graphpatch")
MESSAGES = ("GraphDef", "MetaGraphDef", "SavedModel")

# What looks like a model and is none: what to give instead.
INSTEAD = {
    "Function": "call its get_concrete_function(...) first",
    "PatchedGraph": "give its `graph`",
    "Session": "give its `graph`",
    "InteractiveSession": "give its `graph`",
}


ModelLike: TypeAlias = (
    str
    | os.PathLike[str]
    | bytes
    | bytearray
    | memoryview
    | Model
    | HasModel
    | Message
    | LiveGraph
    | ConcreteFunction
)

model_of: FromAbove[[Any, str], Model] = FromAbove("model_of")


def in_memory(argument: str, given: object, progress: Progress | None = None) -> Model:
    """The model that an argument holds, which is not a path.

    Raises TypeError, naming the argument, where it is nothing that a model can be taken from.
    """
    if isinstance(given, HasModel):
        return given.model
    if isinstance(given, Model):
        return given
    if isinstance(given, bytes | bytearray | memoryview):
        return opened(bytes(given), "<bytes>", progress)
    if isinstance(given, Message) and _is_model_message(given):
        return opened(as_bytes(given), f"<{given.DESCRIPTOR.name}>", progress)
    return _live(argument, given)


def is_graph(given: object) -> bool:
    """Whether it is a live graph of TensorFlow, which need not be imported to know it."""
    return "Graph" in _tensorflow_classes(given)


def _live(argument: str, given: Any) -> Model:
    if is_graph(given):
        name = getattr(given, "name", "")  # a FuncGraph has one
        return model_of(given, f"<FuncGraph {name}>" if name else "<tf.Graph>")
    if "ConcreteFunction" in _tensorflow_classes(given):
        return model_of(given.graph, f"<function {given.graph.name}>")
    raise not_taken(argument, given)


def not_taken(argument: str, given: object) -> TypeError:
    """The error for an argument that no model can be taken from."""
    what = type(given).__name__
    instead = INSTEAD.get(what, "")
    more = f"; {instead}" if instead else ""
    if isinstance(given, Message):
        what = f"a {given.DESCRIPTOR.full_name} message"
    elif isinstance(given, list | dict | tuple):
        more = "; are the rules and the model swapped?"
    return TypeError(f"{argument}: expected {MODEL_TAKEN}; found {what}{more}")


def _is_model_message(given: Message) -> bool:
    package, _, name = given.DESCRIPTOR.full_name.rpartition(".")
    return package in PACKAGES and name in MESSAGES


def _tensorflow_classes(given: object) -> Iterator[str]:
    """The names of the classes of TensorFlow that it is one of."""
    for one in type(given).__mro__:
        if one.__module__.partition(".")[0] == "tensorflow":
            yield one.__name__
