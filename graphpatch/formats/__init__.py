"""Containers of GraphDefs: .pb, .pbtxt, MetaGraphDef, SavedModel; in and out."""

from graphpatch.formats.load import load
from graphpatch.formats.model import Model
from graphpatch.formats.target import Export, default_output

__all__ = ["Export", "Model", "default_output", "load"]
