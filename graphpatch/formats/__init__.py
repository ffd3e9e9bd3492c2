"""Containers of GraphDefs: .pb, .pbtxt, MetaGraphDef, SavedModel; in and out."""

from graphpatch.formats.load import load
from graphpatch.formats.model import Model, default_output
from graphpatch.formats.signature import Export

__all__ = ["Export", "Model", "default_output", "load"]
