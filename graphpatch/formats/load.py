"""A model from its path, or from what Python has of it in memory."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf.message import Message

from graphpatch.errors import ModelError, check_progress
from graphpatch.formats.destination import FILES
from graphpatch.formats.destination import SAVED_MODEL_FILES as SAVED_MODEL_FILES
from graphpatch.formats.foreign import Bytes, foreign_file, is_text, not_there, peek, told_by_name
from graphpatch.formats.model import (
    GRAPH,
    GRAPH_DEF,
    META,
    SAVED,
    ConcreteFunction,
    Container,
    LiveGraph,
    Model,
    as_bytes,
    open_graphs,
)
from graphpatch.graph.graph import Progress
from graphpatch.graph.wire import BYTES, MOST_FIELDS, VARINT, Field, Source, fields, map_file
from graphpatch.later import FromLater
from graphpatch.mapped import read_whole
from graphpatch.names import OP_TYPE


class HasModel:
    """A result with a `model`, which it gives out as the model does."""

    __slots__ = ()

    model: Model

    def graph_def(self, tags: str = "") -> Any:
        """Return the GraphDef of the model; see `Model.graph_def`."""
        return self.model.graph_def(tags)

    def meta_graph_def(self, tags: str = "") -> Any:
        """Return the MetaGraphDef of the model; see `Model.meta_graph_def`."""
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

# The same messages have other names in TensorFlow and in tensorboard.
PACKAGES = ("tensorflow", "tensorboard")
MESSAGES = ("GraphDef", "MetaGraphDef", "SavedModel")

# What looks like a model and is none: what to give instead.
INSTEAD = {
    "Function": "call its get_concrete_function(...) first",
    **dict.fromkeys(
        ("PatchedGraph", "Session", "InteractiveSession", "SymbolicTensor"), "give its `graph`"
    ),
    **dict.fromkeys(("str", "GraphDef", "MetaGraphDef"), "graphpatch.apply takes files and these"),
}
LAYERS = {("keras", "Layer"), ("tf_keras", "Layer"), ("tensorflow", "Layer")}
EXPORT_FIRST = "save it with its `export(folder)` and give the folder; graphpatch.keras has layers"


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

model_of: FromLater[[Any, str], Model] = FromLater("model_of")


def in_memory(argument: str, value: Any, progress: Progress | None = None) -> Model:
    """Return the model that an argument holds, which is not a path.

    Raises TypeError, naming the argument, where it is nothing that a model can be taken from.
    """
    if isinstance(value, HasModel):
        return value.model
    if isinstance(value, Model):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return opened(bytes(value), "<bytes>", progress)
    if is_graph(value):
        name = getattr(value, "name", "")  # a FuncGraph has one
        return model_of(value, f"<FuncGraph {name}>" if name else "<tf.Graph>")
    if ("tensorflow", "ConcreteFunction") in _classes(value):
        return model_of(value.graph, f"<function {value.graph.name}>")
    what = type(value).__name__
    if isinstance(value, Message):
        package, _, name = value.DESCRIPTOR.full_name.rpartition(".")
        if package in PACKAGES and name in MESSAGES:
            return opened(as_bytes(value), f"<{name}>", progress)
        what = f"a {value.DESCRIPTOR.full_name} message"
    raise TypeError(f"{argument}: expected {MODEL_TAKEN}; found {what}{instead_of(value)}")


def is_graph(value: object) -> bool:
    """Return whether it is a live graph of TensorFlow, which need not be imported to know it."""
    return ("tensorflow", "Graph") in _classes(value)


def _classes(value: object) -> set[tuple[str, str]]:
    """Return the classes that it is one of, each with its package; protobuf's tell no module."""
    return {(str(base.__module__).partition(".")[0], base.__name__) for base in type(value).__mro__}


def instead_of(value: object) -> str:
    """Say what to give instead of what looks like a model and is none; else nothing."""
    if isinstance(value, list | dict | tuple) or (isinstance(value, str) and value[:1] == "@"):
        return "; are the rules and the model swapped?"
    if not LAYERS.isdisjoint(_classes(value)):
        return f"; {EXPORT_FIRST}"
    instead = INSTEAD.get(type(value).__name__, "")
    return f"; {instead}" if instead else ""


HEAD = 4096


def opened(data: bytes, label: str, progress: Progress | None = None) -> Model:
    """Return the model that bytes in memory hold; errors call it `label`."""
    model = opened_at(Path(label), Source(data), "", progress)
    model.in_memory = True
    return model


def opened_at(path: Path, source: Source, file: str, progress: Progress | None) -> Model:
    """Return the model that lies at `path`; of a SavedModel folder `file` is the message in it."""
    if not source.data[:1]:
        piped = str(path) == "-"
        raise ModelError(f"{'standard input' if piped else path} is empty; expected a model")
    as_text = is_text(source.data[:HEAD])
    try:
        source, container = _recognised(path.name, source, as_text)
        graphs = open_graphs(source, container, progress)
    except ModelError as error:
        raise type(error)(f"{path}: {error}") from error
    return Model(str(path.parent if file else path), source, container, graphs, as_text, file)


