"""Containers of GraphDefs: .pb, .pbtxt, MetaGraphDef, SavedModel; in and out."""

from graphpatch.formats.destination import Export, default_output
from graphpatch.formats.load import load
from graphpatch.formats.model import Model

__all__ = ["Export", "Model", "default_output", "load"]
