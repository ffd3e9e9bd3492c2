"""A model: a file or SavedModel folder, its graphs, and the way back to a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from graphpatch.above import FromAbove
from graphpatch.arguments import check_path, check_progress
from graphpatch.control_flow.contexts import has_control_flow
from graphpatch.errors import ModelError, OutputError
from graphpatch.formats.container import (
    GRAPH,
    META,
    SAVED,
    Container,
    container_pieces,
    meta_pieces,
)
from graphpatch.formats.foreign import refuse_suffix
from graphpatch.formats.live import LiveGraph
from graphpatch.formats.target import NO_CONTEXTS, Export
from graphpatch.formats.unfinished import sweep
from graphpatch.graph.heads import Progress
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.graph.wire import Piece, Source

if TYPE_CHECKING:
    from graphpatch.formats.export import ExportedGraph

MESSAGE = "saved_model.pb"


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
    _function: ExportedGraph | None = field(default=None, init=False)
    _made: list[Piece] | None = field(default=None, init=False)  # of one that changes no more

    def __repr__(self) -> str:
        return f"<Model: {self.path}, a {self.format} of {self.node_count:,} nodes>"

    def file_in(self, folder: Path) -> Path:
        """Where another process can read the model: its own file, or one written into a folder.

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
        """What kind of file it is, in words."""
        return f"{self.container.name} as text" if self.is_text else self.container.name

    @property
    def node_count(self) -> int:
        """How many NodeDefs there are, those of functions included."""
        old = sum(len(body) for graph in self.graphs for body in graph.bodies)
        return old + sum(len(f.node_def) for graph in self.graphs for f in graph.added.function)

    def copy(self) -> Model:
        """The same model, to be changed without this one seeing it."""
        return replace(self, graphs=[graph.copy() for graph in self.graphs])

    def pieces(self) -> list[Piece]:
        """The binary message as it is now: new bytes, and spans of the file it came from.

        Raises OutputError where the graph cannot be exported, ModelError where it is broken.
        """
        if self._made is not None:
            return self._made
        if self.export is not None:
            from graphpatch.formats import new_saved_model

            return new_saved_model.saved_model_pieces(self.function(self.export))
        ready = [one[:2] for one in self._ready()]
        return container_pieces(self.source, self.container, ready)

    def keep_pieces(self) -> list[Piece]:
        """Return the pieces, and keep them: the model is changed no more, but written."""
        self._made = self.pieces()
        return self._made

    def meta_graph(self, graph: ModelGraph, rebuild: bool = True) -> list[Piece]:
        """A MetaGraphDef of one of its graphs, with the contexts of v1 loops and branches.

        They are rebuilt where the file has none, or with `rebuild=False` only where it would be
        written with them. Raises ModelError where they cannot be.
        """
        from graphpatch.control_flow.rebuilt import with_contexts

        if graph.around.has_contexts or (self.container is GRAPH and not rebuild):
            ready = graph, b""
        else:
            ready = with_contexts(graph) if rebuild else _ready(graph)[:2]
        return meta_pieces(self.source, self.container, *ready)

    def function(self, export: Export) -> ExportedGraph:
        """The function that its main graph becomes; asked for when all rules have been applied.

        Raises OutputError where it cannot be one.
        """
        if self._function is None:
            from graphpatch.formats.export import exported

            self._function = exported(self.graphs[0], export)
        return self._function

    def exported(self, export: Export) -> Model:
        """A copy of the model that `save` writes as a TF2 SavedModel.

        Its main graph is a function then, from the inputs to the outputs. Raises OutputError where
        it cannot be one.
        """
        if len(self.graphs) != 1 or self.graphs[0].around.is_object_based:
            raise OutputError(
                f"a {self.format} has its signatures already; inputs and outputs are for a graph "
                f"that is to become a TF2 SavedModel"
            )
        from graphpatch.formats.export import exported

        exported(self.graphs[0], export)  # what cannot be is refused before rules are applied
        model = replace(self.copy(), container=SAVED, file=MESSAGE, is_text=False, export=export)
        graph = model.graphs[0]
        graph.around = structs.replace(graph.around, is_object_based=True, is_exported=True)
        return model

    def notes(self) -> list[str]:
        """Notes on the model as it would be written now.

        Raises OutputError where the graph cannot be exported, ModelError where it is broken.
        """
        if self.export is not None:
            from graphpatch.formats.export import export_notes

            return export_notes(self.function(self.export))
        if self.container is GRAPH:
            return [NO_CONTEXTS] if has_control_flow(self.graphs[0].main) else []
        return [note for _, _, note in self._ready() if note]

    def _ready(self) -> list[tuple[ModelGraph, bytes, str]]:
        """Each graph with the contexts to be added, for which a GraphDef has no place."""
        if self.container is GRAPH:
            return [(graph, b"", "") for graph in self.graphs]
        return [_ready(graph) for graph in self.graphs]

    def graph_def(self, tags: str = "") -> Any:
        """The GraphDef as it is now: TensorFlow's message where TensorFlow is imported.

        Else it is tensorboard's, which has the same fields; `tf.import_graph_def` takes only
        TensorFlow's. Gradients are as in a file. A GraphDef has no place for the contexts of v1
        loops and branches: `meta_graph_def` and `import_into` give them. `tags` choose one of
        several MetaGraphDefs. Raises ModelError where they do not, or where the message would be
        larger than protobuf's 2 GB.

        Example:
            >>> graphpatch.load("model.pb").graph_def().node[0].name
            'x'
        """
        from graphpatch.formats.messages import graph_def

        return graph_def(self, tags)

    def meta_graph_def(self, tags: str = "") -> Any:
        """The MetaGraphDef as it is now, with collections and control-flow contexts.

        Of a GraphDef it is a new one. The class of the message, `tags` and what is raised are as in
        `graph_def`; ModelError too where contexts cannot be rebuilt.

        Example:
            >>> len(graphpatch.load("model.pb").meta_graph_def().graph_def.node)
            14
        """
        from graphpatch.formats.messages import meta_graph_def

        return meta_graph_def(self, tags)

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
        self.write(path, progress)

    def write(
        self,
        path: str | os.PathLike[str],
        progress: Progress | None = None,
        confirm: Callable[[], None] | None = None,
    ) -> None:
        """Write it as `save` does; for many models at once what others left is taken away first.

        `confirm` is called when all is written, before it takes its name.

        Raises OutputError and ModelError as `save` does.
        """
        from graphpatch.formats.save import write_model

        write_model(self, Path(path), progress, confirm)

    def encoded(self, suffix: str) -> Sequence[Piece]:
        """What a file with this ending holds; another ending leaves the encoding as it was.

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

    def _other(self, suffix: str) -> str:
        """An ending, if it is not that of the model's own file."""
        return "" if suffix == Path(self.path).suffix and not self.in_memory else suffix

    def _as_text(self, suffix: str) -> bool:
        return suffix == ".pbtxt" or (self.is_text and suffix not in {".pb", ".meta"})

    def text_notes(self, path: str) -> list[str]:
        """Notes on a file whose name makes it text; OutputError, ModelError as of `pieces`."""
        if not self._as_text(self._other(Path(path).suffix)):
            return []
        from graphpatch.formats import text

        found = text.newer_fields(self.pieces(), self.container)
        return [text.TOO_NEW.format(", ".join(found))] if found else []


def _ready(graph: ModelGraph) -> tuple[ModelGraph, bytes, str]:
    """A patched graph whose MetaGraphDef lacks contexts, with them; or why it can have none."""
    if graph.around.has_contexts or graph.around.is_object_based or not graph.is_changed:
        return graph, b"", ""
    from graphpatch.control_flow.rebuilt import with_contexts

    try:
        return *with_contexts(graph), ""
    except ModelError as error:
        return graph, b"", f"{error}; they are missing, as they were in the model"


import_into: FromAbove[[Model, LiveGraph, str, str], Any] = FromAbove("import_into")

__all__ = ["GRAPH", "META", "SAVED", "Model"]
