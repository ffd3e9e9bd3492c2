"""A graph of a model: a GraphDef, and what the container around it says."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from graphpatch.graph.graph import Graph
from graphpatch.graph.record import ModelRecord
from graphpatch.graph.wire import Field, Source


class ContainerFacts(msgspec.Struct, frozen=True):
    """What the container of a graph says of it; of a GraphDef alone, nothing.

    `meta` is the MetaGraphDef around, with its `tags`; `has_contexts`: it tells the contexts of v1
    loops and branches. `is_object_based`: it is that of a TF2 SavedModel, whose functions are
    restored in Python; `is_exported`: the main graph will be one of these functions.
    """

    meta: Field | None = None
    tags: str = ""
    has_contexts: bool = False
    is_object_based: bool = False
    is_exported: bool = False


class UndoneGraph(msgspec.Struct, frozen=True, eq=False):
    """What was taken back of a graph, as far as its container tells of it.

    Ops of the main graph that were dropped, and the older names of others (by the newer ones);
    functions that were dropped. `record` is what was written down of the model.
    """

    dropped: frozenset[str]
    old_names: Mapping[str, str]
    functions: frozenset[str]
    record: ModelRecord


class ModelGraph(Graph, eq=False):
    """A graph of a model; `around` is what its container says, and `undone` what was taken back."""

    around: ContainerFacts = ContainerFacts()
    undone: UndoneGraph | None = None

    @property
    def keeps_library(self) -> bool:
        """Whether the library of functions stays though nothing be left in it: it was there."""
        return self.undone is not None and self.undone.record.library


def graph_of(data: bytes) -> ModelGraph:
    """The graph of a GraphDef that is these bytes, as `ModelGraph.open`."""
    return ModelGraph.open(Source(data), 0, len(data))
