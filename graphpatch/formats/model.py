"""A model: its file or SavedModel folder, its graphs, and the way in and back to a file."""

from __future__ import annotations

import filecmp
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import msgspec
from google.protobuf.message import Message
from msgspec import structs

from graphpatch import protos
from graphpatch.control_flow.contexts import has_control_flow
from graphpatch.errors import ModelError, OutputError, check_path, check_progress
from graphpatch.formats.destination import FILES, NO_CONTEXTS, Export, refuse_inputs, reported
from graphpatch.formats.foreign import refuse_suffix
from graphpatch.formats.output import (
    memory_chunks,
    regular_files,
    sweep,
    write_pieces,
    writing_file,
    writing_folder,
)
from graphpatch.graph.graph import ContainerFacts, ModelGraph, Progress, graph_pieces
from graphpatch.graph.wire import (
    BYTES,
    Field,
    Piece,
    Replacement,
    Source,
    enclosed,
    fields,
    message,
    piece_bytes,
    reframed,
    refuse_changed,
    size,
    splice,
    utf8,
)
from graphpatch.later import FromLater
from graphpatch.protos import GraphDef, MetaGraphDef

if TYPE_CHECKING:
    from graphpatch.formats.saved_model import ExportedGraph


@runtime_checkable
class LiveGraph(Protocol):
    """A `tf.Graph`, as far as it is asked."""

    def as_graph_def(self) -> Any:
        """Return its GraphDef."""

    def as_default(self) -> Any:
        """Return a context in which ops go into it."""


class ConcreteFunction(Protocol):
    """A concrete function of TensorFlow, as far as it is asked."""

    @property
    def graph(self) -> Any:
        """Return its FuncGraph."""


class Container(msgspec.Struct, frozen=True):
    """A kind of message that holds GraphDefs."""

    name: str

    @property
    def message(self) -> Any:
        """Return the class of the message."""
        return getattr(protos, self.name)


GRAPH, META, SAVED = map(Container, ("GraphDef", "MetaGraphDef", "SavedModel"))

META_GRAPHS = 2  # the field of SavedModel
# Fields of MetaGraphDef; a TF2 SavedModel has an object graph. Tags are a field of its info.
META_INFO, GRAPH_DEF, OBJECT_GRAPH = 1, 2, 7
TAGS = 4

LIMIT = 2**31 - 1  # bytes

TOO_LARGE = (
    "protobuf messages are limited to 2 GB (2,147,483,647 bytes); keep the weights in variables, "
    "with a checkpoint, and not as constants of the graph"
)

# What protobuf and TensorFlow say where a message is larger, in the versions that differ.
_SAYS = re.compile(r"2 ?GB|2147483647|larger than the limit|Failed to serialize", re.IGNORECASE)

M = TypeVar("M", bound=Message)


def as_message(kind: type[M], pieces: Sequence[Piece]) -> M:
    """Return the pieces as one message. Raises ModelError for more than protobuf's 2 GB."""
    total = size(pieces)
    if total > LIMIT:
        name = kind.DESCRIPTOR.name
        raise ModelError(f"as a {name} it would have {total:,} bytes, and {TOO_LARGE}")
    return message(kind, b"".join(map(piece_bytes, pieces)))


def as_bytes(message: Message) -> bytes:
    """Return a message, serialized. Raises ModelError where it is more than protobuf's 2 GB."""
    try:
        return message.SerializeToString(deterministic=True)
    except Exception as error:  # ValueError or EncodeError, by the version of protobuf
        if is_too_large(error):
            raise ModelError(
                f"<{message.DESCRIPTOR.name}>: it cannot be serialized: {TOO_LARGE}"
            ) from error
        raise


def is_too_large(error: Exception) -> bool:
    """Return whether protobuf or TensorFlow failed since a message is larger than 2 GB."""
    return _SAYS.search(str(error)) is not None


