"""What results have in common: the model that they hold, as files, messages, and a live graph."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from graphpatch.formats.model import Model

if TYPE_CHECKING:
    from graphpatch.formats.given import LiveGraph


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