def _recognised(name: str, source: Source, as_text: bool) -> tuple[Source, Container]:
    """Return the binary message of a file and its container; of others' files, what they are."""
    try:
        if not as_text:
            return source, recognise(source)
        from graphpatch.formats import text

        data, container = text.parse_text(source.data[:])
        return Source(data), container
    except ModelError as error:
        said = foreign_file(name, source.data) or told_by_name(name)
        raise type(error)(said or str(error)) from error


def recognise(source: Source) -> Container:
    """Return which container the bytes are; ModelError where none."""
    data = source.data
    if _is_saved(data):
        return SAVED
    if _is_graph(data, 0, len(data)):
        return GRAPH
    if _is_meta(data, 0, len(data)):
        return META
    why = ""
    try:
        for _ in islice(fields(data, 0, len(data)), MOST_FIELDS):
            pass
    except ModelError as error:  # it is not a message at all
        why = f" ({error})"
    raise ModelError(
        f"not a GraphDef, a MetaGraphDef or a SavedModel{why}; expected a .pb, .pbtxt or .meta "
        "file, or a SavedModel folder"
    )


def _is_saved(data: Bytes) -> bool:
    parts = peek(data, 0, len(data))
    meta = parts.get((2, BYTES))
    if meta is None:
        return False
    if (1, VARINT) not in parts:
        return _is_meta(data, meta.value, meta.end)
    # Other messages start with a number too (ONNX does).
    return (GRAPH_DEF, BYTES) in peek(data, meta.value, meta.end)


def _is_meta(data: Bytes, start: int, end: int) -> bool:
    graph = peek(data, start, end).get((GRAPH_DEF, BYTES))
    return graph is not None and _is_graph(data, graph.value, graph.end)


def _is_graph(data: Bytes, start: int, end: int) -> bool:
    parts = peek(data, start, end)
    known = {key for key in parts if key[0] <= 5}
    if not known or not known <= {(1, BYTES), (2, BYTES), (3, VARINT), (4, BYTES), (5, BYTES)}:
        return False
    node, library = parts.get((1, BYTES)), parts.get((2, BYTES))
    if node is not None:
        return _is_node(data, node)
    if library is None:
        return True
    function = peek(data, library.value, library.end).get((1, BYTES))
    return function is None or not _is_node(data, function)


def _is_node(data: Bytes, part: Field) -> bool:
    op = peek(data, part.value, part.end).get((2, BYTES))
    try:
        return op is not None and bool(OP_TYPE.fullmatch(data[op.value : op.end].decode()))
    except UnicodeDecodeError:
        return False


MOST_PIPED = 8 << 30  # bytes of a model that comes through a pipe; as text it may be long
MODELS_NAMED = 5  # models of a folder that are named


def load(model: ModelLike, progress: Progress | None = None) -> Model:
    """Read a model: a .pb, .pbtxt, .meta or SavedModel folder, or what Python has in memory.

    Args:
        model: A path (`-` is standard input), serialized bytes, a GraphDef, MetaGraphDef or
            SavedModel message of TensorFlow or tensorboard, a live `tf.Graph`, or a concrete
            function. A `Model` is returned as it is; for a `Result`, its model.
        progress: Called with what is done, how much of it, and of how much.

    Weights of a file are not read: they stay there, and the file must not change while the model
    is used. A live graph is exported as it is now, with its collections; a concrete function
    stands for its FuncGraph. Neither has values of variables.

    Raises:
        ModelError: There is no such file, it is not a model, or it is larger than protobuf's 2 GB.
        TypeError: `model` is none of these.

    When not to use it: for checkpoints, and .keras or .h5 files; they hold no graph.

    Example:
        >>> graphpatch.load("model.pb").node_count
        14
    """
    return model_from("model", model, progress)


def model_from(argument: str, model: ModelLike, progress: Progress | None = None) -> Model:
    """Return what `load` gives for an argument of this name, which a TypeError tells."""
    check_progress(progress)
    if not isinstance(model, str | os.PathLike):
        return in_memory(argument, model, progress)
    path = Path(model)
    try:
        if str(path) == "-":
            return opened_at(Path("-"), Source(read_whole(path, MOST_PIPED)), "", progress)
        if path.is_dir():
            path = _message_in(path)
        # The message stands for the SavedModel folder around it.
        file = path.name if path.name in SAVED_MODEL_FILES else ""
        return opened_at(path, map_file(path), file, progress)
    except FileNotFoundError as error:
        raise ModelError(not_there(path)) from error
    except OSError as error:
        name = "standard input" if str(path) == "-" else path
        raise ModelError(f"cannot read {name}: {error.strerror or error}") from error


def _message_in(folder: Path) -> Path:
    for name in SAVED_MODEL_FILES:
        if (folder / name).is_file():
            return folder / name
    if (folder / "saved_model.cpb").exists():
        raise ModelError(f"{folder}: saved_model.cpb, a SavedModel in chunks, cannot be read yet")
    files = sorted(path.name for path in folder.iterdir() if path.suffix in FILES)
    more = f"; name a model in it: {', '.join(files[:MODELS_NAMED])}" if files else ""
    if not more and (folder / "variables").is_dir():
        more = "; its variables are there, and its graph is missing: copy the whole SavedModel"
    raise ModelError(f"{folder} is a folder without {' or '.join(SAVED_MODEL_FILES)}{more}")