MESSAGE = "saved_model.pb"
# TensorFlow's checksums of it; they would be those of another graph.
FINGERPRINT = "fingerprint.pb"


@dataclass(eq=False, repr=False)
class Model:
    """A model as `load` finds it. Its weights stay in its file, which must not change meanwhile.

    `graphs` has one graph, or one for each MetaGraphDef of a SavedModel. `file` is the name of
    the message in the folder of a SavedModel, and empty for a single file.

    Example:
        >>> model = graphpatch.load("model.pb")
        >>> model.format, model.node_count
        ('GraphDef', 14)
    """

    path: str
    source: Source
    container: Container
    graphs: list[ModelGraph]
    is_text: bool = False
    file: str = ""
    export: Export | None = None  # written as a new TF2 SavedModel, from and to these tensors
    files: Mapping[str, bytes] = field(default_factory=dict)  # written into a SavedModel's folder
    live: bool = False  # rules go back into its live graph, which TensorFlow writes in its own way
    in_memory: bool = False  # read from no file: `path` is what messages call it
    _made: list[Piece] | None = field(default=None, init=False)  # of one that changes no more

    def __repr__(self) -> str:
        return f"<Model: {self.path}, a {self.format} of {self.node_count:,} nodes>"

    def file_in(self, folder: Path) -> Path:
        """Return a file that another process can read: the model's own, or one in this folder.

        Raises OutputError, ModelError and TypeError as `save` does.
        """
        if self.source.descriptor >= 0 and not self.is_text and self.export is None:
            return Path(self.path)
        folder.mkdir(exist_ok=True)
        path = folder / f"model{'' if self.file else '.meta' if self.container is META else '.pb'}"
        self.save(path)
        return path

    @property
    def format(self) -> str:
        """Return what kind of file it is, in words."""
        return f"{self.container.name} as text" if self.is_text else self.container.name

    @property
    def node_count(self) -> int:
        """Return how many NodeDefs there are, those of functions included."""
        old = sum(len(body) for graph in self.graphs for body in graph.bodies)
        return old + sum(len(f.node_def) for graph in self.graphs for f in graph.added.function)

    def copy(self) -> Model:
        """Return the same model, to be changed without this one seeing it."""
        return replace(self, graphs=[graph.copy() for graph in self.graphs])

    def pieces(self) -> list[Piece]:
        """Return the binary message as it is now: new bytes, and spans of the file it came from.

        Raises OutputError where the graph cannot be exported, ModelError where it is broken.
        """
        if self._made is not None:
            return self._made
        if self.export is not None:
            from graphpatch.formats import saved_model

            return saved_model.saved_model_pieces(self.exported_graph)
        if self.container is GRAPH:  # which may lie in the middle of what it was read from
            return graph_pieces(self.graphs[0])
        metas = [(g.around.meta, self._meta_pieces(*_ready(g)[:2])) for g in self.graphs]
        if self.container is META:
            return metas[0][1]
        replacements = [
            (meta.start, meta.end, reframed(self.source, meta.start, pieces))
            for meta, pieces in metas
            if meta is not None
        ]
        return splice(self.source, 0, len(self.source.data), replacements)

    def keep_pieces(self) -> list[Piece]:
        """Return the pieces, and keep them: the model is changed no more, but written.

        Raises ModelError and OutputError as writing it would.
        """
        self._made = self.pieces()
        return self._made

    def meta_graph(self, graph: ModelGraph, rebuild: bool = True) -> list[Piece]:
        """Return a MetaGraphDef of one of its graphs, with the contexts of v1 loops and branches.

        They are rebuilt where the file has none, or with `rebuild=False` only where it would be
        written with them. Raises ModelError where they cannot be.
        """
        from graphpatch.control_flow.rebuilt import with_contexts

        if graph.around.has_contexts or (self.container is GRAPH and not rebuild):
            ready = graph, b""
        else:
            ready = with_contexts(graph) if rebuild else _ready(graph)[:2]
        return self._meta_pieces(*ready)

    def _meta_pieces(self, graph: ModelGraph, more: bytes) -> list[Piece]:
        """Return a MetaGraphDef that holds a graph: that of the file around it, or a new one.

        With the graph come the fields that it gets besides.
        """
        from graphpatch.control_flow.stored import context_replacements

        source, meta = self.source, graph.around.meta
        if self.container is GRAPH or meta is None:
            # An empty meta_info_def, then the GraphDef: all that import_meta_graph needs.
            return [*enclosed(META_INFO, []), *enclosed(GRAPH_DEF, graph_pieces(graph)), more]
        (part,) = _fields_numbered(source, meta, GRAPH_DEF)
        replacements: list[Replacement] = [
            (part.start, part.end, reframed(source, part.start, graph_pieces(graph))),
            *context_replacements(source, meta, graph),
            *_object_graph(source, meta, graph),
        ]
        pieces = splice(source, meta.value, meta.end, sorted(replacements, key=itemgetter(0)))
        return [*pieces, more] if more else pieces

    @cached_property
    def exported_graph(self) -> ExportedGraph:
        """Return the function that its main graph becomes, once all rules have been applied.

        Raises OutputError where it cannot be one.
        """
        from graphpatch.formats.saved_model import exported

        assert self.export is not None
        return exported(self.graphs[0], self.export)

    def exported(self, export: Export) -> Model:
        """Return a copy of the model that `save` writes as a TF2 SavedModel.

        Its main graph is a function then, from the inputs to the outputs. Raises OutputError where
        it cannot be one.
        """
        if len(self.graphs) != 1 or self.graphs[0].around.is_object_based:
            raise OutputError(
                f"a {self.format} has its signatures already; inputs and outputs are for a graph "
                f"that is to become a TF2 SavedModel"
            )
        from graphpatch.formats.saved_model import CHECKPOINT, exported

        exported(self.graphs[0], export)  # what cannot be is refused before rules are applied
        model = replace(self.copy(), container=SAVED, file=MESSAGE, is_text=False, export=export)
        model.files = dict(CHECKPOINT)
        graph = model.graphs[0]
        graph.around = structs.replace(graph.around, is_object_based=True, is_exported=True)
        return model

    def notes(self) -> list[str]:
        """Return notes on the model as it would be written now.

        Raises OutputError where the graph cannot be exported, ModelError where it is broken.
        """
        if self.export is not None:
            from graphpatch.formats.saved_model import export_notes

            return export_notes(self.exported_graph)
        if self.container is GRAPH:
            return [NO_CONTEXTS] if has_control_flow(self.graphs[0].main) else []
        return [note for graph in self.graphs if (note := _ready(graph)[2])]

    def graph_def(self, tags: str = "") -> Any:
        """Return the GraphDef as it is now: TensorFlow's message where TensorFlow is imported.

        Else it is graphpatch's own, which has the same fields; `tf.import_graph_def` takes only
        TensorFlow's. Gradients are as in a file. A GraphDef has no place for the contexts of v1
        loops and branches: `meta_graph_def` and `import_into` give them. `tags` choose one of
        several MetaGraphDefs. Raises ModelError where they do not, or where the message would be
        larger than protobuf's 2 GB.

        Example:
            >>> graphpatch.load("model.pb").graph_def().node[0].name
            'x'
        """
        return _as_message("GraphDef", self, tags)

    def meta_graph_def(self, tags: str = "") -> Any:
        """Return the MetaGraphDef as it is now, with collections and control-flow contexts.

        Of a GraphDef it is a new one. The class of the message, `tags` and what is raised are as in
        `graph_def`; ModelError too where contexts cannot be rebuilt.

        Example:
            >>> len(graphpatch.load("model.pb").meta_graph_def().graph_def.node)
            14
        """
        return _as_message("MetaGraphDef", self, tags)

    def import_into(self, graph: LiveGraph, name: str = "", tags: str = "") -> Any:
        """Import the model into a live `tf.Graph`, as `graphpatch.import_model` does.

        Forward, its ops are there under their names, with `name` before them as a scope. Backward,
        gradients hold, through v1 loops and branches too. Returns a Saver where the model has
        variables, else None. Raises what `import_model` does, TypeError without a graph.

        Example:
            >>> graph = tf.Graph()
            >>> saver = graphpatch.load("patched.pb").import_into(graph)
            >>> graph.get_tensor_by_name("features:0").shape
            TensorShape([1, 4, 4, 1])
        """
        return import_into(self, graph, name, tags)

    def save(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Write the model to `path`, whole or not at all, over what was there.

        A name ending in .pbtxt is written as text, one ending in .meta as a MetaGraphDef, unless
        the model's own name ends so: then it stays what it is. A SavedModel goes to a folder with
        its variables and assets; one from memory has neither, and a name that ends in .pb gives the
        message alone. What a process that was killed left beside `path` is taken away.

        Raises:
            OutputError: The file cannot be written, is the one that the model was read from, has no
                room for what the model holds, or has the name of a file of another kind (.onnx).
            ModelError: The file of the model was changed meanwhile, or the contexts of v1 loops
                cannot be rebuilt for a .meta.
            TypeError: `path` is not a path, or `progress` is not a function.

        Example:
            >>> graphpatch.load("model.pb").save("model.pbtxt")
        """
        check_path("path", path)
        check_progress(progress)
        refuse_suffix(os.fspath(path), self.path)
        sweep([Path(path)])
        with self.writing(path, progress):
            pass

    @contextmanager
    def writing(
        self, output: str | os.PathLike[str] | None, progress: Progress | None = None
    ) -> Iterator[Path | None]:
        """Write it as `save` does, and give what is written, which takes its name at the end.

        For many models at once what others left is taken away first. None is not written, and `-`
        is standard output: then None is given. Raises OutputError and ModelError as `save` does.
        """
        if output is None:
            yield None
        elif output == "-":
            if self.file:
                raise OutputError("a SavedModel is a folder, and does not go through a pipe")
            pieces = self.encoded("")
            sys.stdout.flush()
            with reported("standard output"):
                write_pieces(sys.stdout.fileno(), pieces, progress)
            yield None
        else:
            path = Path(output)
            with reported(path):
                if not self.in_memory:
                    refuse_inputs(path, {"the model itself": self.path})
                refuse_changed([self.source])
                is_saved = self.container is SAVED and path.suffix not in FILES
                if not self.file and not (self.in_memory and is_saved):
                    written = writing_file(path, self.encoded(path.suffix), progress)
                else:
                    self._refuse_folder(path)
                    written = writing_folder(path, self.all_files())
                with written as temporary:
                    yield temporary

    def _refuse_folder(self, path: Path) -> None:
        """Raise OutputError where a SavedModel cannot be a folder of this name."""
        if path.suffix in FILES:
            raise OutputError(f"a SavedModel is a folder, and cannot be written as the file {path}")
        if path.is_file():
            raise OutputError(f"{path} is a file, and a SavedModel is a folder")
        is_new = self.in_memory or self.export is not None
        if is_new and path.is_dir() and any(path.iterdir()) and not (path / MESSAGE).exists():
            raise OutputError(f"{path} is a folder of other things; name one that is not there yet")

    def encoded(self, suffix: str) -> Sequence[Piece]:
        """Return what a file with this ending holds; another ending leaves the encoding as it was.

        Raises OutputError where the model has no such form, ModelError where it is broken.
        """
        container, pieces, suffix = self.container, self.pieces(), self._other(suffix)
        if suffix == ".meta" and container is GRAPH:
            container, pieces = META, self.meta_graph(self.graphs[0])
        elif suffix == ".pb" and container is META:
            raise OutputError(
                "the collections of a MetaGraphDef have no place in a .pb; "
                "give the output a name that ends in .meta"
            )
        if not self._as_text(suffix):
            return pieces
        from graphpatch.formats import text

        return [text.unparse(pieces, container)]

    def all_files(self) -> dict[str, Sequence[Piece] | Path]:
        """Return what a SavedModel's folder gets: files by their names in it; a path is copied.

        Raises OutputError and ModelError as `encoded` does.
        """
        files = dict[str, Sequence[Piece] | Path]()
        if not self.in_memory and self.export is None:
            files = {str(path.relative_to(self.path)): path for path in regular_files(self.path)}
        files.pop(FINGERPRINT, None)
        files |= {name: [data] for name, data in self.files.items()}
        return {**files, self.file or MESSAGE: self.encoded(Path(self.file).suffix)}

    def _other(self, suffix: str) -> str:
        """Return an ending, if it is not that of the model's own file."""
        return "" if suffix == Path(self.path).suffix and not self.in_memory else suffix

    def _as_text(self, suffix: str) -> bool:
        return suffix == ".pbtxt" or (self.is_text and suffix not in {".pb", ".meta"})

    def text_notes(self, path: str) -> list[str]:
        """Return notes on a file whose name makes it text; raise what `pieces` raises."""
        suffix = Path(path).suffix
        if not self._as_text(self._other(suffix)):
            return []
        from graphpatch.formats import text

        newer = text.newer_fields(b"".join(map(piece_bytes, self.encoded(suffix))))
        return [text.TOO_NEW.format(", ".join(newer))] if newer else []


def _ready(graph: ModelGraph) -> tuple[ModelGraph, bytes, str]:
    """Return a patched graph with the contexts that its MetaGraphDef lacks, or why not."""
    if graph.around.has_contexts or graph.around.is_object_based or not graph.is_changed:
        return graph, b"", ""
    from graphpatch.control_flow.rebuilt import with_contexts

    try:
        return *with_contexts(graph), ""
    except ModelError as error:
        return graph, b"", f"{error}; they are missing, as they were in the model"


def open_graphs(
    source: Source, container: Container, progress: Progress | None
) -> list[ModelGraph]:
    """Return the GraphDefs of a file; several where a SavedModel has several MetaGraphDefs."""
    whole = Field(0, BYTES, 0, 0, len(source.data))
    if container is GRAPH:
        return [ModelGraph.open(source, whole.value, whole.end, progress)]
    metas = _fields_numbered(source, whole, META_GRAPHS) if container is SAVED else [whole]
    return [_open_meta(source, meta, progress) for meta in metas]


def _open_meta(source: Source, meta: Field, progress: Progress | None) -> ModelGraph:
    from graphpatch.control_flow.stored import has_contexts

    graphs = _fields_numbered(source, meta, GRAPH_DEF)
    if len(graphs) != 1:
        raise ModelError(f"a MetaGraphDef holds {len(graphs)} GraphDefs; it must hold one")
    graph = ModelGraph.open(source, graphs[0].value, graphs[0].end, progress)
    infos = _fields_numbered(source, meta, META_INFO)
    tags = [tag for info in infos for tag in _fields_numbered(source, info, TAGS)]
    graph.around = ContainerFacts(
        meta,
        ",".join(utf8(source.data, tag.value, tag.end) for tag in tags),
        has_contexts(source, meta),
        is_object_based=bool(_fields_numbered(source, meta, OBJECT_GRAPH)),
    )
    return graph


def _fields_numbered(source: Source, outer: Field, number: int) -> list[Field]:
    return [part for part in fields(source.data, outer.value, outer.end) if part.holds(number)]


def _object_graph(source: Source, meta: Field, graph: ModelGraph) -> Iterator[Replacement]:
    """Yield the object graph with what restores the gradients that the library holds of ours."""
    gone = graph.undone.functions if graph.undone is not None else frozenset()
    if not graph.around.is_object_based or not (graph.restored or gone):
        return
    from graphpatch.formats.saved_model import objects_to_add, without_functions

    (part,) = _fields_numbered(source, meta, OBJECT_GRAPH)
    remaining, count = without_functions(source, part, gone)
    added = objects_to_add(graph.restored, count).SerializeToString(deterministic=True)
    pieces = reframed(source, part.start, [*remaining, added] if added else remaining)
    yield part.start, part.end, pieces


def meta_around(graph: ModelGraph) -> MetaGraphDef:
    """Return the MetaGraphDef without its GraphDef."""
    data, meta = graph.source.data, graph.around.meta
    if meta is None:
        return MetaGraphDef()
    parts = fields(data, meta.value, meta.end)
    around = [data[field.start : field.end] for field in parts if field.number != GRAPH_DEF]
    return message(MetaGraphDef, b"".join(around))


import_into: FromLater[[Model, LiveGraph, str, str], Any] = FromLater("import_into")

tensorflow_class: FromLater[[str], Any] = FromLater("tensorflow_class")


def _as_message(name: str, model: Model, tags: str) -> Any:
    """Return a model's graph as it would be written: a GraphDef, or a MetaGraphDef with contexts.

    The class is TensorFlow's where TensorFlow is imported, as it takes its own alone; else it is
    graphpatch's own.
    """
    kind: Any = {"GraphDef": GraphDef, "MetaGraphDef": MetaGraphDef}[name]
    if sys.modules.get("tensorflow") is not None:
        kind = tensorflow_class(name)
    try:
        if model.export is not None:  # it becomes another graph when it is exported
            model = reopened(model, SAVED, model.pieces())
        graph = graph_with_tags(model, tags)
        pieces = graph_pieces(graph) if name == "GraphDef" else model.meta_graph(graph)
        return as_message(kind, pieces)
    except ModelError as error:
        raise ModelError(f"{model.path}: {error}") from error


def reopened(model: Model, container: Container, pieces: Iterable[Piece]) -> Model:
    """Return a copy that holds what these bytes do, without weights in a file."""
    source = Source(b"".join(map(piece_bytes, pieces)))
    graphs = open_graphs(source, container, None)
    copy = replace(model, source=source, container=container, graphs=graphs, export=None)
    copy.in_memory = model.in_memory or model.export is not None
    return copy


def graph_with_tags(model: Model, tags: str) -> ModelGraph:
    """Return the graph of a model that has these tags, or the only one that it has."""
    graphs = [graph for graph in model.graphs if not tags or graph.around.tags == tags]
    if len(graphs) == 1:
        return graphs[0]
    available = ", ".join(repr(graph.around.tags) for graph in model.graphs)
    raise ModelError(f"`tags` must choose one of its MetaGraphDefs: {available}")


def is_written_at(model: Model, path: Path) -> bool:
    """Return whether all that writing a model to `path` would write is there, and no more."""
    with reported(path):
        if not model.file:
            return _holds(path, model.encoded(path.suffix))
        if not path.is_dir():
            return False
        files, present = model.all_files(), regular_files(path)
        if {str(file.relative_to(path)) for file in present} != files.keys():
            return False
        return all(_holds(path / name, content) for name, content in files.items())


def _holds(path: Path, content: Sequence[Piece] | Path) -> bool:
    """Return whether a path has this content alone: these bytes, or what is at another path."""
    if isinstance(content, Path):
        is_folder = path.is_dir(), content.is_dir()
        return all(is_folder) or (not any(is_folder) and filecmp.cmp(path, content, shallow=False))
    if not path.is_file() or path.stat().st_size != size(content):
        return False
    with path.open("rb") as file:
        return all(file.read(len(chunk)) == chunk for chunk in memory_chunks(content))
